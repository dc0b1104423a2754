"""Pages of tasks and dead letters for the API: without payloads, which may be large."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from scheduler.dead_letter import EARLIEST
from scheduler.service.models import LARGEST_ID, TaskSummary
from scheduler.statements import fetch, statement

CURSOR = r"^[0-9]{1,10}\.[0-9]{6}-[0-9]{1,18}$"  # to the year 2286
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def task_page(
    connection: Connection,
    *,
    kind: str | None,
    status: str | None,
    queue: str | None,
    source: str | None,
    kinds: list[str] | None,
    before: int | None,
    limit: int,
) -> list[TaskSummary]:
    """Tasks, newest first, with an id below `before`."""
    values = {
        "kind": kind,
        "status": status,
        "queue": queue,
        "source": source,
        "kinds": kinds,
        "before": LARGEST_ID if before is None else before,
        "limit": limit,
    }
    return _page(connection, "list_tasks", values)


def letter_page(
    connection: Connection,
    *,
    kind: str | None,
    kinds: list[str] | None,
    after: str | None,
    limit: int,
) -> list[TaskSummary]:
    """Dead letters, oldest first, after the one whose `cursor_of` is given."""
    time, task = (EARLIEST, 0) if after is None else _read(after)
    values = {"kind": kind, "kinds": kinds, "after_time": time, "after_id": task, "limit": limit}
    return _page(connection, "list_dead_letters", values)


def cursor_of(letter: TaskSummary) -> str:
    """A dead letter's place in their order: seconds since 1970, exactly, and its id."""
    assert letter.finished_at is not None
    since = letter.finished_at - _EPOCH
    return f"{since.days * 86_400 + since.seconds}.{since.microseconds:06}-{letter.id}"


def of_kinds(connection: Connection, tasks: list[int], kinds: list[str] | None) -> list[int]:
    """Which of these tasks are of one of these kinds; None means any."""
    rows = fetch(connection, "of_kinds", {"tasks": tasks, "kinds": kinds})
    return [task for (task,) in rows]


def _read(cursor: str) -> tuple[datetime, int]:
    """The place that a cursor of the pattern CURSOR names."""
    time, _, task = cursor.partition("-")
    seconds, _, microseconds = time.partition(".")
    return _EPOCH + timedelta(seconds=int(seconds), microseconds=int(microseconds)), int(task)


def _page(connection: Connection, name: str, values: dict[str, Any]) -> list[TaskSummary]:
    with connection.cursor(binary=True, row_factory=dict_row) as cursor:
        # Never prepared: a plan for all values could not use an index that only some of them allow.
        rows = cursor.execute(statement(name), values, prepare=False).fetchall()
    return [TaskSummary.model_construct(**row) for row in rows]
