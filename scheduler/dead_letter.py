"""Dead letters: tasks whose attempts are exhausted, kept with payload and last error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import Connection
from psycopg.rows import class_row

from scheduler import checks
from scheduler.access import LONGEST_KIND
from scheduler.roles import needing
from scheduler.statements import fetch, statement

PAGE = 20  # each may have a payload of a megabyte
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


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


@dataclass(frozen=True, slots=True)
class Summary:
    """A dead letter in short; `error` is the first line of its last error."""

    id: int
    kind: str
    attempts: int
    error: str
    finished_at: datetime


def dead_letters(connection: Connection, kind: str | None = None) -> Iterator[DeadLetter]:
    """All dead letters, or those of one kind, oldest first; read a page at a time.

    Raises ValueError for what cannot name a kind.
    """
    kinds = None if kind is None else [_name(kind)]
    after: DeadLetter | None = None
    while True:
        found = page(connection, kinds, after, PAGE)
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1]


def page(
    connection: Connection, kinds: Sequence[str] | None, after: DeadLetter | None, limit: int
) -> list[DeadLetter]:
    """The next dead letters after one of them, or the first; of these kinds, or of all."""
    values = {
        "kinds": None if kinds is None else list(kinds),
        "after_time": EARLIEST if after is None else after.finished_at,
        "after_id": 0 if after is None else after.id,
        "limit": limit,
    }
    with connection.cursor(binary=True, row_factory=class_row(DeadLetter)) as cursor:
        return cursor.execute(statement("dead_letters"), values).fetchall()


def summaries(connection: Connection, kind: str | None, limit: int) -> list[Summary]:
    """The oldest dead letters, or those of one kind, without what may be large. Raises as
    `dead_letters`."""
    values = {"kind": None if kind is None else _name(kind), "limit": limit}
    return [Summary(*row) for row in fetch(connection, "dead_letter_summaries", values)]


def ids(connection: Connection, kind: str | None) -> list[int]:
    """The ids of all dead letters, or of those of one kind, oldest first. Raises as
    `dead_letters`."""
    values = {"kind": None if kind is None else _name(kind)}
    rows = fetch(connection, "dead_letter_ids", values)
    return [task for (task,) in rows]


def requeue(
    connection: Connection, tasks: Sequence[int], *, source: str | None = None
) -> list[int]:
    """Make dead tasks due now, with all attempts again; the ids of those that were dead.

    `source` is for whom the audit says it was done: the login role, unless that serves many (see
    `enqueue_many`). Raises AccessError if the login role may not, TypeError or ValueError for what
    cannot be an id.
    """
    return _ids(connection, "requeue", tasks, source)


def discard(
    connection: Connection, tasks: Sequence[int], *, source: str | None = None
) -> list[int]:
    """Give dead tasks up for good; the ids of those that were dead. Otherwise as `requeue`."""
    return _ids(connection, "discard", tasks, source)


def _name(kind: str) -> str:
    return checks.text("a kind", kind, LONGEST_KIND)


def _ids(connection: Connection, name: str, tasks: Sequence[int], source: str | None) -> list[int]:
    values = {"tasks": checks.ids(tasks), "source": source}
    with needing(connection, "scheduler_operator"):
        return sorted(task for (task,) in fetch(connection, name, values))
