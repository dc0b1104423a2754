// Shows the figures in the colours of the page, and lets people filter and zoom without a mouse.
"use strict";
(async () => {
  const whole = JSON.parse(document.getElementById("figures").textContent);
  Bokeh.set_log_level("warn");
  const places = Object.entries(whole.places);
  await Bokeh.embed.embed_items({ report: whole.document }, [{
    docid: "report", roots: Object.fromEntries(places), root_ids: places.map(([id]) => id),
  }]);
  const bokeh = Bokeh.documents[Bokeh.documents.length - 1];
  const models = new Set(bokeh.roots().flatMap((root) => [root, ...root.references()]));
  const named = (name) => [...models].filter((model) => model.name === name);

  // Columns of numbers whose tags have a table of words get their words.
  for (const source of models) {
    if (source.type !== "ColumnDataSource" || source.tags.length === 0) continue;
    const tables = source.tags[0];
    for (const [column, words] of tables instanceof Map ? tables : Object.entries(tables)) {
      source.data[column] = Array.from(source.data[column], (code) => words[code]);
    }
  }

  // Bokeh paints on a canvas, which knows no style sheets.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const [ink, grid, dim] = ["--ink", "--grid", "--dim"].map((name) => style.getPropertyValue(name));
    const font = getComputedStyle(document.body).fontFamily;
    for (const model of models) {
      if (model.type.endsWith("Axis")) {
        model.setv({
          axis_label_text_color: dim, major_label_text_color: ink, axis_line_color: grid,
          major_tick_line_color: grid, minor_tick_line_color: null,
          axis_label_text_font: font, major_label_text_font: font,
          axis_label_text_font_style: "normal",
        });
      } else if (model.type === "Grid") {
        model.grid_line_color = grid;
      } else if (model.type === "Legend") {
        model.setv({ label_text_color: ink, label_text_font: font });
      } else if (model.type === "GlyphRenderer" && model.tags.includes("ink")) {
        const glyph = model.glyph;
        if (glyph.properties.line_color) glyph.line_color = ink;
        if (glyph.properties.hatch_pattern) glyph.hatch_color = ink;
        if (glyph.type === "Scatter") {
          glyph.fill_color = model.name === "mark" ? style.getPropertyValue("--paper") : ink;
        }
      }
    }
  };
  const narrow = matchMedia("(max-width: 640px)");
  const crowd = () => {
    for (const model of models) {
      if (model.type === "DatetimeTicker") model.desired_num_ticks = narrow.matches ? 2 : 6;
    }
  };
  paint();
  crowd();
  narrow.addEventListener("change", crowd);
  dark.addEventListener("change", paint);
  addEventListener("beforeprint", paint);
  addEventListener("afterprint", paint);
  if (matchMedia("(pointer: coarse)").matches) {
    // A finger scrolls the page; the buttons zoom.
    for (const model of models) if (/^(BoxZoom|Pan)Tool$/.test(model.type)) model.active = false;
  }

  // What is shown of the lanes.
  const masks = [...models].filter((model) => model.name?.startsWith("mask-lanes"));
  const sources = masks.map((mask) => named(mask.name.replace("mask-", ""))[0]);
  const [range] = named("time");
  const first = range && [range.start, range.end];
  const task = document.getElementById("task");
  const worker = document.getElementById("worker");
  const shown = document.getElementById("shown");
  let span = null;

  const filter = () => {
    const wanted = task.value === "" ? null : Number(task.value);
    const all = wanted === null && worker.value === "";
    let count = 0;
    span = null;
    masks.forEach((mask, index) => {
      const data = sources[index].data;
      const keep = Array.from(data.task, (id, at) => {
        const process = data.worker[at];
        const place = process.replace(/\.\d+$/, "");
        const kept = (wanted === null || id === wanted)
          && (worker.value === "" || worker.value === process || worker.value === place);
        if (kept && !mask.name.endsWith("-zombies")) {
          count += 1;
          span = span
            ? [Math.min(span[0], data.claimed[at]), Math.max(span[1], data.lease_end[at])]
            : [data.claimed[at], data.lease_end[at]];
        }
        return kept;
      });
      mask.booleans = all ? null : keep;
    });
    shown.textContent = all ? "" : `${count} of ${shown.dataset.all} attempts`;
  };

  const zoom = (start, end) => {
    if (range) range.setv({ start: Math.max(first[0], start), end: Math.min(first[1], end) });
  };
  const middle = (factor) => {
    const half = (range.end - range.start) / 2 * factor, center = (range.start + range.end) / 2;
    zoom(center - half, center + half);
  };
  const move = (share) => {
    const width = range.end - range.start;
    const start = Math.min(Math.max(first[0], range.start + width * share), first[1] - width);
    zoom(start, start + width);
  };
  const actions = {
    in: () => middle(0.5), out: () => middle(2), left: () => move(-0.5), right: () => move(0.5),
    whole: () => zoom(...first),
    these: () => {
      if (!span) return zoom(...first);
      const margin = Math.max(5, (span[1] - span[0]) / 10);
      zoom(span[0] - margin, span[1] + margin);
    },
  };
  for (const button of document.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", actions[button.dataset.zoom]);
  }
  for (const box of document.querySelectorAll("input[data-hides]")) {
    box.addEventListener("change", () => {
      for (const model of named(box.dataset.hides)) model.visible = box.checked;
    });
  }
  task?.addEventListener("input", filter);
  worker?.addEventListener("change", filter);
  const follow = () => {
    const match = /^#task=(\d+)$/.exec(location.hash);
    if (!match || !task) return;
    task.value = match[1];
    worker.value = "";
    filter();
    actions.these();
    document.getElementById("lanes-heading").scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();

  // Milliseconds since the navigation began, for whoever waits for the figures or measures them.
  const drawn = () => { document.documentElement.dataset.drawn = performance.now(); };
  if (bokeh.is_idle) drawn();
  else bokeh.idle.connect(drawn);
})();
