"""Procrastinate (PyPI: procrastinate)."""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import Rhythm, enqueueing, gate, in_rhythm_async, main
from chaos.bench.peers.tally import ran_async

CHUNK = 1_000  # jobs a call of batch_defer

PEER = Peer(
    name="procrastinate",
    runtime="python",
    program="chaos.bench.peers.procrastinate",
    packages=("procrastinate",),
    settings=(
        Setting(DEFAULT, {}, "as it comes: concurrency=1", most=2_000),
        Setting(
            BEST,
            # Short jobs "will need as many connections as your concurrency (plus one)".
            {"concurrency": 10, "pool": 11},
            "concurrency=10 (docs/howto/concurrency.md), pool of 11 (docs/discussions.md)",
            most=3_000,
        ),
    ),
    idle=(
        Setting(DEFAULT, {}, "as it comes: concurrency=1"),
        Setting(
            BEST,
            {"concurrency": 10, "pool": 11},
            "concurrency=10 (docs/howto/concurrency.md), pool of 11 (docs/discussions.md)",
        ),
    ),
    table="procrastinate_jobs",
    open=(
        "select (select 1 from procrastinate_jobs where status in ('todo', 'doing')"
        " order by id desc limit 1) is not null"
    ),
    checks=(
        Check(
            "select abs(count(*) - %(tasks)s) from procrastinate_jobs where status = 'succeeded'",
            "{n} jobs too few or too many have succeeded",
        ),
        Check(
            "select count(*) from procrastinate_jobs where attempts <> 1",
            "{n} jobs were not done by their first attempt",
        ),
        Check(
            "select count(*) from (select from procrastinate_events where type = 'started'"
            " group by job_id having count(*) > 1) as twice",
            "{n} jobs were started more than once",
        ),
    ),
)


def _app(url: str, pool: int | None) -> tuple[Any, Any]:
    """The application and its task."""
    from procrastinate import App, PsycopgConnector

    size = {} if pool is None else {"min_size": pool, "max_size": pool}
    app = App(connector=PsycopgConnector(conninfo=url, **size))
    return app, app.task(name="noop")(ran_async)


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue."""
    asyncio.run(_prepare(url, tasks))


async def _prepare(url: str, tasks: int) -> None:
    app, task = _app(url, None)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        with enqueueing():
            for first in range(0, tasks, CHUNK):
                await task.batch_defer_async(*[{} for _ in range(min(CHUNK, tasks - first))])


def enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    """One by one."""
    asyncio.run(_enqueue(url, rhythm))


async def _enqueue(url: str, rhythm: Rhythm) -> None:
    app, task = _app(url, None)
    async with app.open_async():
        async for sent in in_rhythm_async(rhythm):
            await task.defer_async(sent=sent)


def work(url: str, options: Any) -> None:
    """One worker; it handles SIGTERM by itself."""
    app, _ = _app(url, options.get("pool"))
    gate()
    given = {"concurrency": options["concurrency"]} if "concurrency" in options else {}
    app.run_worker(**given)


if __name__ == "__main__":
    main(prepare, work, enqueue)
