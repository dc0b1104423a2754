"""Where claims begin to look: past what earlier ones took.

A claimed task leaves a dead entry in the index of due tasks, until a scan may mark it or vacuum
removes it, and both wait for the oldest transaction of the database. A claim that begins at the
index's start passes all of them. So a worker keeps a floor for each level (one kind at one
priority): the place of the earliest task of its last claim there, and claims from there.

A task may land below floors: one that was reclaimed, given back or requeued, is enqueued for a time
in the past, was locked by somebody when it was passed, or whose transaction took long to commit. It
is found within a poll, a second at most, and as long as a look takes:

- A worker that has floors looks before a claim, if the last look is too old, for the earliest
  waiting task of each level, and has its floors there. That costs what a claim without a floor
  costs. So it is done for the whole fleet: what one has found the others are told, for half of that
  time (find_floors.sql), and each keeps it for the other half. (With so many dead entries that a
  look takes longer, each looks for itself.)
- A claim that got nothing leaves no floor: the next begins at the start.

A floor stays MARGIN behind the present, and most transactions commit within that time. So a queue
whose tasks start at once has no floors, and an idle worker neither: they are for a backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from psycopg import Connection

from scheduler.lease import Attempt
from scheduler.statements import duration, fetch

MARGIN = timedelta(seconds=1)
FOUND_WITHIN = timedelta(seconds=1)  # what lies below floors, if polls are not more frequent


class Floor(NamedTuple):
    """A claim takes no task of this kind and priority that comes before this place, by due time and
    then id; 0 as the id is before all that are due at that instant."""

    kind: str
    priority: int
    due: datetime
    task: int


def find_floors(connection: Connection, kinds: Iterable[str], age: timedelta) -> list[Floor]:
    """Where the earliest waiting task of each level of these kinds was, at most `age` ago."""
    values = {"kinds": list(kinds), "age": duration(age), "margin": duration(MARGIN)}
    return [Floor(*row) for row in fetch(connection, "find_floors", values)]


class Floors:
    """Those of one worker. Not thread-safe: the dispatcher's own.

    poll: the worker's. `age` is how old a look may be when this worker is told of it, and for how
    long it is kept then.
    """

    def __init__(self, poll: timedelta, monotonic: Callable[[], float]) -> None:
        self.age = min(poll, FOUND_WITHIN) / 2
        self._monotonic = monotonic
        self._floors: dict[tuple[str, int], Floor] = {}
        self._looked = monotonic()

    def known(self) -> list[Floor]:
        """All there are; a level without one is claimed from its start."""
        return list(self._floors.values())

    def old(self) -> bool:
        """Whether to look before the next claim."""
        passed = self._monotonic() - self._looked
        return bool(self._floors) and passed >= self.age.total_seconds()

    def replace(self, floors: Iterable[Floor], looked: float) -> None:
        """Replace all by what a look has found, for which was asked at this time."""
        self._floors = {(floor.kind, floor.priority): floor for floor in floors}
        self._looked = looked

    def clear(self) -> None:
        """Forget all: the next claim begins at the start."""
        self._floors.clear()

    def claimed(self, attempts: Sequence[Attempt], sent: float) -> None:
        """Raise the floors to the earliest of each level that a claim has taken.

        What comes before was taken by others, or they are claiming it, or it has landed since.
        """
        if not attempts:
            self.clear()
        elif not self._floors:
            self._looked = sent  # that claim began at the start
        earliest: dict[tuple[str, int], Attempt] = {}
        for attempt in attempts:
            level = attempt.kind, attempt.priority
            if level not in earliest or _place(attempt) < _place(earliest[level]):
                earliest[level] = attempt
        for level, attempt in earliest.items():
            if attempt.late >= MARGIN.total_seconds():
                self._floors[level] = Floor(*level, *_place(attempt))


def _place(attempt: Attempt) -> tuple[datetime, int]:
    return attempt.due, attempt.task
