"""Absurd (PyPI: absurd-sdk, and its schema from absurdctl)."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import psycopg

from chaos.bench.peers.peer import BEST, DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import Rhythm, enqueueing, gate, in_rhythm, main
from chaos.bench.peers.tally import ran

QUEUE, TASK = "default", "noop"

PEER = Peer(
    name="absurd",
    runtime="python",
    program="chaos.bench.peers.absurd",
    packages=("absurd-sdk", "absurdctl"),
    settings=(
        Setting(DEFAULT, {}, "as it comes: concurrency=1", most=1_500),
        Setting(
            BEST,
            {"concurrency": 10, "batch_size": 100},
            "asynchronous worker, concurrency=10, batch_size=100 (docs/sdks/python.md)",
            most=5_000,
        ),
    ),
    idle=(
        Setting(DEFAULT, {}, "as it comes: asks for tasks every 0.25 s"),
        Setting(
            BEST,
            {"concurrency": 10, "poll_interval": 0.01},
            "asynchronous worker, concurrency=10, poll_interval=0.01 (docs/sdks/python.md)",
        ),
    ),
    table="absurd.t_default",
    # Its index begins with the state.
    open=(
        "select exists (select from absurd.r_default"
        " where state in ('pending', 'running', 'sleeping'))"
    ),
    checks=(
        Check(
            "select abs(count(*) - %(tasks)s) from absurd.t_default where state = 'completed'",
            "{n} tasks too few or too many are completed",
        ),
        Check(
            "select abs(count(*) - %(tasks)s) from absurd.r_default where state = 'completed'",
            "{n} runs too few or too many are completed",
        ),
        Check(
            "select count(*) from absurd.t_default where attempts <> 1",
            "{n} tasks were not done by their first run",
        ),
    ),
)


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue. It has no call for many: one statement calls its function for each."""
    from absurdctl import BUNDLED_SCHEMA_SQL

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
        connection.execute("select absurd.create_queue(%s)", [QUEUE])
        with enqueueing():
            connection.execute(
                "select count(*) from generate_series(1, %s) as n,"
                " absurd.spawn_task(%s, %s, jsonb_build_object('n', n))",
                [tasks, QUEUE, TASK],
            )


def enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    """One by one. Its client commits each call."""
    from absurd_sdk import Absurd

    app = Absurd(url, queue_name=QUEUE)
    for sent in in_rhythm(rhythm):
        app.spawn(TASK, {"sent": sent}, queue=QUEUE)
    app.close()


def work(url: str, options: Any) -> None:
    """One worker: the synchronous one of the quick start, or the asynchronous one."""
    if options:
        asyncio.run(_work_async(url, options))
        return
    from absurd_sdk import Absurd

    gate()
    app = Absurd(url, queue_name=QUEUE)

    def noop(params: Any, context: object) -> None:
        ran(params.get("sent"))

    app.register_task(name=TASK)(noop)
    signal.signal(signal.SIGTERM, lambda *_: app.stop_worker())
    app.start_worker()
    app.close()


async def _work_async(url: str, options: Any) -> None:
    from absurd_sdk import AsyncAbsurd

    gate()
    app = AsyncAbsurd(url, queue_name=QUEUE)

    async def noop(params: Any, context: object) -> None:
        ran(params.get("sent"))

    app.register_task(name=TASK)(noop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop_worker)
    await app.start_worker(**options)
    await app.close()


if __name__ == "__main__":
    main(prepare, work, enqueue)
