"""What the queue did in the last hour, minute by minute, reading only what is new."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import Connection
from psycopg.rows import class_row

from scheduler.statements import statement

MINUTES = 60
# Attempts carry the time of the statement that ended them, and appear when that is committed.
SETTLED = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Minute:
    """What attempts came to that ended in the minute from `at`; waits are from due to claimed."""

    at: datetime
    completed: int
    failed: int
    reclaimed: int
    other: int
    wait_seconds: float | None
    longest_wait_seconds: float | None


def last_hour(connection: Connection, known: list[Minute] | None) -> list[Minute]:
    """The last sixty minutes, of which those of a former answer are known.

    Minutes that are over do not change, so only the last few are read again: once the hour is known
    its cost is that of some minutes, whatever the log has.
    """
    known = known or []
    after = known[-1].at - SETTLED if known else None
    # Never prepared: a plan for any `after` could not tell how little there is to read.
    with connection.cursor(binary=True, row_factory=class_row(Minute)) as cursor:
        found = cursor.execute(statement("throughput"), {"after": after}, prepare=False).fetchall()
    if not found:  # the database's clock was set back to before what is known
        return last_hour(connection, None)
    kept = [minute for minute in known if minute.at < found[0].at]
    return (kept + found)[-MINUTES:]
