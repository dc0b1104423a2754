"""Dead letters: tasks whose attempts are exhausted, kept with payload and last error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import Connection
from psycopg.rows import class_row

from scheduler.statements import fetch, statement

PAGE = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead task; `payload` is JSON text, `finished_at` when it died."""

    id: int
    kind: str
    payload: str
    attempts: int
    last_error: str
    enqueued_at: datetime
    finished_at: datetime


def dead_letters(connection: Connection, kind: str | None = None) -> Iterator[DeadLetter]:
    """All dead letters, or those of one kind, oldest first; read a page at a time."""
    after_time, after_id = datetime(1, 1, 1, tzinfo=UTC), 0
    while True:
        with connection.cursor(row_factory=class_row(DeadLetter)) as cursor:
            page = cursor.execute(
                statement("dead_letters"),
                {"kind": kind, "after_time": after_time, "after_id": after_id, "limit": PAGE},
            ).fetchall()
        yield from page
        if len(page) < PAGE:
            return
        after_time, after_id = page[-1].finished_at, page[-1].id


def requeue(connection: Connection, tasks: Sequence[int]) -> list[int]:
    """Make dead tasks due now, with all attempts again; the ids of those that were dead."""
    return _ids(connection, "requeue", tasks)


def discard(connection: Connection, tasks: Sequence[int]) -> list[int]:
    """Give dead tasks up for good; the ids of those that were dead."""
    return _ids(connection, "discard", tasks)


def _ids(connection: Connection, name: str, tasks: Sequence[int]) -> list[int]:
    return sorted(task for (task,) in fetch(connection, name, {"tasks": list(tasks)}))
