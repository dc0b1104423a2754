// What the page tells whoever looks at it, read out by screen readers.

import { byId } from "./dom.js";

export function say(text) {
  told(text, false);
}

export function failed(error) {
  told(`That did not work: ${error.message}.`, true);
}

function told(text, bad) {
  const place = byId("message");
  place.textContent = text;
  place.classList.toggle("bad", bad);
}
