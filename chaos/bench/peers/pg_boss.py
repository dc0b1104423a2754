"""pg-boss (npm); its program is npm/pg_boss.mjs."""

from __future__ import annotations

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Peer, Setting

PEER = Peer(
    name="pg-boss",
    runtime="npm",
    program="pg_boss.mjs",
    packages=("pg-boss",),
    settings=(
        Setting(DEFAULT, {}, "as it comes: one job every 2 s", most=12),
        Setting(
            BEST,
            {
                # Without burst it waits between batches however many jobs there are. Of batches of
                # 100 to 2000 and of 1, 2 and 4 loops these took the least CPU a job.
                "work": {
                    "batchSize": 1000,
                    "localConcurrency": 2,
                    "burstWhenBatchFull": True,
                    "pollingIntervalSeconds": 0.5,
                }
            },
            "batchSize=1000, localConcurrency=2, burstWhenBatchFull, pollingIntervalSeconds=0.5"
            " (docs/api/workers.md)",
        ),
    ),
    # As it comes, a worker takes one job every 2 s: at a higher rate jobs would wait for each
    # other.
    idle=(
        Setting(
            BEST,
            {
                "boss": {"useListenNotify": True},
                "queue": {"notify": True},
                "work": {
                    "batchSize": 1000,
                    "pollingIntervalSeconds": 0.5,
                    "notifyPollingIntervalSeconds": 0.5,
                },
            },
            "useListenNotify, notify, batchSize=1000, both polling intervals 0.5 s (docs/api:"
            " constructor.md, queues.md, workers.md); not measured as it comes: one job every 2 s",
        ),
    ),
    table="pgboss.job",
    open=(
        "select exists (select from pgboss.job where name = 'noop'"
        " and state in ('created', 'retry', 'active'))"
    ),
    checks=(
        Check(
            "select abs(count(*) - %(tasks)s) from pgboss.job"
            " where name = 'noop' and state = 'completed'",
            "{n} jobs too few or too many are completed",
        ),
        Check(
            "select count(*) from pgboss.job where name = 'noop' and retry_count <> 0",
            "{n} jobs were tried again",
        ),
    ),
)
