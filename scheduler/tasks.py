"""Looks at tasks and cancels them: for people and scripts, not for workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection
from psycopg.rows import class_row, scalar_row

from scheduler import checks
from scheduler.roles import needing
from scheduler.statements import fetch, statement


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it stands; its payload as JSON text."""

    id: int
    kind: str
    queue: str
    priority: int
    source: str
    unique_key: str | None
    payload: str
    status: str
    next_run_at: datetime
    attempts: int
    max_attempts: int
    lease_token: int
    lease_owner: str | None
    lease_expires_at: datetime | None
    last_error: str | None
    enqueued_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """A finished attempt, from the run log."""

    attempt: int
    lease_token: int
    lease_owner: str
    claimed_at: datetime
    finished_at: datetime
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Count:
    """How many tasks of a kind have a status, and how long the oldest due one has waited."""

    kind: str
    status: str
    count: int
    oldest_due_seconds: float | None


def get(connection: Connection, task: int) -> Task | None:
    """The task with this id, or None."""
    with connection.cursor(binary=True, row_factory=class_row(Task)) as cursor:
        return cursor.execute(statement("task"), {"task": task}).fetchone()


def runs(
    connection: Connection, task: int, *, after: int = 0, limit: int | None = None
) -> list[Run]:
    """The finished attempts of a task, oldest first: those with a token above `after`."""
    values = {"task": task, "after": after, "limit": limit}
    with connection.cursor(binary=True, row_factory=class_row(Run)) as cursor:
        return cursor.execute(statement("task_runs"), values).fetchall()


def cancel(
    connection: Connection, tasks: Sequence[int], *, source: str | None = None
) -> dict[int, str]:
    """Cancel tasks that are waiting or running; returns each one's id and what it was.

    A running handler is told at its worker's next renewal; whatever it still writes is refused.
    Tasks that are over, or do not exist, are left out of the answer. `source` is for whom the audit
    says it was done: the login role, unless that serves many (see `enqueue_many`).

    Raises AccessError if the login role may not, TypeError or ValueError for what cannot be an id.
    """
    values = {"tasks": checks.ids(tasks), "source": source}
    with needing(connection, "scheduler_operator"):
        return dict(sorted(fetch(connection, "cancel", values)))


def counts(connection: Connection) -> list[Count]:
    """Tasks by kind and status."""
    with connection.cursor(binary=True, row_factory=class_row(Count)) as cursor:
        return cursor.execute(statement("status")).fetchall()


def clock_source(connection: Connection) -> str:
    """What `scheduler.now()` reads, as recorded in the database's settings."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        query = "select value from scheduler.settings where name = 'clock'"
        return str(cursor.execute(query).fetchone() or "unknown")
