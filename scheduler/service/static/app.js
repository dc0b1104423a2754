// The page: who looks, what they may see, and looking again every few seconds.

import { forgetToken, get, givenToken, keepToken } from "./api.js";
import { byId } from "./dom.js";
import { loadLetters, moreLetters, requeueKind } from "./letters.js";
import { failed, say } from "./messages.js";
import { loadQueue } from "./queue.js";
import { loadRunning, loadSchedules } from "./tables.js";
import { showTask } from "./timeline.js";

const EVERY = 5000; // milliseconds

// The sections, the scopes of which one is needed, and what fills each.
const SECTIONS = [
  ["queue", ["metrics"], loadQueue],
  ["dead", ["operate", "read"], loadLetters],
  ["running", ["read"], loadRunning],
  ["schedules", ["read"], loadSchedules],
];

let may = null; // what the token may do
let timer = 0;
let lost = false; // whether the last look failed

async function enter() {
  may = null;
  if (givenToken() === null) {
    leave("");
    return;
  }
  try {
    may = await get("/token");
  } catch (error) {
    if (error.status === 401) {
      forgetToken();
      leave("The server does not know this token.");
    } else {
      leave(`${error.message}: load the page again in a moment.`);
    }
    return;
  }
  const has = (scopes) => scopes.some((scope) => may.scopes.includes(scope));
  for (const [id, scopes] of SECTIONS) {
    byId(id).hidden = !has(scopes);
  }
  byId("who").textContent = `${may.name} (${may.scopes.join(", ")})`;
  byId("find").hidden = !has(["read"]);
  seen(true);
  if (!SECTIONS.some(([, scopes]) => has(scopes))) {
    say(`This token may ${may.scopes.join(" and ")}, but look at nothing here.`);
  }
  await look();
  openTask();
}

function leave(why) {
  clearTimeout(timer);
  may = null;
  seen(false);
  byId("task").close();
  byId("task-body").replaceChildren();
  document.querySelectorAll("#board tbody, #letters, #totals, #charts").forEach((it) => {
    it.replaceChildren(); // what one may see, the next may not
  });
  say(why);
  byId("token").value = "";
  byId("token").focus();
}

function seen(board) {
  for (const id of ["board", "leave", "who"]) {
    byId(id).hidden = !board;
  }
  byId("enter").hidden = board;
  byId("board").setAttribute("aria-busy", "true"); // until it has been filled
  if (!board) {
    byId("find").hidden = true;
  }
}

async function look() {
  clearTimeout(timer);
  if (may === null) {
    return;
  }
  const looker = may;
  if (!document.hidden) {
    const loads = SECTIONS.filter(([id]) => !byId(id).hidden).map(([, , load]) => load(looker));
    const bad = (await Promise.allSettled(loads)).find((it) => it.status === "rejected")?.reason;
    if (may !== looker) {
      return; // signed out meanwhile
    }
    byId("board").setAttribute("aria-busy", "false");
    if (bad?.status === 401) {
      forgetToken();
      leave("The token is not valid any more.");
      return;
    }
    if (bad) {
      lost = true;
      failed(bad);
    } else if (lost) {
      lost = false;
      say("The server answers again.");
    }
  }
  timer = setTimeout(look, EVERY);
}

function openTask() {
  const id = /^#task=([0-9]{1,19})$/.exec(location.hash)?.[1];
  if (id && may?.scopes.includes("read")) {
    showTask(id, may);
  }
}

byId("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  say("");
  enter();
});
byId("leave").addEventListener("click", () => {
  forgetToken();
  leave("Signed out.");
});
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = `#task=${byId("number").value}`;
});
byId("dead-kind").addEventListener("change", () => loadLetters(may).catch(failed));
byId("more-letters").addEventListener("click", () => moreLetters(may));
byId("requeue-kind").addEventListener("click", () => requeueKind(may));
byId("task").addEventListener("close", () => {
  history.replaceState(null, "", location.pathname);
  look();
});
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    enter();
  } else {
    openTask();
  }
});
document.addEventListener("visibilitychange", look);

enter();
