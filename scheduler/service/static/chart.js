// Sixty bars, one for each minute of the last hour. Each bar is a stack of parts; the numbers are in a
// table as well, for those who do not see bars or want to read them.

import { draw, make } from "./dom.js";
import { clock } from "./format.js";

const [WIDTH, HEIGHT, GAP] = [600, 120, 2];

// `parts`: the name, CSS class and value of each; `overlaid`: whether they are drawn over each other
// rather than stacked; `words`: how a value is written; `summary`: what the picture says.
export function chart({ title, summary, minutes, parts, overlaid, words }) {
  const heightOf = (minute) => {
    const values = parts.map((part) => part.value(minute) ?? 0);
    return overlaid ? Math.max(...values) : values.reduce((sum, value) => sum + value, 0);
  };
  const most = Math.max(...minutes.map(heightOf));
  const width = WIDTH / minutes.length;
  const bars = minutes.map((minute, n) => {
    const said = parts.map((part) => `${part.name} ${words(part.value(minute) ?? 0)}`).join(", ");
    const group = draw("g", {}, draw("title", {}, `${clock(minute.at)}: ${said}`));
    group.append(draw("rect", { class: "hit", x: n * width, y: 0, width, height: HEIGHT }));
    let base = HEIGHT;
    for (const part of parts) {
      const height = most ? ((part.value(minute) ?? 0) / most) * HEIGHT : 0;
      const top = (overlaid ? HEIGHT : base) - height;
      if (height > 0) {
        const place = { x: n * width + GAP / 2, y: top, width: width - GAP, height };
        group.append(draw("rect", { class: part.class, ...place }));
      }
      base = top;
    }
    return group;
  });
  const picture = draw("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${title}. ${summary}`,
  });
  picture.append(...bars);
  const legend = parts.map((part) =>
    make("li", {}, make("span", { class: `key ${part.class}`, "aria-hidden": "true" }), part.name),
  );
  return make(
    "figure",
    { class: "card" },
    make("figcaption", {}, make("h3", {}, title), make("ul", { class: "legend" }, ...legend)),
    make("p", { class: "scale", "aria-hidden": "true" }, most ? words(most) : ""),
    picture,
    make(
      "p",
      { class: "axis", "aria-hidden": "true" },
      make("span", {}, clock(minutes[0].at)),
      make("span", {}, clock(minutes[30].at)),
      make("span", {}, "now"),
    ),
    table({ title, minutes, parts, words }),
  );
}

function table({ title, minutes, parts, words }) {
  const names = ["Minute", ...parts.map((part) => part.name)];
  const busy = minutes.filter((minute) => parts.some((part) => part.value(minute)));
  const rows = busy.reverse().map((minute) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, clock(minute.at)),
      ...parts.map((part) => make("td", {}, words(part.value(minute) ?? 0))),
    ),
  );
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  return make(
    "details",
    {},
    make("summary", {}, "As a table"),
    rows.length
      ? make("table", { "aria-label": title }, make("thead", {}, head), make("tbody", {}, ...rows))
      : make("p", { class: "quiet" }, "Nothing happened in the last hour."),
  );
}
