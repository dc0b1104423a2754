"""Searches all schedules within bounds, the simplest first, and makes a failing one minimal.

The search is stateless: a schedule is a prefix of forced steps, completed without preemptions;
each step after the prefix where something else could have happened begins another prefix. So every
schedule is run exactly once. They are taken in the order of their preemptions, then of their
faults: the first that fails has the fewest.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.explore.errors import ScheduleError
from chaos.explore.run import Bounds, Trace, fault, run
from chaos.explore.schedule import Choice, Schedule, show
from chaos.explore.stage import Event, Stage


@dataclass(slots=True)
class Tally:
    """What a search has seen so far."""

    schedules: int = 0
    steps: int = 0
    deepest: int = 0  # preemptions
    pruned: bool = False  # whether the bound on preemptions left anything out
    cut: bool = False  # whether the limit on schedules did
    returned: Counter[str] = field(default_factory=Counter)  # by actor, schedules
    raised: dict[str, Counter[str]] = field(default_factory=dict)  # by actor and exception
    crashed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # schedules with at least one, by kind
    blocked: int = 0  # schedules in which an actor waited for a lock
    checked: int = 0  # schedules whose steps were compared with an earlier run of them
    degraded: set[str] = field(default_factory=set)

    def add(self, trace: Trace) -> None:
        """Count one schedule."""
        self.schedules += 1
        self.steps += len(trace.choices)
        self.deepest = max(self.deepest, trace.preemptions)
        self.blocked += any(event.waiting for event in trace.events)
        self.faults.update(trace.faults.keys())
        for name, ending in trace.endings.items():
            if ending.ok:
                self.returned[name] += 1
            elif ending.error is not None:
                names = self.raised.setdefault(name, Counter())
                names[type(ending.error).__name__] += 1
            else:
                self.crashed[name] += 1


class _Branch(NamedTuple):
    """A prefix that is still to be run: the first steps of an earlier schedule, and another one."""

    parent: Schedule
    events: tuple[Event, ...]  # of the parent
    at: int
    choice: Choice | None

    @property
    def prefix(self) -> Schedule:
        return (*self.parent[: self.at], self.choice) if self.choice is not None else ()


def search(
    stage: Stage, bounds: Bounds, tally: Tally, progress: Callable[[Tally], None]
) -> Trace | None:
    """Run schedules until one fails, which is returned, or none within the bounds is left."""
    count = 0
    waiting = [(0, 0, count, _Branch((), (), 0, None))]
    samples: list[Trace] = []
    while waiting:
        if tally.schedules >= bounds.schedules:
            tally.cut = True
            break
        _, _, _, branch = heapq.heappop(waiting)
        try:
            trace = run(stage, branch.prefix, bounds)
        except ScheduleError as error:
            tally.degraded.add(f"not deterministic: a schedule could not be run again: {error}")
            continue
        tally.add(trace)
        if branch.at:
            tally.checked += 1
            _compare(branch.events[: branch.at], trace.events, trace, tally)
        if tally.schedules % 100 == 1:
            progress(tally)
        if trace.violation is not None:
            return trace
        samples = [*samples[:1], trace]
        for at in range(len(branch.prefix), len(trace.choices)):
            preempted, faults = trace.costs[at]
            for option in trace.options[at]:
                cost = preempted + option.preempts
                if bounds.preemptions is not None and cost > bounds.preemptions:
                    tally.pruned = True
                    continue
                count += 1
                more = faults + (fault(option.choice) is not None)
                following = _Branch(trace.choices, trace.events, at, option.choice)
                heapq.heappush(waiting, (cost, more, count, following))
    for trace in samples:
        recheck(stage, trace, tally)
    return None


def recheck(stage: Stage, trace: Trace, tally: Tally) -> None:
    """Run a whole schedule a second time; it must be the same."""
    tally.checked += 1
    try:
        again = run(stage, trace.choices, Bounds())
    except ScheduleError as error:
        tally.degraded.add(f"not deterministic: {error}")
        return
    _compare(trace.events, again.events, trace, tally)
    if (trace.violation is None) != (again.violation is None):
        tally.degraded.add(f"not deterministic: {show(trace.choices)} failed once of twice")


def minimise(stage: Stage, trace: Trace) -> Trace:
    """The simplest schedule that fails in the same way, found by leaving out step after step.

    In the same way is: the same invariant fails, where one is named.

    Simpler is: fewer faults, then shorter, then fewer preemptions.
    """
    best = trace
    again = True
    while again:
        again = False
        for at in range(len(best.choices)):
            try:
                tried = run(stage, (*best.choices[:at], *best.choices[at + 1 :]), Bounds())
            except ScheduleError:
                continue
            if _same_failure(tried, best) and _weight(tried) < _weight(best):
                best, again = tried, True
                break
    return best


def _weight(trace: Trace) -> tuple[int, int, int]:
    return trace.faults.total(), len(trace.choices), trace.preemptions


def _same_failure(one: Trace, other: Trace) -> bool:
    if one.violation is None or other.violation is None:
        return False
    # Fewer steps may break another rule first; then the schedule would show another failure.
    return (one.violation.what, one.violation.named) == (
        other.violation.what,
        other.violation.named,
    )


def _compare(
    before: tuple[Event, ...], after: tuple[Event, ...], trace: Trace, tally: Tally
) -> None:
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        if one != other:
            tally.degraded.add(
                f"not deterministic: step {number} of {show(trace.choices)!r} did"
                f" {one.did!r} once and {other.did!r} another time"
            )
            return
