// Numbers, times and durations for people; durations that go on, once a second.

import { now } from "./api.js";
import { make } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium" });

export function number(value) {
  return NUMBER.format(value);
}

export function seconds(value) {
  if (value < 1) {
    return `${Math.round(value * 1000)} ms`;
  }
  if (value < 10) {
    return `${value.toFixed(1)} s`;
  }
  const whole = Math.round(value);
  const [days, hours, minutes] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60];
  const parts = [
    [Math.floor(days), "d"],
    [Math.floor(hours), "h"],
    [Math.floor(minutes), "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  return parts.slice(first, first + 2).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
}

// A time of day, with its date unless that is today's; complete and in UTC to machines.
export function time(text) {
  if (text === null) {
    return "never";
  }
  const at = new Date(text);
  const today = DAY.format(at) === DAY.format(new Date(now()));
  const words = today ? CLOCK.format(at) : `${DAY.format(at)}, ${CLOCK.format(at)}`;
  return make("time", { datetime: text, title: text }, words);
}

export function clock(text) {
  return CLOCK.format(new Date(text)).slice(0, 5);
}

// How long until a time, counted down; `over` is what it says after.
export function until(text, over) {
  const made = make("time", { datetime: text, title: text, "data-until": text, "data-over": over });
  count(made);
  return made;
}

function count(made) {
  const left = (Date.parse(made.dataset.until) - now()) / 1000;
  // Whole seconds: the server's clock is known no better.
  const words = left > 0 ? seconds(Math.max(1, Math.round(left))).replace(".0", "") : made.dataset.over;
  if (made.textContent !== words) {
    made.textContent = words;
    made.classList.toggle("bad", left <= 0);
  }
}

setInterval(() => document.querySelectorAll("[data-until]").forEach(count), 1000);
