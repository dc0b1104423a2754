"""PgQueuer (PyPI: pgqueuer), over asyncpg, the driver of its quick start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import Rhythm, enqueueing, gate, in_rhythm_async, main
from chaos.bench.peers.tally import ran

ENTRYPOINT = "noop"
CHUNK = 1_000  # jobs a call of enqueue

PEER = Peer(
    name="pgqueuer",
    runtime="python",
    program="chaos.bench.peers.pgqueuer",
    packages=("pgqueuer", "asyncpg", "uvloop"),
    settings=(
        Setting(DEFAULT, {}, "as `pgq run` does it: batch_size=10, asyncpg, uvloop"),
        Setting(
            BEST,
            # "Increase batch_size when jobs are short-lived", `pgq autovac` after the installation,
            # and one direct connection of asyncpg for the manager. Of 100, 300, 500 and 1000 the
            # last took the least CPU a job. Its durability stays `durable`, the default.
            {"batch_size": 1000, "autovac": True},
            "batch_size=1000, asyncpg, uvloop, `pgq autovac` (docs/guides/performance-tuning.md)",
        ),
    ),
    # Its documentation names nothing that makes a job start sooner.
    idle=(Setting(DEFAULT, {}, "as `pgq run` does it: asyncpg, uvloop"),),
    table="pgqueuer",
    # The job that was enqueued last is done last or nearly: a look from that end finds it at once.
    open="select (select 1 from pgqueuer order by id desc limit 1) is not null",
    checks=(
        Check("select count(*) from pgqueuer", "{n} jobs are still in the queue"),
        Check(
            "select abs(count(*) - %(tasks)s) from pgqueuer_log where status = 'successful'",
            "{n} jobs too few or too many are logged as successful",
        ),
        Check(
            "select count(*) from (select from pgqueuer_log where status = 'successful'"
            " group by job_id having count(*) > 1) as twice",
            "{n} jobs are logged as successful more than once",
        ),
        Check(
            "select count(*) from pgqueuer_log"
            " where status not in ('queued', 'picked', 'successful')",
            "{n} rows of the log say that a job failed or was cancelled",
        ),
    ),
)


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue."""
    import uvloop

    uvloop.run(_prepare(url, tasks, options))


async def _prepare(url: str, tasks: int, options: Options) -> None:
    import asyncpg
    from pgqueuer import Queries

    connection = await asyncpg.connect(url)
    try:
        queries = Queries.from_asyncpg_connection(connection)
        await queries.install()
        if options.get("autovac"):
            await queries.optimize_autovacuum()
        with enqueueing():
            for first in range(0, tasks, CHUNK):
                size = min(CHUNK, tasks - first)
                await queries.enqueue([ENTRYPOINT] * size, [None] * size, [0] * size)
    finally:
        await connection.close()


def enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    """One by one. Its driver is not in a transaction, so each call is a commit."""
    import uvloop

    uvloop.run(_enqueue(url, rhythm))


async def _enqueue(url: str, rhythm: Rhythm) -> None:
    import asyncpg
    from pgqueuer import Queries

    connection = await asyncpg.connect(url)
    try:
        queries = Queries.from_asyncpg_connection(connection)
        async for sent in in_rhythm_async(rhythm):
            await queries.enqueue(ENTRYPOINT, str(sent).encode())
    finally:
        await connection.close()


def work(url: str, options: Any) -> None:
    """One worker, as `pgq run` starts it."""
    import asyncpg
    import pgqueuer
    import uvloop

    @asynccontextmanager
    async def manager() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(url)
        try:
            made = pgqueuer.PgQueuer.from_asyncpg_connection(connection)
            made.entrypoint(ENTRYPOINT)(_noop)
            yield made
        finally:
            await connection.close()

    run = partial(pgqueuer.run, manager)
    gate()
    batch = {"batch_size": options["batch_size"]} if "batch_size" in options else {}
    uvloop.run(run(**batch))


async def _noop(job: Any) -> None:
    ran(None if job.payload is None else int(job.payload))


if __name__ == "__main__":
    main(prepare, work, enqueue)
