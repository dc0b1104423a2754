"""graphile-worker (npm); its program is npm/graphile_worker.mjs."""

from __future__ import annotations

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Peer, Setting

_POOL = {"concurrentJobs": 24, "maxPoolSize": 25}
_BATCHES = {"completeJobBatchDelay": 0, "failJobBatchDelay": 0}
_QUEUE = {"localQueue": {"size": 500}}
_QUIET = {"NO_LOG_SUCCESS": "1"}

PEER = Peer(
    name="graphile-worker",
    runtime="npm",
    program="graphile_worker.mjs",
    packages=("graphile-worker",),
    settings=(
        Setting(DEFAULT, {}, "as it comes: concurrency 1, logs every job", most=5_000),
        Setting(
            BEST,
            {"worker": {**_POOL, **_QUEUE, **_BATCHES}, "env": _QUIET},
            "concurrentJobs=24, maxPoolSize=25, localQueue.size=500, completeJobBatchDelay=0,"
            " failJobBatchDelay=0, NO_LOG_SUCCESS (documentation, `Performance`, and its perfTest)",
        ),
    ),
    idle=(
        Setting(DEFAULT, {}, "as it comes: concurrency 1, logs every job"),
        Setting(
            BEST,
            {"worker": {**_POOL, **_BATCHES}, "env": _QUIET},
            "concurrentJobs=24, maxPoolSize=25, completeJobBatchDelay=0, failJobBatchDelay=0,"
            " NO_LOG_SUCCESS, no localQueue (documentation, `Performance`: to start jobs at once)",
        ),
        # The latency that its documentation gives is with these.
        Setting(
            "batching",
            {"worker": {**_POOL, **_QUEUE, **_BATCHES}, "env": _QUIET},
            "with localQueue.size=500, too (documentation, `Performance`, quick stats)",
        ),
    ),
    table="graphile_worker._private_jobs",
    # The job that was enqueued last is done last or nearly: a look from that end finds it at once.
    open=(
        "select (select 1 from graphile_worker._private_jobs order by id desc limit 1) is not null"
    ),
    # A job that is done is deleted, so only the handlers' count says more.
    checks=(Check("select count(*) from graphile_worker._private_jobs", "{n} jobs are not done"),),
)
