// pg-boss: what it is and how it is set stands in ../pg_boss.py.

import { PgBoss } from "pg-boss";
import { count, enqueueing, gate, main, onTerm, inRhythm } from "./bench.mjs";

const CHUNK = 10_000; // jobs a call of insert
const QUEUE = "noop";

async function started(connectionString, options) {
  const boss = new PgBoss({ connectionString, ...options.boss });
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

async function prepare(url, tasks, options) {
  const boss = await started(url, options);
  await boss.createQueue(QUEUE, options.queue);
  await enqueueing(async () => {
    for (let first = 0; first < tasks; first += CHUNK) {
      const size = Math.min(CHUNK, tasks - first);
      await boss.insert(QUEUE, Array.from({ length: size }, () => ({ data: {} })));
    }
  });
  await boss.stop();
}

async function enqueue(url, options, rhythm) {
  const boss = await started(url, options);
  for await (const sent of inRhythm(rhythm)) await boss.send(QUEUE, { sent });
  await boss.stop();
}

async function work(url, options) {
  gate();
  const boss = await started(url, options);
  onTerm(() => boss.stop());
  const handler = async (jobs) => jobs.forEach((job) => count(job.data.sent));
  if (options.work) await boss.work(QUEUE, options.work, handler);
  else await boss.work(QUEUE, handler);
}

await main(prepare, work, enqueue);
