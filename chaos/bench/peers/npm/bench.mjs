// The command line of a system's program in JavaScript, the gate before its workers, the count of
// handlers, and the clock around the enqueues and between them: what program.py and tally.py are for
// Python.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const directory = process.env.LEASEPROOF_BENCH_DIRECTORY;
let began = 0;
let ran = 0;
const starts = [];

// The clock of time.monotonic_ns in Python.
const clock = () => process.hrtime.bigint();

/** Count one run of a handler. The first call begins the drain. sent: when the job was about to be
 * enqueued, if it says so. */
export function count(sent) {
  if (sent !== undefined) starts.push(BigInt(sent), clock());
  if (ran === 0) began = Date.now() / 1000;
  ran += 1;
}

/** Write what was counted, as tally.py reads it. */
export function writeTally() {
  const tally = Buffer.alloc(16);
  tally.writeDoubleLE(began, 0);
  tally.writeBigUInt64LE(BigInt(ran), 8);
  if (ran > 0) writeFileSync(join(directory, `${process.pid}.tally`), tally);
  const pairs = Buffer.alloc(8 * starts.length);
  starts.forEach((at, index) => pairs.writeBigInt64LE(at, 8 * index));
  writeFileSync(join(directory, `${process.pid}.starts`), pairs);
}

/** Run what enqueues all jobs, in `prepare`, and say how many seconds it took. */
export async function enqueueing(body) {
  const began = performance.now();
  await body();
  console.log(`enqueued in ${(performance.now() - began) / 1000}`);
}

/** In `enqueue`, when the client has connected: the clock just before each call, when that is due.
 * The end of the loop says how long the calls took. */
export async function* inRhythm({ warm, tasks, rate }) {
  const began = performance.now();
  let counted = began;
  for (let number = 0; number < warm + tasks; number += 1) {
    const now = performance.now();
    if (number === warm) counted = now;
    const wait = rate > 0 ? began + (1000 * number) / rate - now : 0;
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    yield Number(clock());
  }
  console.log(`enqueued in ${(performance.now() - counted) / 1000}`);
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

/** `prepare URL OPTIONS TASKS`, `work URL OPTIONS` or `enqueue URL OPTIONS WARM TASKS RATE`; OPTIONS
 * is JSON. */
export async function main(prepare, work, enqueue) {
  const [what, url, options, ...rest] = process.argv.slice(2);
  const [first, tasks, rate] = rest.map(Number);
  if (what === "prepare") await prepare(url, first, JSON.parse(options));
  else if (what === "enqueue") await enqueue(url, JSON.parse(options), { warm: first, tasks, rate });
  else await work(url, JSON.parse(options));
}
