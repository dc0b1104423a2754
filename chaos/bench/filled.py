"""Queues that have a past: tasks that are over, and the dead rows that they leave.

A task that ends leaves the row version it had while it was due, dead, and with it an entry in the
index that claims read, ahead of those of every task that is due later. Vacuum removes both, unless
a transaction that began before still might look at them: an old one holds the horizon.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import Connection, IsolationLevel

import scheduler
from chaos.bench import noop

# As if each had been claimed and completed, with one dead row version instead of two.
_FINISH = (
    "update scheduler.tasks set status = 'completed', attempts = 1, lease_token = 1,"
    " finished_at = scheduler.now() where id <= %s and status = 'pending'"
)


def fill(connection: Connection, past: int, due: int) -> None:
    """In an empty, migrated database: so many tasks that are to be over, and then those due."""
    for number in (past, due):
        scheduler.enqueue_many(connection, noop.kind(), ({"n": n} for n in range(number)))


def finish(connection: Connection, past: int) -> None:
    """Make the first so many tasks ones that are over. Each leaves a dead row."""
    connection.execute(_FINISH, [past])


@contextmanager
def held_horizon(dsn: str) -> Iterator[None]:
    """While an old transaction is open: no row that dies meanwhile can be removed."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.execute("select")  # takes the snapshot, which is kept to the transaction's end
        yield
