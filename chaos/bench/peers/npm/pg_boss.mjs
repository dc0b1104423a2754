// pg-boss: what it is and how it is set stands in ../pg_boss.py.

import { PgBoss } from "pg-boss";
import { count, enqueueing, gate, main, onTerm } from "./bench.mjs";

const CHUNK = 10_000; // jobs a call of insert
const QUEUE = "noop";

async function prepare(url, tasks) {
  const boss = new PgBoss(url);
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue(QUEUE);
  await enqueueing(async () => {
    for (let first = 0; first < tasks; first += CHUNK) {
      const size = Math.min(CHUNK, tasks - first);
      await boss.insert(QUEUE, Array.from({ length: size }, () => ({ data: {} })));
    }
  });
  await boss.stop();
}

async function work(url, options) {
  gate();
  const boss = new PgBoss(url);
  boss.on("error", console.error);
  await boss.start();
  onTerm(() => boss.stop());
  const handler = async (jobs) => jobs.forEach(() => count());
  if (options.work) await boss.work(QUEUE, options.work, handler);
  else await boss.work(QUEUE, handler);
}

await main(prepare, work);
