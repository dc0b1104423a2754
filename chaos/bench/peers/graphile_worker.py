"""graphile-worker (npm); its program is npm/graphile_worker.mjs."""

from __future__ import annotations

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Peer, Setting

PEER = Peer(
    name="graphile-worker",
    runtime="npm",
    program="graphile_worker.mjs",
    packages=("graphile-worker",),
    settings=(
        Setting(DEFAULT, {}, "as it comes: concurrency 1, logs every job", most=5_000),
        Setting(
            BEST,
            {
                "worker": {
                    "concurrentJobs": 24,
                    "maxPoolSize": 25,
                    "localQueue": {"size": 500},
                    "completeJobBatchDelay": 0,
                    "failJobBatchDelay": 0,
                },
                "env": {"NO_LOG_SUCCESS": "1"},
            },
            "concurrentJobs=24, maxPoolSize=25, localQueue.size=500, completeJobBatchDelay=0,"
            " failJobBatchDelay=0, NO_LOG_SUCCESS (documentation, `Performance`, and its perfTest)",
        ),
    ),
    # The job that was enqueued last is done last or nearly: a look from that end finds it at once.
    open=(
        "select (select 1 from graphile_worker._private_jobs order by id desc limit 1) is not null"
    ),
    # A job that is done is deleted, so only the handlers' count says more.
    checks=(Check("select count(*) from graphile_worker._private_jobs", "{n} jobs are not done"),),
)
