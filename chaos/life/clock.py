"""Database time as an input: replaces `scheduler.now()` by a clock that stands until moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import Connection

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """The frozen database clock of one test; statements run unmodified."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.now = START
        connection.execute("create schema test_clock")
        connection.execute("create table test_clock.reading (at timestamptz not null)")
        connection.execute("insert into test_clock.reading values (%s)", [START])
        connection.execute(
            "create or replace function scheduler.now() returns timestamptz"
            " language sql stable parallel safe return (select at from test_clock.reading)"
        )
        connection.execute("update scheduler.settings set value = 'test' where name = 'clock'")

    def advance(self, by: timedelta) -> datetime:
        """Move the clock and return what it reads now."""
        self.now += by
        self._connection.execute("update test_clock.reading set at = %s", [self.now])
        return self.now
