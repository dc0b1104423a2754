"""The wall clock of a worker's own process, as a parameter `own_clock` of every statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from psycopg import Connection
from psycopg.rows import TupleRow

Fetch = Callable[[Connection, str, Mapping[str, object]], list[TupleRow]]


def with_own_clock(fetch: Fetch) -> Fetch:
    """`fetch` for planted bugs that ask this clock where the scheduler asks the database."""

    def patched(connection: Connection, name: str, values: Mapping[str, object]) -> list[TupleRow]:
        return fetch(connection, name, {**values, "own_clock": datetime.now(UTC)})

    return patched
