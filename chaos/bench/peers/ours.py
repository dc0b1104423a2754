"""Ours, as a system among others: same command line, same gate, same tally."""

from __future__ import annotations

import logging
import signal
from typing import Any

import psycopg

import scheduler
from chaos.bench import noop
from chaos.bench.peers.peer import BEST, DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import Rhythm, enqueueing, gate, in_rhythm, main
from chaos.bench.peers.tally import ran
from chaos.bench.result import OURS
from scheduler import Attempt, Registry, Worker

CHUNK = 1_000  # jobs a call of enqueue_many

PEER = Peer(
    name=OURS,
    runtime="python",
    program="chaos.bench.peers.ours",
    packages=("leaseproof",),
    settings=(
        Setting(DEFAULT, {}, "as it comes"),
        # Of 99, 499 and 999, tried as the others' values were, this took the least CPU a task.
        Setting(BEST, {"slots": 1, "prefetch": 499}, "slots=1, prefetch=499 (docs/performance.md)"),
    ),
    # Nothing makes a task start sooner than the defaults do.
    idle=(Setting(DEFAULT, {}, "as it comes"),),
    table="scheduler.tasks",
    open=(
        "select exists (select from scheduler.tasks where status = 'pending')"
        " or exists (select from scheduler.tasks where status = 'running')"
    ),
    checks=(
        Check("select abs(count(*) - %(tasks)s) from scheduler.tasks", "{n} tasks too few or many"),
        *(Check(sql, sentence) for sql, sentence in noop.CHECKS),
    ),
)


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue. Each call is a commit of its own."""
    scheduler.migrate(url)
    kind = noop.kind()
    with psycopg.connect(url, autocommit=True) as connection, enqueueing():
        for first in range(0, tasks, CHUNK):
            numbers = range(first, min(first + CHUNK, tasks))
            scheduler.enqueue_many(connection, kind, ({"n": number} for number in numbers))


def enqueue(url: str, options: Options, rhythm: Rhythm) -> None:
    """One by one, each call a commit of its own."""
    kind = noop.kind()
    with psycopg.connect(url, autocommit=True) as connection:
        for sent in in_rhythm(rhythm):
            scheduler.enqueue(connection, kind, {"sent": sent})


def work(url: str, options: Any) -> None:
    """One worker, as the setting says."""
    logging.basicConfig(level=logging.WARNING)
    registry = Registry()

    def handler(attempt: Attempt, payload: dict[str, int]) -> None:
        ran(payload.get("sent"))

    registry.kind(noop.KIND, dict[str, int])(handler)
    worker = Worker(registry, url, **options)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    gate()
    worker.run()


if __name__ == "__main__":
    main(prepare, work, enqueue)
