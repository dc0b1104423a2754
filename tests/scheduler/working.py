"""What the tests of the core share: a kind to queue, short ways to put and claim, workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from scheduler import Attempt, Kind, Registry, RetryPolicy, Worker, enqueue_many
from scheduler.dispatch import claim, new_owner
from scheduler.tasks import Task, get
from tests.waiting import wait_for

LEASE = timedelta(minutes=5)
SHORT = timedelta(milliseconds=500)  # the shortest lease there is
MICROSECOND = timedelta(microseconds=1)
RETRY = RetryPolicy(max_attempts=3, base=timedelta(seconds=10), factor=2.0, jitter=0.5)
QUICK = timedelta(milliseconds=20)

WORKERS = "application_name like 'scheduler %' and datname = current_database()"

Row = dict[str, Any]


def ignore(attempt: Attempt, payload: object) -> None:
    """A handler that does nothing."""


def kind(name: str = "work", retry: RetryPolicy = RETRY) -> Kind[object]:
    """A kind whose payload may be any JSON."""
    payload: Any = object
    return Registry().kind(name, payload, lease=LEASE, retry=retry)(ignore)


WORK = kind()


def put(db: Connection, count: int = 1, of: Kind[object] = WORK) -> list[int]:
    """Enqueue tasks that are due now; their payloads are 0, 1, 2, ..."""
    return enqueue_many(db, of, range(count))


def take(db: Connection, limit: int = 10, worker: str = "one") -> list[Attempt]:
    """Claim due tasks for five minutes."""
    return claim(db, new_owner(worker), {"work": LEASE}, limit, 0.0)


def take_one(db: Connection, worker: str = "one") -> Attempt:
    """Claim the one task that is due."""
    (attempt,) = take(db, 1, worker)
    return attempt


def row(db: Connection, task: int) -> Row:
    """The whole row of a task."""
    with db.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("select * from scheduler.tasks where id = %s", [task]).fetchone()
    assert found is not None
    return found


def task(db: Connection, number: int) -> Task:
    """A task that exists."""
    found = get(db, number)
    assert found is not None
    return found


def statuses(db: Connection) -> dict[str, int]:
    """How many tasks have each status."""
    rows = db.execute("select status, count(*) from scheduler.tasks group by status").fetchall()
    return dict(rows)


def outcomes(db: Connection, number: int) -> list[str]:
    """How the attempts of a task ended, oldest first."""
    rows = db.execute(
        "select outcome from scheduler.run_log where task_id = %s order by lease_token", [number]
    ).fetchall()
    return [outcome for (outcome,) in rows]


def over(db: Connection, number: int, status: str = "completed") -> None:
    """Wait until the task has this status."""
    wait_for(lambda: task(db, number).status == status, f"task {number} to be {status}")


def listening(db: Connection, sessions: int = 1) -> None:
    """Wait until so many worker sessions listen and nothing of theirs is running."""
    both = f"select count(*) from pg_stat_activity where {WORKERS} and state = 'idle'"
    heard = f"{both} and query = 'listen scheduler_wake'"

    def ready() -> bool:
        [(idle_ones,)] = db.execute(both.encode()).fetchall()
        [(ears,)] = db.execute(heard.encode()).fetchall()
        return bool(ears == sessions and idle_ones == 2 * sessions)

    wait_for(ready, "an idle, listening worker")


def worker(registry: Registry, dsn: str, **settings: Any) -> Worker:
    """A worker that looks often, so that no test waits for it."""
    return Worker(registry, dsn, **{"poll": QUICK, "reclaim_every": QUICK, "slots": 4, **settings})


@contextmanager
def running(*workers: Worker) -> Iterator[None]:
    """Run workers in threads; at the end stop and join them, and raise what their `run` raised."""
    errors: list[BaseException] = []

    def run(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's thread
            errors.append(error)

    threads = [Thread(target=run, args=[each], name=each.name) for each in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in workers:
            each.stop()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a worker did not stop"
    for error in errors:
        raise error


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process of its own; at the end it is killed if it is still there."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan, as EXPLAIN gives it in JSON."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
