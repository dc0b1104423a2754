"""Database time as an input: `scheduler.now()` is the explorer's clock and stands until moved."""

from __future__ import annotations

from datetime import datetime, timedelta

from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clock import START


class Clock:
    """The frozen database clock of one test; statements run unmodified."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.now = START
        clock.install_clock(connection, "scheduler")
        connection.execute("update scheduler.settings set value = 'test' where name = 'clock'")

    def advance(self, by: timedelta) -> datetime:
        """Move the clock and return what it reads now."""
        clock.advance(self._connection, by)
        self.now += by
        return self.now
