// One task: what it is, and what happened to it in order.

import { get, getTask, post } from "./api.js";
import { button, byId, make } from "./dom.js";
import { seconds, time, until } from "./format.js";
import { settle } from "./letters.js";
import { failed, say } from "./messages.js";

const LOOKS = {
  completed: "good",
  failed: "poor",
  reclaimed: "worse",
  released: "calm",
  snoozed: "calm",
  cancelled: "calm",
};
const RUNS = 100;

export async function showTask(id, may) {
  const dialog = byId("task");
  try {
    const [task, page] = await Promise.all([
      getTask(id),
      get(`/tasks/${id}/runs`, { limit: RUNS }),
    ]);
    byId("task-title").textContent = `Task ${task.id}: ${task.kind}`;
    const parts = [
      facts(task),
      acts(task, may),
      make("h3", {}, "Timeline"),
      timeline(task, page),
      make("h3", {}, "Payload"),
      make("pre", { tabindex: "0", role: "region", "aria-label": "Payload" }, task.payload),
      JSON.rawJSON ? null : make("p", { class: "quiet" }, "This browser rounds large numbers."),
    ];
    byId("task-body").replaceChildren(...parts.filter((part) => part !== null));
    if (!dialog.open) {
      dialog.showModal();
    }
  } catch (error) {
    dialog.close();
    failed(error);
  }
}

function facts(task) {
  const shown = [
    ["Status", task.status],
    ["Queue", task.queue],
    ["Source", task.source],
    ["Priority", ["low", "normal", "high", "urgent"][task.priority]],
    ["Attempts", `${task.attempts} of ${task.max_attempts}`],
    ["Token", String(task.lease_token)],
    ["Unique key", task.unique_key],
  ].filter(([, value]) => value !== null);
  return make(
    "dl",
    { class: "facts" },
    ...shown.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}

function acts(task, may) {
  const can = (scope) => may.scopes.includes(scope);
  const made = [];
  const settled = (act, words) => async () => {
    await settle(act, task.id, words);
    await showTask(task.id, may);
  };
  if (task.status === "dead" && can("operate")) {
    const discard = settled("discard", "is discarded for good");
    made.push(
      button("Requeue", `Requeue task ${task.id}`, settled("requeue", "is back in the queue")),
      twice("Discard", `Discard task ${task.id}`, "Discard for good?", discard),
    );
  }
  if (["pending", "running"].includes(task.status) && can("cancel")) {
    made.push(twice("Cancel", `Cancel task ${task.id}`, "Cancel it?", () => cancel(task.id, may)));
  }
  return made.length ? make("p", { class: "acts" }, ...made) : null;
}

// A button that asks once more before it acts.
function twice(text, label, question, act) {
  let asked = false;
  return button(text, label, async (made) => {
    if (asked) {
      await act();
      return;
    }
    asked = true;
    made.textContent = question;
    made.setAttribute("aria-label", `${label}: press once more`);
    made.classList.add("danger");
  });
}

async function cancel(id, may) {
  try {
    await post(`/tasks/${id}/cancel`);
    say(`Task ${id} is cancelled.`);
  } catch (error) {
    failed(error);
  }
  await showTask(id, may);
}

function timeline(task, page) {
  const steps = [step("calm", "enqueued", task.enqueued_at), ...page.runs.map(attempt)];
  if (page.next !== null) {
    steps.push(make("li", { class: "calm" }, `There are more than these ${RUNS} attempts.`));
  } else if (task.status === "running") {
    const lease = ["held by ", make("code", {}, task.lease_owner), ", lease left: "];
    steps.push(
      step("plain", `attempt ${task.attempts} runs`, null, ...lease,
        until(task.lease_expires_at, "expired")),
    );
  } else if (task.status === "pending") {
    steps.push(step("plain", "due", task.next_run_at));
  } else if (task.status !== "completed") {
    const look = task.status === "dead" ? "worse" : "calm";
    steps.push(step(look, task.status, task.finished_at));
  }
  return make("ol", { class: "timeline" }, ...steps);
}

function attempt(run) {
  const took = (Date.parse(run.finished_at) - Date.parse(run.claimed_at)) / 1000;
  const made = step(
    LOOKS[run.outcome],
    `attempt ${run.attempt} ${run.outcome}`,
    run.finished_at,
    `held for ${seconds(took)} by `,
    make("code", {}, run.lease_owner),
    `, token ${run.lease_token}`,
  );
  if (run.error !== null) {
    const label = `Error of attempt ${run.attempt}`;
    made.append(make("pre", { tabindex: "0", role: "region", "aria-label": label }, run.error));
  }
  return made;
}

function step(look, what, at, ...more) {
  return make(
    "li",
    { class: look },
    make("strong", {}, what),
    at === null ? null : " ",
    at === null ? null : time(at),
    more.length ? make("p", { class: "quiet" }, ...more) : null,
  );
}
