// The command line of a system's program in JavaScript, the gate before its workers, and the count
// of handlers, and the clock around the enqueue: what program.py and tally.py are for Python.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const directory = process.env.LEASEPROOF_BENCH_DIRECTORY;
let began = 0;
let ran = 0;

/** Count one run of a handler. The first call begins the drain. */
export function count() {
  if (ran === 0) began = Date.now() / 1000;
  ran += 1;
}

/** Write what was counted, as tally.py reads it. */
export function writeTally() {
  const tally = Buffer.alloc(16);
  tally.writeDoubleLE(began, 0);
  tally.writeBigUInt64LE(BigInt(ran), 8);
  if (ran > 0) writeFileSync(join(directory, `${process.pid}.tally`), tally);
}

/** Run what enqueues all jobs, in `prepare`, and say how many seconds it took. */
export async function enqueueing(body) {
  const began = performance.now();
  await body();
  console.log(`enqueued in ${(performance.now() - began) / 1000}`);
}

/** Say that all code is loaded, and wait until the bench lets everyone go. */
export function gate() {
  writeFileSync(join(directory, `${process.pid}.ready`), "");
  readFileSync(0); // until the other end of its standard input is closed
}

/** On SIGTERM: stop, write the tally, and end. */
export function onTerm(stop) {
  process.once("SIGTERM", async () => {
    await stop();
    writeTally();
    process.exit(0);
  });
}

/** `prepare URL OPTIONS TASKS` or `work URL OPTIONS`; OPTIONS is JSON. */
export async function main(prepare, work) {
  const [what, url, options, tasks] = process.argv.slice(2);
  if (what === "prepare") await prepare(url, Number(tasks), JSON.parse(options));
  else await work(url, JSON.parse(options));
}
