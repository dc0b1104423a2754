"""Ends attempts: complete, fail, release, snooze. Each is fenced; each returns what it changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg import ClientCursor, Connection
from psycopg.rows import tuple_row

from scheduler.lease import Lease, columns
from scheduler.statements import duration, fetch, statement

LONGEST_ERROR = 10_000
BEGIN = b"begin isolation level read committed"


def complete(connection: Connection, leases: Sequence[Lease]) -> set[int]:
    """Complete attempts that are still held; returns their task ids."""
    return _ids(connection, "complete", columns(leases))


def begin_attempt(connection: Connection, lease: Lease, length: timedelta) -> None:
    """Begin the transaction that `complete_and_commit` is to end; limit and mark it.

    In one message, for one round trip, so the values are put into its text. READ COMMITTED is said
    here, since a pooler's session may have another default.
    """
    milliseconds = max(2, int(length.total_seconds() * 1000))
    values = {
        "idle": f"{milliseconds}ms",
        "lock": f"{milliseconds // 2}ms",
        "mark": f"{lease.task}:{lease.owner}:{lease.token}",
    }
    title, select = statement("begin_attempt").split(b"\n", 1)
    with ClientCursor(connection) as cursor:
        cursor.execute(b"%b\n%b;\n%b" % (title, BEGIN, select), values)


def complete_and_commit(connection: Connection, lease: Lease) -> None:
    """Complete one attempt in the transaction that `begin_attempt` began, and commit both.

    Raises psycopg.DatabaseError with SQLSTATE LP001, and commits nothing, if the lease is lost.

    Both are one message, so the values are put into its text. The server has all of it or nothing:
    a worker can be stopped before it and after it, but not between the completion, which locks the
    task's row, and its COMMIT. Two messages have such a moment even where they are sent at once, in
    a pipeline: they leave in two packets, and a server that waits for the rest of a pipeline is not
    idle in a transaction, so that no timeout ends it.
    """
    with ClientCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement("complete_in_transaction") + b";\ncommit", lease._asdict())


def fail(connection: Connection, leases: Sequence[Lease], errors: Sequence[str]) -> dict[int, str]:
    """Fail attempts that are still held; returns task id to new status, `pending` or `dead`."""
    values = {**columns(leases), "errors": [storable(error) for error in errors]}
    return dict(fetch(connection, "fail", values))


def release(connection: Connection, leases: Sequence[Lease]) -> set[int]:
    """Give back attempts whose handler never started; returns their task ids."""
    return _ids(connection, "release", columns(leases))


def snooze(
    connection: Connection, leases: Sequence[Lease], delays: Sequence[timedelta]
) -> set[int]:
    """Put attempts off without counting them; returns their task ids."""
    values = {**columns(leases), "delays": [duration(delay) for delay in delays]}
    return _ids(connection, "snooze", values)


def storable(text: str) -> str:
    """The text as PostgreSQL can store it: no NUL, no lone surrogates, at most LONGEST_ERROR."""
    clean = text[:LONGEST_ERROR].encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _ids(connection: Connection, name: str, values: dict[str, object]) -> set[int]:
    return {task for (task,) in fetch(connection, name, values)}
