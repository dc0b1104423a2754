"""How many tasks a worker claims in advance: as many as it was told to or, by default, as its pace
allows.

Where handlers are quick the round trips of claims decide, so a worker that has a few hundred tasks
waiting runs many times as many. Where they are slow, what waits here could run elsewhere. So a
worker that was not told claims in advance what its slots finish in AHEAD seconds, judged by what
they did of late. Should slower tasks come all of a sudden, what waits is given back: once the first
has waited for LATE, those behind it have no better prospects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import exp

from scheduler.lease import Attempt

AHEAD = 0.05  # seconds; of twice as much the gain is small, and twice as many wait
LATE = 0.25  # seconds
MOST = 490  # tasks, so that with ten slots a claim is of 500 at most: more gain little


class Fixed:
    """A worker that was told how many tasks to claim in advance."""

    def __init__(self, tasks: int) -> None:
        self.most = tasks

    def ended(self, seconds: float) -> None:
        """An attempt has run for so long and ended."""

    def ahead(self) -> int:
        """How many tasks may wait for a slot now."""
        return self.most

    def kept(self, claimed: Sequence[Attempt], free: int) -> Sequence[Attempt]:
        """What to keep of a claim, in its order, while so many slots are free."""
        return claimed

    def submitted(self, tasks: int) -> None:
        """So many tasks were handed to the slots, behind all that wait."""

    def late_in(self, waiting: int) -> float | None:
        """In how many seconds the first of those that wait has waited too long; None: never."""
        return None

    def given_back(self) -> None:
        """What waited was given back."""


class Pace:
    """A worker that was not told. Not thread-safe: the dispatcher's own."""

    most = MOST

    def __init__(self, slots: int, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._monotonic = monotonic
        self._looked = monotonic()
        self._ended = 0  # since then, and for how long they had run together
        self._ran = 0.0
        self._rate = 0.0  # attempts that end in a second, as of late
        self._busy = 0.0  # seconds that they had run, in a second
        self._submitted = 0
        self._batches = deque[tuple[int, float]]()  # the last number of each, and when it came

    def ended(self, seconds: float) -> None:
        """An attempt has run for so long and ended."""
        self._ended += 1
        self._ran += seconds

    def ahead(self) -> int:
        """How many tasks may wait for a slot now.

        As many as ended in AHEAD seconds; but tasks of a minute that end all at once have not
        become quick by that, so no more than the slots finish in that time by how long each ran.
        """
        now = self._monotonic()
        passed = now - self._looked
        if passed > 0:
            # Means over time that forget: of what is AHEAD old a third is left, after three times
            # that a twentieth.
            new = 1 - exp(-passed / AHEAD)
            self._rate += new * (self._ended / passed - self._rate)
            self._busy += new * (self._ran / passed - self._busy)
            self._looked, self._ended, self._ran = now, 0, 0.0
        by_rate = self._rate * AHEAD
        by_length = self._slots * AHEAD * self._rate / self._busy if self._busy > 0 else by_rate
        return min(MOST, int(min(by_rate, by_length)))

    def kept(self, claimed: Sequence[Attempt], free: int) -> Sequence[Attempt]:
        """What to keep of a claim, in its order, while so many slots are free.

        A worker that dies costs all that waits there an attempt. None of them shall be dead of that
        without having run, so a last attempt does not wait.
        """
        rest = [attempt for attempt in claimed[free:] if attempt.number < attempt.max_attempts]
        return [*claimed[:free], *rest]

    def submitted(self, tasks: int) -> None:
        """So many tasks were handed to the slots, behind all that wait."""
        if tasks:
            self._submitted += tasks
            self._batches.append((self._submitted, self._monotonic()))

    def late_in(self, waiting: int) -> float | None:
        """In how many seconds the first of those that wait has waited too long; None: none does."""
        while self._batches and self._batches[0][0] <= self._submitted - waiting:
            self._batches.popleft()
        return self._batches[0][1] + LATE - self._monotonic() if self._batches else None

    def given_back(self) -> None:
        """What waited was given back: nothing is claimed in advance until more has ended."""
        self._rate = self._busy = 0.0
