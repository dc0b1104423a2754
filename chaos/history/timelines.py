"""The witness of a run, across a failover: the old primary's log and then the promoted server's.

PostgreSQL gives each promoted server a timeline of its own. Within one, the place of a commit in
the log is unique and grows; so each timeline has a witness of its own, which takes every commit
once, and the commits of a run are those of one timeline after those of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import NamedTuple

import psycopg

from chaos.history.events import COMPLETED, DEAD, Commit, Failover, Row
from chaos.history.watched import Watched
from chaos.history.witness import Witness

_DONE = (COMPLETED, DEAD)


class _Ahead(NamedTuple):
    """A promoted server that is witnessed, while the old primary's log is not read to the end."""

    witness: Witness
    old: Callable[[], AbstractContextManager[str]]
    point: str
    died: int
    opened: int
    synchronous: bool


class Timelines:
    """What was committed in a run so far; `drain` and `follow` are for any thread.

    commits: the surviving timeline. rows: every task as it was last seen there. done: how many of
    them are completed or dead. reclaimed: how many leases were taken back. failovers: what was lost
    in each.
    """

    def __init__(self, dsn: str, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._witness = Witness(dsn, watched)
        self._ahead: _Ahead | None = None
        self._lock = Lock()
        self.failovers: list[Failover] = []
        self._forget()

    def _forget(self) -> None:
        self.commits: list[Commit] = []
        self.rows: dict[int, Row | None] = {}
        self.done = self.reclaimed = 0

    def open(self) -> None:
        """Witness everything that is committed from now on. Raises WitnessError."""
        self._witness.open()

    def close(self) -> None:
        """Stop; leave nothing behind on the server that takes writes."""
        if self._ahead is not None:  # nobody read on: the run has failed
            self._witness.leave()
            self._witness, self._ahead = self._ahead.witness, None
        self._witness.close()

    def follow(
        self,
        new: str,
        point: str,
        old: Callable[[], AbstractContextManager[str]],
        *,
        died: int,
        synchronous: bool,
    ) -> None:
        """Go on at the promoted server `new`, which no client can reach before this returns.

        The primary died at `died`, and `point` is the place in the log at which the promoted server
        left its timeline. `old` starts it where no client can reach it, and gives its connection
        string: the next `drain` reads it to the end first, so that the promoted server need not be
        away for that long. Raises psycopg.OperationalError and WitnessError.
        """
        with self._lock:
            witness = Witness(new, self._watched)
            witness.adopt()
            opened = time.time_ns() // 1000
            self._ahead = _Ahead(witness, old, point, died, opened, synchronous)

    def drain(self) -> None:
        """Read all that was committed so far. Raises psycopg.OperationalError if it cannot."""
        with self._lock:
            if self._ahead is not None:
                self._end_timeline(self._ahead)
            try:
                commits = self._witness.drain()
            except psycopg.OperationalError:
                self._witness.reconnect()
                commits = self._witness.drain()
            self._take(commits)

    def _end_timeline(self, ahead: _Ahead) -> None:
        """Read the old primary's log to its end, and part what was kept from what was lost.

        The promoted server has replayed it up to the point and no further. So a commit is kept if
        its record begins before that, and is lost otherwise. Whether it had been drained before
        makes no difference: a primary shows commits that its standby does not have.
        """
        with ahead.old() as dsn:
            self._witness.reconnect(dsn)
            commits = self.commits + self._witness.drain()
            self._witness.leave()
        kept = self._witness.seq_at(ahead.point)
        lost = tuple(commit for commit in commits if commit.seq >= kept)
        self.failovers.append(Failover(ahead.died, ahead.opened, ahead.synchronous, lost))
        ahead.witness.first = self._witness.next
        self._witness, self._ahead = ahead.witness, None
        self._forget()
        self._take([commit for commit in commits if commit.seq < kept])

    def _take(self, commits: Sequence[Commit]) -> None:
        self.commits += commits
        for commit in commits:
            self.reclaimed += sum(ended.outcome == "reclaimed" for ended in commit.ended)
            for task, row in commit.changes:
                self.done += _is_done(row) - _is_done(self.rows.get(task))
                self.rows[task] = row


def _is_done(row: Row | None) -> bool:
    return row is not None and row.state in _DONE
