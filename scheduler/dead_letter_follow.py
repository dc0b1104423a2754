"""Follows dead letters: those that stand, then each new one, none twice and none left out.

Where it is lies between two snapshots of the database and not in a number or a time, which are
given out before the commit: a death with a smaller one can become visible later. The place is kept
here and not in a session, so it outlives the connection.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import Connection
from psycopg.rows import TupleRow

from scheduler import checks
from scheduler.access import LONGEST_KIND
from scheduler.dead_letter import DeadLetter
from scheduler.statements import fetch

PAGE = 20  # each may have a payload of a megabyte
BEGINNING = ("0", 0)  # before all transactions and deaths


class Follower:
    """A place in the log of deaths, of one kind or all. Raises ValueError for what names no
    kind."""

    def __init__(self, kind: str | None = None) -> None:
        self._kind = None if kind is None else checks.text("a kind", kind, LONGEST_KIND)
        self._seen: str | None = None  # the snapshot up to which all is read
        self._until: str | None = None  # and the one up to which it is being read
        self._after = BEGINNING

    def read(self, connection: Connection) -> Iterator[DeadLetter]:
        """What is new since the last call, at the first one what stands.

        A page is in memory before the first of it is given out, and the place moves on with it:
        after an error of the database call this again on another connection. The connection must be
        in autocommit mode, or no later snapshot would see more.
        """
        while True:
            if self._until is None:
                [(self._until,)] = fetch(connection, "current_snapshot", {})
                self._after = BEGINNING
            page = self._page(connection)
            if page:
                self._after = page[-1][:2]
            if len(page) < PAGE:
                self._seen, self._until = self._until, None
            for _, _, *letter in page:
                yield DeadLetter(*letter)
            if self._until is None:
                return

    def _page(self, connection: Connection) -> list[TupleRow]:
        name = "standing_letters" if self._seen is None else "new_letters"
        values = {
            "seen": self._seen,
            "until": self._until,
            "after_in": self._after[0],
            "after": self._after[1],
            "kind": self._kind,
            "limit": PAGE,
        }
        return fetch(connection, name, values)
