// Asks the API, with the token that this tab has.

const KEY = "leaseproof-token";
const PREFIX = "#token=";

// How far this machine's clock is behind the server's, in milliseconds. Answers say the time in whole
// seconds, so clocks that are about the same are taken for the same.
let behind = 0;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.status = status;
  }
}

// The token: from the link that `scheduler dev` prints, else the one this tab had. The fragment of a
// link is not sent to any server; it is taken out of the address at once, and so out of the history.
export function givenToken() {
  if (location.hash.startsWith(PREFIX)) {
    const token = location.hash.slice(PREFIX.length);
    if (/^lpt_[A-Za-z0-9_-]{43}$/.test(token)) {
      keepToken(token);
    }
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

export function now() {
  return Date.now() + behind;
}

// As `get`, with the payload as text, its numbers as they are: read, large ones would be rounded.
export async function getTask(id) {
  const text = await ask("GET", `/tasks/${id}`);
  const exact = (key, value, context) =>
    typeof value === "number" && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  const payload = JSON.stringify(JSON.parse(text, exact).payload, null, 2);
  return { ...JSON.parse(text), payload };
}

export async function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  const query = new URLSearchParams(given).toString();
  return JSON.parse(await ask("GET", query ? `${path}?${query}` : path));
}

export async function post(path, body) {
  return JSON.parse(await ask("POST", path, body));
}

async function ask(method, path, body) {
  const token = sessionStorage.getItem(KEY);
  const headers = { Authorization: `Bearer ${token}` };
  const request = { method, headers, cache: "no-store", redirect: "error" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, request);
  } catch {
    throw new Refused(0, { detail: "the server does not answer" });
  }
  const date = Date.parse(answer.headers.get("Date"));
  if (date) {
    const apart = date + 500 - Date.now();
    behind = Math.abs(apart) < 2000 ? 0 : apart;
  }
  const text = await answer.text();
  if (sessionStorage.getItem(KEY) !== token) {
    return new Promise(() => {}); // signed out meanwhile: what one may see, the next may not
  }
  if (!answer.ok) {
    throw new Refused(answer.status, problemIn(text));
  }
  return text;
}

function problemIn(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
