"""Chancy (PyPI: chancy)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from chaos.bench.peers import tally
from chaos.bench.peers.peer import BEST, DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import Rhythm, enqueueing, gate, in_rhythm_async, main

QUEUE = "default"

PEER = Peer(
    name="chancy",
    runtime="python",
    program="chaos.bench.peers.chancy",
    packages=("chancy",),
    settings=(
        Setting(
            DEFAULT,
            {},
            # It asks again after 5 s even if it got as many jobs as it can run.
            "as it comes: a pool of processes, asks for jobs every 5 s, logs every job",
            most=12,
        ),
        Setting(
            BEST,
            {
                # "Thousands of jobs can be executed concurrently" with the AsyncExecutor.
                "queue": {
                    "executor": "chancy.executors.asyncex.AsyncExecutor",
                    "concurrency": 1_000,
                    "eager_polling": True,
                    "polling_interval": 1,
                },
                # "You can control the frequency of these updates by setting" this attribute.
                "send_outgoing_interval": 0.05,
                "quiet": True,
            },
            "AsyncExecutor, concurrency=1000, eager_polling, polling_interval=1,"
            " send_outgoing_interval=0.05, logs warnings only (reference of Queue, executors and"
            " Worker)",
        ),
    ),
    idle=(
        Setting(DEFAULT, {}, "as it comes: a pool of processes, logs every job"),
        Setting(
            BEST,
            {
                "queue": {
                    "executor": "chancy.executors.asyncex.AsyncExecutor",
                    "concurrency": 1_000,
                },
                "quiet": True,
            },
            "AsyncExecutor, concurrency=1000, logs warnings only (reference of Queue, executors)",
        ),
    ),
    table="chancy_jobs",
    open=(
        "select exists (select from chancy_jobs where queue = 'default'"
        " and state in ('pending', 'running', 'retrying'))"
    ),
    checks=(
        Check(
            "select abs(count(*) - %(tasks)s) from chancy_jobs where state = 'succeeded'",
            "{n} jobs too few or too many have succeeded",
        ),
        Check(
            "select count(*) from chancy_jobs where attempts <> 1",
            "{n} jobs were not done by their first attempt",
        ),
    ),
)


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue."""
    asyncio.run(_prepare(url, tasks, options))


async def _prepare(url: str, tasks: int, options: Options) -> None:
    from chancy import Chancy, Job, Queue

    settings: Any = options.get("queue", {})
    function = _function(options)
    async with Chancy(url) as chancy:
        await chancy.migrate()
        await chancy.declare(Queue(QUEUE, **settings))
        jobs = [Job.from_func(function, queue=QUEUE) for _ in range(tasks)]
        with enqueueing():
            async for _ in chancy.push_many(jobs):
                pass


def _function(options: Options) -> Any:
    """The handler: its default executor is made for plain functions, the other runs coroutines."""
    return tally.ran_async if options.get("queue") else tally.ran


def enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    """One by one."""
    asyncio.run(_enqueue(url, options, rhythm))


async def _enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    from chancy import Chancy, Job

    function = _function(options)
    async with Chancy(url) as chancy:
        async for sent in in_rhythm_async(rhythm):
            await chancy.push(Job.from_func(function, queue=QUEUE, kwargs={"sent": sent}))


def work(url: str, options: Any) -> None:
    """One worker; it handles SIGTERM by itself."""
    import chancy.executors.asyncex
    import chancy.executors.process  # noqa: F401 - both are loaded before the gate

    asyncio.run(_work(url, options))


async def _work(url: str, options: Any) -> None:
    from chancy import Chancy, Worker

    log = {}
    if options.get("quiet"):
        log["log"] = logging.getLogger("chancy.quiet")
        log["log"].setLevel(logging.WARNING)
    gate()
    async with Chancy(url, **log) as chancy:
        worker = Worker(chancy)
        if "send_outgoing_interval" in options:
            worker.send_outgoing_interval = options["send_outgoing_interval"]
        await worker.start()
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(prepare, work, enqueue)
