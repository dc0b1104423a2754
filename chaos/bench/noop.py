"""The work of the bench: tasks whose handler does nothing, and the checks that it was done once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import psycopg
from psycopg import Connection

import scheduler
from scheduler import Attempt, Kind, Registry

KIND = "noop"
LEASE_SECONDS = 60  # the default lease of a kind

# A worker with default settings gives back what has waited in it for long, as where many share few
# cores. Such a task has a row `released` and one more token, and its next attempt is the first.
CHECKS = (
    (
        "select count(*) from scheduler.tasks where status <> 'completed' or attempts <> 1",
        "{n} tasks are not completed by their first attempt",
    ),
    (
        "select count(*) from scheduler.run_log where outcome not in ('completed', 'released')",
        "{n} rows of the run log say something else than completed or released",
    ),
    (
        "select count(*) from (select from scheduler.run_log where outcome = 'completed'"
        " group by task_id having count(*) > 1) as twice",
        "{n} tasks have more than one completion in the run log",
    ),
    (
        "select count(*) from scheduler.tasks as task"
        " join (select task_id, count(*) as rows from scheduler.run_log group by task_id) as log"
        " on log.task_id = task.id where task.lease_token <> log.rows",
        "{n} tasks were claimed more or less often than the run log has rows of them",
    ),
    (
        "select count(*) from scheduler.tasks as task where not exists"
        " (select from scheduler.run_log as log"
        " where log.task_id = task.id and log.lease_token = task.lease_token"
        " and log.outcome = 'completed')",
        "{n} tasks have no completion in the run log under their token",
    ),
    (
        "select count(*) from scheduler.run_log as log where not exists"
        " (select from scheduler.tasks as task where task.id = log.task_id)",
        "{n} rows of the run log are of no task",
    ),
    (
        "select count(*) from scheduler.run_log where finished_at < claimed_at",
        "{n} tasks were finished before they were claimed",
    ),
)


def registry() -> tuple[Registry, count[int]]:
    """A registry with the one kind, and a counter whose next value is how often it ran."""
    ran = count()
    kinds = Registry()

    # `next` of a count is one step of the interpreter: no run is missed, whatever thread it is in.
    def noop(attempt: Attempt, payload: dict[str, int]) -> None:
        next(ran)

    kinds.kind(KIND, dict[str, int])(noop)
    return kinds, ran


def kind() -> Kind[dict[str, int]]:
    """The kind, to enqueue."""
    return registry()[0][KIND]


def prepare(dsn: str, tasks: int) -> None:
    """Install the scheduler in an empty database and enqueue so many tasks that are due."""
    scheduler.migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        scheduler.enqueue_many(connection, kind(), ({"n": number} for number in range(tasks)))
        connection.execute("vacuum (analyze)")


def violations(connection: Connection, tasks: int) -> list[str]:
    """What is wrong with a finished drain of so many tasks, one sentence each; empty if nothing."""
    found = []
    total = _number(connection, "select count(*) from scheduler.tasks")
    if total != tasks:
        found.append(f"there are {total} tasks, not the {tasks} that were enqueued")
    return found + failed(connection, CHECKS)


def failed(connection: Connection, checks: Iterable[tuple[str, str]]) -> list[str]:
    """The sentences of those checks, each a query and a sentence, that count something."""
    return [
        sentence.format(n=number)
        for query, sentence in checks
        if (number := _number(connection, query))
    ]


def open_tasks(connection: Connection) -> bool:
    """Whether any task is still waiting or running. Two looks, so that each has its index."""
    query = (
        "select (exists (select from scheduler.tasks where status = 'pending')"
        " or exists (select from scheduler.tasks where status = 'running'))::integer"
    )
    return bool(_number(connection, query))


def _number(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row is not None else 0
