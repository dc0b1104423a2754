"""Where claims begin to look: behind what was claimed before.

A claimed task leaves a dead entry in the index of due tasks, until vacuum has removed it, and that
waits for the oldest transaction of the whole database. A claim that begins at the index's start
passes all of them. So a worker remembers, for each kind and priority, the place of the least task
of its last claim, and claims from there: its floor.

What lands below a floor is found otherwise, within a poll: tasks that were reclaimed or enqueued
for a time in the past, or whose transaction took long to commit.

- A busy worker asks for the least due task of all, twice a poll, and that is its floor from then
  on. To find it costs what a claim without a floor costs, so the fleet shares it: first_due.sql.
- A worker whose claim got nothing looks at all that waits (next_due.sql): if something is due, it
  claims without floors.
- Tasks that are due for less than BEHIND seconds are always looked at: most transactions commit
  within that time. So in a queue that is nearly empty nothing lands below a floor.

The idea of such a low-watermark is old; that it must not hide what lands below it is the hard part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from psycopg import Connection

from scheduler.lease import Attempt
from scheduler.statements import duration, fetch

BEHIND = timedelta(seconds=1)  # how far a floor stays behind the present


class Floor(NamedTuple):
    """No task of the kind and priority that comes before this place, by due time and id, is
    claimed."""

    kind: str
    priority: int
    due: datetime
    task: int


def first_due(connection: Connection, kinds: Iterable[str], age: timedelta) -> list[Floor]:
    """The place of the least due task of each level of these kinds, as it was at most `age` ago."""
    values = {"kinds": list(kinds), "age": duration(age), "behind": duration(BEHIND)}
    return [Floor(*row) for row in fetch(connection, "first_due", values)]


class Floors:
    """Those of one worker. Not thread-safe: the dispatcher's own.

    age: how old what they rest on may be.
    """

    def __init__(self, age: timedelta, monotonic: Callable[[], float]) -> None:
        self.age = age
        self._monotonic = monotonic
        self._floors: dict[tuple[str, int], Floor] = {}
        self._claimed = False  # anything since the last look
        self._looked = monotonic()

    def known(self) -> list[Floor]:
        """All there are; a level that has none is claimed from its start."""
        return list(self._floors.values())

    def old_in(self) -> float:
        """In how many seconds to look for what lies below them. An idle worker need not."""
        if not self._claimed:
            return inf
        return max(0.0, self._looked + self.age.total_seconds() - self._monotonic())

    def found(self, floors: Iterable[Floor]) -> None:
        """What a look has found, which holds from here on, and nothing else does."""
        self._floors = {(floor.kind, floor.priority): floor for floor in floors}
        self._claimed = False
        self._looked = self._monotonic()

    def clear(self) -> None:
        """Claim from the start again: something is due that claims did not find."""
        self._floors.clear()

    def claimed(self, attempts: Sequence[Attempt]) -> None:
        """Raise the floors to the least of each level that a claim has taken.

        What is below was claimed by others, or is being claimed: should that fail, a look finds it.
        """
        least: dict[tuple[str, int], Attempt] = {}
        for attempt in attempts:
            level = attempt.kind, attempt.priority
            if level not in least or _place(attempt) < _place(least[level]):
                least[level] = attempt
        for level, attempt in least.items():
            if attempt.late >= BEHIND.total_seconds():
                self._floors[level] = Floor(*level, *_place(attempt))
        self._claimed |= bool(attempts)

    def returned(self, attempt: Attempt) -> None:
        """A task goes back to its place, which this worker is to find at once."""
        level = attempt.kind, attempt.priority
        floor = self._floors.get(level)
        if floor is not None and _place(attempt) < (floor.due, floor.task):
            self._floors[level] = Floor(*level, *_place(attempt))


def _place(attempt: Attempt) -> tuple[datetime, int]:
    return attempt.due, attempt.task
