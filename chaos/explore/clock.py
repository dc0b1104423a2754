"""Database time as a step: a clock that stands until the explorer moves it.

It reads a table for `+60s`, and a sequence for ticks of a millisecond: a program that wants no two
of its steps to share an instant calls TICK in its invariant. (A sequence, because that is cheap.)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import Connection, sql

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
RESET = (
    f"update explorer_clock.reading set at = timestamptz '{START.isoformat()}';"
    " select setval('explorer_clock.ticks', 1)"
)
TICK = "nextval('explorer_clock.ticks')"


def install_clock(connection: Connection, schema: str, function: str = "now") -> None:
    """Let `schema.function()` read the explorer's clock; put RESET into the program's `setup`.

    Code that asks the database for the time through one function of its own can be explored with
    time as a step; statements stay as they are.
    """
    connection.execute(
        sql.SQL(
            "create schema explorer_clock;"
            " create table explorer_clock.reading (at timestamptz not null);"
            " insert into explorer_clock.reading values ({start});"
            " create sequence explorer_clock.ticks minvalue 0;"
            " create or replace function {function}() returns timestamptz"
            " language sql stable parallel safe return ("
            "select at + last_value * interval '1 millisecond'"
            " from explorer_clock.reading, explorer_clock.ticks)"
        ).format(start=sql.Literal(START), function=sql.Identifier(schema, function))
    )


def advance(connection: Connection, by: timedelta) -> None:
    """Move the clock; for a program's `advance`."""
    connection.execute("update explorer_clock.reading set at = at + %s", [by])
