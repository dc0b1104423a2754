// graphile-worker: what it is and how it is set stands in ../graphile_worker.py.

import { makeWorkerUtils, run } from "graphile-worker";
import { count, enqueueing, gate, main, onTerm, inRhythm } from "./bench.mjs";

const CHUNK = 10_000; // jobs a call of addJobs

async function prepare(connectionString, tasks) {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.migrate();
  await enqueueing(async () => {
    for (let first = 0; first < tasks; first += CHUNK) {
      const size = Math.min(CHUNK, tasks - first);
      const jobs = Array.from({ length: size }, () => ({ identifier: "noop", payload: {} }));
      await utils.addJobs(jobs);
    }
  });
  await utils.release();
}

async function enqueue(connectionString, options, rhythm) {
  const utils = await makeWorkerUtils({ connectionString });
  for await (const sent of inRhythm(rhythm)) await utils.addJob("noop", { sent });
  await utils.release();
}

async function work(connectionString, options) {
  gate();
  const runner = await run({
    ...(options.worker ? { preset: { worker: { connectionString, ...options.worker } } }
      : { connectionString }),
    taskList: { noop: async (payload) => count(payload.sent) },
    noHandleSignals: true, // onTerm does, so that the tally is written
  });
  onTerm(() => runner.stop());
}

await main(prepare, work, enqueue);
