// Dead letters with their errors: requeued one by one, or all of a kind.

import { get, post } from "./api.js";
import { button, byId, make, show } from "./dom.js";
import { time } from "./format.js";
import { failed, say } from "./messages.js";
import { taskLink } from "./tables.js";

const [FEW, MANY] = [10, 100]; // shown at most: as the page opens, and when somebody asks for more

let shown = FEW;

export async function loadLetters(may) {
  const kind = byId("dead-kind").value || undefined;
  const operator = may.scopes.includes("operate");
  const page = operator
    ? await get("/dead-letters", { kind, limit: shown })
    : await get("/tasks", { status: "dead", kind, limit: shown });
  const letters = page.dead_letters ?? page.tasks;
  const title = byId("dead-title");
  show(byId("letters"), letters, (it) => it.id, (it) => letter(it, may, operator), title);
  byId("dead").classList.toggle("none", letters.length === 0);
  byId("more-letters").hidden = page.next === null || shown === MANY;
  byId("dead").querySelector(".more").hidden = page.next === null || shown === FEW;
  byId("requeue-kind").hidden = !(operator && kind && letters.length);
}

function letter(it, may, operator) {
  return make(
    "li",
    {},
    make(
      "div",
      { class: "line" },
      make("strong", {}, taskLink(it.id), " ", it.kind),
      make("span", { class: "quiet" }, `${it.attempts} attempts, died `, time(it.finished_at)),
      operator ? button("Requeue", `Requeue task ${it.id}`, () => requeue(it.id, may)) : null,
    ),
    make("pre", { class: "clamp" }, it.last_error.replace(/\n\s*\n/g, "\n")),
  );
}

async function requeue(id, may) {
  await settle("requeue", id, "is back in the queue");
  await loadLetters(may).catch(failed);
}

// Requeue or discard one; whether it was done.
export async function settle(act, id, words) {
  try {
    const { ids } = await post(`/dead-letters/${act}`, { ids: [id] });
    say(
      ids.length
        ? `Task ${id} ${words}.`
        : `Task ${id} was left alone: it is no dead letter any more, or another has its key.`,
    );
    return ids.length > 0;
  } catch (error) {
    failed(error);
    return false;
  }
}

export async function moreLetters(may) {
  shown = MANY;
  await loadLetters(may).catch(failed);
  byId("letters").children[FEW]?.querySelector("a").focus();
}

// All of the kind that is looked at, a thousand at a time.
export async function requeueKind(may) {
  const kind = byId("dead-kind").value;
  let done = 0;
  try {
    for (let more = true; more; ) {
      const answer = await post("/dead-letters/requeue", { kind });
      done += answer.ids.length;
      more = answer.more;
    }
    say(`Requeued ${done} of kind ${kind}.`);
  } catch (error) {
    failed(error);
  }
  await loadLetters(may).catch(failed);
  byId("dead-title").focus();
}
