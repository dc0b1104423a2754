"""How many tasks a worker claims in advance when nobody said: as many as it runs in a moment.

Where handlers are quick the round trips of claims decide, so a worker that has a few hundred tasks
waiting runs many times as many. Where they are slow, what waits here could run elsewhere. So what
waits is measured in time: by how many attempts ended lately, what is claimed in advance would be
begun within AHEAD. Should the handlers be slower than that all of a sudden, what has waited for
LATE is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import exp

AHEAD = 0.05  # seconds
LATE = 0.25  # seconds
MOST = 490  # tasks; more in one claim gain little, and are as many attempts if the worker dies


class Pace:
    """Counts what is handed to the slots and what ends. Not thread-safe: the dispatcher's own."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._looked = monotonic()
        self._ended = 0
        self._rate = 0.0  # attempts that end in a second, as of late
        self._submitted = 0
        self._batches = deque[tuple[int, float]]()  # the last number of each, and when it came

    def ended(self) -> None:
        """An attempt has run and ended."""
        self._ended += 1

    def ahead(self) -> int:
        """How many tasks may wait for a slot."""
        now = self._monotonic()
        passed = now - self._looked
        if passed > 0:
            # A mean in which what is older than AHEAD counts for little.
            self._rate += (1 - exp(-passed / AHEAD)) * (self._ended / passed - self._rate)
            self._looked, self._ended = now, 0
        return min(MOST, int(self._rate * AHEAD))

    def submitted(self, tasks: int) -> None:
        """So many tasks were handed to the slots, behind all that wait."""
        if tasks:
            self._submitted += tasks
            self._batches.append((self._submitted, self._monotonic()))

    def late_in(self, waiting: int) -> float | None:
        """In how many seconds the first that waits has waited too long; None if none waits."""
        while self._batches and self._batches[0][0] <= self._submitted - waiting:
            self._batches.popleft()
        return self._batches[0][1] + LATE - self._monotonic() if self._batches else None
