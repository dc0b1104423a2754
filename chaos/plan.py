"""What is still to be injected in a run, and when it is time for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from chaos.faults import Fault

AGAIN = 2  # how many more times a fault that did not bite may be tried, for each one planned
# Seconds before and after its time in which a replay's fault waits for its own moment and target.
WISH = 2.0


class Planned(NamedTuple):
    """One injection that is to come.

    when: seconds since the load began. fault: which of the scenario's faults. A replay wishes more:
    tasks: strike a worker that holds one of these, or operate on one; none: whichever fits the
    fault's aim. done: wait until so many tasks are completed or dead; None: for nothing.
    """

    when: float
    fault: int
    tasks: frozenset[int] = frozenset()
    done: int | None = None


class Plan:
    """The injections that are to come. Times are in seconds since the load began."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._left = list(planned)
        self._again: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._left)

    def due(self, since: float, done: int) -> list[Planned]:
        """What may be injected now, with so many tasks done: of each fault the first.

        So none waits for another that finds no target.
        """
        first = {one.fault: one for one in reversed(self._left) if is_time(one, since, done)}
        return list(first.values())

    def injected(self, planned: Planned) -> None:
        """It was."""
        self._left.remove(planned)

    def once_more(self, index: int, fault: Fault, since: float) -> None:
        """Plan a fault again that did not bite, unless that was done often enough.

        It struck a worker in the moment in which that had nothing to lose. The verdict still wants
        to see it bite.
        """
        if self._again[index] < (0 if fault.once else AGAIN * fault.count):
            self._again[index] += 1
            self._left.append(Planned(since, index))


def is_time(planned: Planned, since: float, done: int) -> bool:
    """Whether an injection may be tried, so long and so many done tasks after the load began.

    A replay's goes by what was done: another run, or machine, gets there sooner or later.
    """
    if planned.done is None or since >= planned.when + WISH:
        return since >= planned.when
    return since >= planned.when - WISH and done >= planned.done


def wanted(planned: Planned, since: float) -> frozenset[int]:
    """One of which tasks the target must hold; none: any.

    Whom a replay wants may never come up: after a while whoever fits the aim will do.
    """
    return planned.tasks if since < planned.when + WISH else frozenset()
