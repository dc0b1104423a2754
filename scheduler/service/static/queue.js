// The queue in numbers: totals, the last hour, and each kind.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { byId, cell, make, show } from "./dom.js";
import { number, seconds } from "./format.js";

const WORK = [
  { name: "completed", class: "good", value: (minute) => minute.completed },
  { name: "put off", class: "calm", value: (minute) => minute.other },
  { name: "failed", class: "poor", value: (minute) => minute.failed },
  { name: "lost lease", class: "worse", value: (minute) => minute.reclaimed },
];
const WAITS = [
  { name: "longest", class: "faint", value: (minute) => minute.longest_wait_seconds },
  { name: "median", class: "plain", value: (minute) => minute.wait_seconds },
];

let drawn = "";

export async function loadQueue(may) {
  const [status, hour] = await Promise.all([
    get("/status"),
    may.kinds === null ? get("/throughput") : null, // which is of all kinds
  ]);
  totals(status);
  const kinds = [...status.kinds].sort((one, other) => one.kind.localeCompare(other.kind));
  show(byId("kinds").tBodies[0], kinds, (it) => it.kind, row);
  byId("queue").classList.toggle("none", kinds.length === 0);
  offer(kinds.filter((it) => it.dead > 0).map((it) => it.kind));
  if (hour !== null) {
    charts(hour.minutes);
  }
}

// A number that is estimated says so.
function amount(value, estimated) {
  return (estimated ? "about " : "") + number(value);
}

function totals(status) {
  const sum = (field) => status.kinds.reduce((total, kind) => total + kind[field], 0);
  const about = (field) => status.kinds.some((kind) => kind[`${field}_estimated`]);
  const oldest = status.oldest_due_seconds;
  const shown = [
    ["Waiting", amount(sum("pending"), about("pending")), ""],
    ["Due now", amount(sum("due"), about("due")), ""],
    ["Oldest due", oldest === null ? "none" : seconds(oldest), oldest > 60 ? "bad" : ""],
    ["Running", number(sum("running")), ""],
    ["Expired leases", number(sum("expired")), sum("expired") ? "bad" : ""],
    ["Dead letters", amount(sum("dead"), about("dead")), sum("dead") ? "bad" : ""],
  ];
  byId("totals").replaceChildren(
    ...shown.map(([name, value, look]) =>
      make("div", { class: "card" }, make("dt", {}, name), make("dd", { class: look }, value)),
    ),
  );
}

function row(kind) {
  const count = (label, field) => cell(label, amount(kind[field], kind[`${field}_estimated`]));
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, kind.kind),
    count("Waiting", "pending"),
    count("Due", "due"),
    count("Running", "running"),
    count("Expired", "expired"),
    count("Dead", "dead"),
    cell("Longest wait", kind.oldest_due_seconds === null ? "–" : seconds(kind.oldest_due_seconds)),
  );
}

function charts(minutes) {
  const text = JSON.stringify(minutes);
  // A table that somebody has opened to read is not taken away.
  if (text === drawn || byId("charts").querySelector("details[open]")) {
    return;
  }
  drawn = text;
  const sum = (field) => minutes.reduce((total, minute) => total + minute[field], 0);
  const waits = minutes.map((it) => it.longest_wait_seconds).filter((it) => it !== null);
  byId("charts").replaceChildren(
    chart({
      title: "Attempts a minute",
      summary: `In the last hour ${number(sum("completed"))} completed, ${number(sum("failed"))}`
        + ` failed, ${number(sum("reclaimed"))} lost their lease.`,
      minutes,
      parts: WORK,
      overlaid: false,
      words: number,
    }),
    chart({
      title: "Wait from due to claimed",
      summary: waits.length ? `The longest was ${seconds(Math.max(...waits))}.` : "None completed.",
      minutes,
      parts: WAITS,
      overlaid: true,
      words: seconds,
    }),
  );
}

// The kinds that the dead letters can be narrowed to.
function offer(kinds) {
  const select = byId("dead-kind");
  const wanted = ["", ...kinds];
  if (select.value && !kinds.includes(select.value)) {
    wanted.push(select.value); // what somebody looks at stays
  }
  if (wanted.join() !== [...select.options].map((option) => option.value).join()) {
    const chosen = select.value;
    select.replaceChildren(
      ...wanted.map((kind) => make("option", { value: kind }, kind || "all")),
    );
    select.value = chosen;
  }
}
