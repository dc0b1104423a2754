"""Ends attempts: complete, fail, release, snooze. Each is fenced; each returns what it changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg import Connection

from scheduler.lease import Lease, columns
from scheduler.statements import fetch, statement

LONGEST_ERROR = 10_000


def complete(connection: Connection, leases: Sequence[Lease]) -> set[int]:
    """Complete attempts that are still held; returns their task ids."""
    return _ids(connection, "complete", columns(leases))


def begin_attempt(connection: Connection, lease: Lease, length: timedelta) -> None:
    """Mark and limit the transaction that `complete_in_transaction` is to end."""
    milliseconds = max(2, int(length.total_seconds() * 1000))
    fetch(
        connection,
        "begin_attempt",
        {
            "idle": f"{milliseconds}ms",
            "lock": f"{milliseconds // 2}ms",
            "mark": f"{lease.owner}:{lease.token}",
        },
    )


def complete_in_transaction(connection: Connection, lease: Lease) -> None:
    """Complete one attempt as part of the transaction that `begin_attempt` marked.

    Raises psycopg.DatabaseError with SQLSTATE LP001 if the lease is lost.
    """
    connection.execute(statement("complete_in_transaction"), lease._asdict())


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
    return _ids(connection, "snooze", {**columns(leases), "delays": list(delays)})


def storable(text: str) -> str:
    """The text as PostgreSQL can store it: no NUL, no lone surrogates, at most LONGEST_ERROR."""
    clean = text[:LONGEST_ERROR].encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _ids(connection: Connection, name: str, values: dict[str, object]) -> set[int]:
    return {task for (task,) in fetch(connection, name, values)}
