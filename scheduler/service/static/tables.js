// Running tasks, and schedules with what may be done to them.

import { get, post } from "./api.js";
import { button, byId, cell, make, show } from "./dom.js";
import { time, until } from "./format.js";
import { failed, say } from "./messages.js";

const [TASKS, SCHEDULES] = [50, 100]; // shown at most

export function taskLink(id) {
  return make("a", { href: `#task=${id}` }, String(id));
}

export async function loadRunning() {
  const page = await get("/tasks", { status: "running", limit: TASKS });
  fill("running", page.tasks, page.next, (task) => task.id, running);
}

function running(task) {
  return make(
    "tr",
    {},
    make("th", { scope: "row" }, taskLink(task.id)),
    cell("Kind", task.kind),
    cell("Owner", make("code", {}, task.lease_owner)),
    cell("Attempt", `${task.attempts} of ${task.max_attempts}`),
    cell("Lease left", until(task.lease_expires_at, "expired")),
  );
}

export async function loadSchedules(may) {
  const page = await get("/schedules", { limit: SCHEDULES });
  const acts = may.scopes.includes("operate");
  byId("schedules").querySelector(".acts").hidden = !acts;
  fill("schedules", page.schedules, page.next, (it) => it.name, (it) => schedule(it, may, acts));
}

function schedule(it, may, acts) {
  const state = it.dead_task !== null && it.declared && !it.paused
    ? ["stopped by dead letter ", taskLink(it.dead_task)]
    : [it.state];
  if (it.live_task !== null) {
    state.push(", task ", taskLink(it.live_task), " under way");
  }
  const zone = it.timezone === "UTC" ? "" : ` (${it.timezone})`;
  const row = make(
    "tr",
    {},
    make("th", { scope: "row" }, it.name),
    cell("Kind", it.kind),
    cell("Rule", it.rule + zone),
    cell("Last", time(it.last_occurrence)),
    cell("Next", time(it.next_at)),
    cell("State", ...state),
  );
  if (acts) {
    const turn = it.paused ? "Resume" : "Pause";
    row.append(
      make(
        "td",
        { class: "acts" },
        button(turn, `${turn} ${it.name}`, () => change(it, turn.toLowerCase(), may)),
        it.declared ? button("Run now", `Run ${it.name} now`, () => run(it, may)) : null,
      ),
    );
  }
  return row;
}

async function change(it, act, may) {
  try {
    const { state } = await post(`/schedules/${encodeURIComponent(it.name)}/${act}`);
    say(`Schedule ${it.name} is ${state}.`);
  } catch (error) {
    failed(error);
  }
  await loadSchedules(may).catch(failed);
}

async function run(it, may) {
  try {
    const { id, created } = await post(`/schedules/${encodeURIComponent(it.name)}/run`);
    say(created ? `${it.name} runs now, as task ${id}.` : `${it.name} is under way: task ${id}.`);
  } catch (error) {
    failed(error);
  }
  await loadSchedules(may).catch(failed);
}

function fill(section, items, next, keyOf, render) {
  const here = byId(section);
  show(here.querySelector("tbody"), items, keyOf, render, byId(`${section}-title`));
  here.classList.toggle("none", items.length === 0);
  here.querySelector(".more").hidden = next === null;
}
