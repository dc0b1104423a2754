// Builds elements. Data becomes text nodes and nothing else: no markup is ever made of it.

export function byId(id) {
  return document.getElementById(id);
}

// An element: a property that starts with "on" listens, others are attributes (false and null: none).
export function make(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) {
      made.addEventListener(key.slice(2), value);
    } else if (value !== false && value !== null) {
      made.setAttribute(key, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Show one element for each item in `list`. What has not changed stays as it is, and the keyboard's
// focus stays where it was: in the same control of the same item or, if that is gone, on what
// follows it, else on `fallback`.
export function show(list, items, keyOf, render, fallback) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  const focused = [...list.children].findIndex((child) => child.contains(document.activeElement));
  const controls = (child) => [...child.querySelectorAll("a, button")];
  const held = focused < 0 ? null : list.children[focused];
  const control = held ? controls(held).indexOf(document.activeElement) : -1;
  const wanted = items.map((item) => {
    const [key, text] = [String(keyOf(item)), JSON.stringify(item)];
    const old = known.get(key);
    if (old?.shown === text) {
      return old;
    }
    const made = render(item);
    made.dataset.key = key;
    made.shown = text;
    return made;
  });
  if (wanted.length !== list.children.length || wanted.some((it, n) => it !== list.children[n])) {
    list.replaceChildren(...wanted);
  }
  if (held && !list.contains(document.activeElement)) {
    const next = wanted.find((it) => it.dataset.key === held.dataset.key) ?? wanted[focused];
    const there = next ? controls(next) : [];
    (there[control] ?? there.at(-1) ?? fallback)?.focus();
  }
}

// A cell that says its column's name itself where the table becomes a list, on narrow screens.
export function cell(label, ...children) {
  return make("td", { "data-label": label }, make("span", {}, ...children));
}

export function button(text, label, act) {
  const made = make("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", async () => {
    made.setAttribute("aria-disabled", "true");
    if (made.busy) {
      return;
    }
    made.busy = true;
    try {
      await act(made);
    } finally {
      made.busy = false;
      made.removeAttribute("aria-disabled");
    }
  });
  return made;
}
