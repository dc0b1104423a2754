"""The queue as `chaos` sees it: how to read its tables, how to enqueue, and how its worker runs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import Connection

from chaos.history.events import COMPLETED, DEAD, PENDING, RUNNING, Ended, Row, Step
from chaos.history.journal import Journal
from chaos.history.watched import Watched, micros
from chaos.systems import Order, Queue, WorkerSettings
from chaos.systems.queue import attempt
from chaos.workload import Job

from . import queue
from .queue import Letter


def read_letter(values: Mapping[str, str | None]) -> Row:
    """A row of `letters`, each value as PostgreSQL writes it."""
    return Row(
        task=int(values["id"] or 0),
        kind="letter",
        state=values["status"] or "",
        due=micros(values["due"]) or 0,
        attempts=int(values["attempts"] or 0),
        max_attempts=int(values["max_attempts"] or 0),
        token=int(values["token"] or 0),
        owner=values["owner"],
        expires=micros(values["expires"]),
        claimed_at=None,
        policy=None,
        error=values["error"],
    )


def read_log(values: Mapping[str, str | None]) -> Ended:
    """A row of `letters_log`."""
    return Ended(
        task=int(values["letter"] or 0),
        token=int(values["token"] or 0),
        owner=values["owner"] or "",
        attempt=int(values["attempt"] or 0),
        claimed_at=0,
        finished_at=micros(values["ended"]) or 0,
        outcome=values["outcome"] or "",
        error=values["error"],
    )


def post(connection: Connection, orders: Sequence[Order]) -> list[int]:
    """Enqueue jobs of the harness, as the application would enqueue its letters."""
    ids = []
    for order in orders:
        values = [json.dumps(order.job.payload()), order.delay, order.max_attempts]
        ids += connection.execute(queue.POST, values).fetchall()
    return [id for (id,) in ids]


def work(
    dsn: str,
    name: str,
    settings: WorkerSettings,
    journal: Journal,
    complete: str = queue.COMPLETE,
) -> None:
    """A worker process: the queue's own functions, in a loop that SIGTERM ends."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    def handle(letter: Letter) -> str | None:
        job = Job(**letter.content)
        return attempt(journal, job, letter.attempt, letter.id, letter.token, letter.owner)

    signal.signal(signal.SIGTERM, stop)
    with psycopg.connect(dsn, autocommit=True, application_name=name) as connection:
        reclaimed = 0.0
        while not stopping:
            if time.monotonic() > reclaimed + settings.reclaim_every:
                queue.reclaim(connection)
                reclaimed = time.monotonic()
            if not queue.deliver(connection, name, settings.lease, handle, complete):
                time.sleep(settings.poll)


QUEUE = Queue(
    schema=queue.SCHEMA,
    table=Watched(
        "public.letters",
        (
            *("id", "status", "due", "attempts", "max_attempts"),
            *("token", "owner", "expires", "error"),
        ),
        read_letter,
        key="id",
    ),
    log=Watched(
        "public.letters_log",
        ("id", "letter", "token", "owner", "attempt", "ended", "outcome", "error"),
        read_log,
    ),
    payload="content",
    steps=frozenset(
        {
            Step(PENDING, RUNNING, None),
            Step(RUNNING, COMPLETED, "completed"),
            Step(RUNNING, PENDING, "failed"),
            Step(RUNNING, PENDING, "reclaimed"),
            Step(RUNNING, DEAD, "failed"),
            Step(RUNNING, DEAD, "reclaimed"),
        }
    ),
    insert=post,
    worker=work,
)
