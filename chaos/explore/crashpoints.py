"""Crash points: breaks an actor at every statement and every commit of its life, in every way.

Where it can be broken is not written down anywhere: the actor runs once unbroken, and each step
that the gate on the wire sees it take is a point. So a statement that is new in the code is a new
point by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from chaos.explore.errors import ExplorerError
from chaos.explore.explore import database
from chaos.explore.program import Program
from chaos.explore.run import Bounds, Trace, run
from chaos.explore.schedule import (
    CRASH,
    CRASH_AFTER,
    LOST_REPLY,
    STEP,
    TERMINATE,
    Schedule,
    Step,
    show,
)
from chaos.explore.stage import Stage
from chaos.invariants.verdict import Outcome


class Point(NamedTuple):
    """One step of the unbroken life: a statement by its name, or the commit that follows it."""

    number: int  # from 1
    name: str
    title: str  # what the gate calls it

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class Way(NamedTuple):
    """How an actor is broken at a point: the fault, and whether its rival comes in before it goes
    on (if it does)."""

    name: str
    fault: str
    rival_first: bool = False


# A crash leaves the rest to the others. What is sent in autocommit mode has its commit with it, so
# `crashed after it was sent` is, at a statement, after it was executed and committed; inside a
# transaction, after it was executed; at a commit, after it was committed.
WAYS = (
    Way("crashed before it was sent", CRASH),
    Way("crashed after it was sent", CRASH_AFTER),
    Way("session terminated before it", TERMINATE),
    Way("reply lost", LOST_REPLY),
    Way("reply lost, back when another has taken over", LOST_REPLY, rival_first=True),
    Way("stopped until another has taken over", STEP, rival_first=True),
)


class Found(NamedTuple):
    """A failure: where and how the life was broken (nowhere: it fails unbroken), and what came."""

    at: str
    trace: Trace


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """The result for one program. `exercised` says how many of the `enumerated` crashes
    took place at the very step that they were meant for; `missing`, all that makes the evidence
    worth less, those that did not among it."""

    points: tuple[Point, ...]
    enumerated: int
    exercised: int
    missing: tuple[str, ...]
    failures: tuple[Found, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """`pass` only if every point was exercised in every way, nothing failed, and nothing is
        missing."""
        if self.failures:
            return "fail"
        whole = self.points and self.exercised == self.enumerated and not self.missing
        return "pass" if whole else "inconclusive"

    def lines(self) -> Iterator[str]:
        """For people."""
        yield (
            f"{len(self.points)} points, {self.enumerated} crashes enumerated, {self.exercised}"
            f" exercised, {len(self.failures)} failed; {self.seconds:.1f} s"
        )
        yield from (f"point {point}" for point in self.points)
        yield from (f"missing: {reason}" for reason in self.missing)
        yield from (f"failed: {found.at}" for found in self.failures)

    def __str__(self) -> str:
        lines = [self.outcome, *(f"  {line}" for line in self.lines())]
        return "\n".join([*lines, *(str(found.trace) for found in self.failures[:1])])


def crash_points(
    program: Program,
    dsn: str | None = None,
    names: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda at: None,
) -> CrashPoints:
    """Break the program's first actor at each of its steps in each of the `WAYS`.

    The second actor is the rival, which takes over from it; the others then set things right, one
    after the other. Each runs to its end; what must hold is the program's `invariant` and `at_end`,
    as for any schedule. `names` has shorter names for statements, by their titles. `progress` is
    told of each crash. Raises ExplorerError if there is no second actor.
    """
    if len(program.actors) < 2:
        raise ExplorerError(
            "a crash needs somebody to recover from it: give the program a second actor"
        )
    began = time.perf_counter()
    failures: list[Found] = []
    missing: list[str] = []
    with database(dsn) as found, Stage(found, program) as stage:
        unbroken = run(stage, (), Bounds())
        points = _points(program, unbroken, names or {})
        crashes = list(product(points, WAYS))
        if unbroken.violation is not None:
            failures.append(Found("unbroken", unbroken))
            crashes = []
        for point, way in crashes:
            at = f"{point}: {way.name}"
            progress(at)
            trace = run(stage, _schedule(program, unbroken, point, way), Bounds(), strict=False)
            if not _happened(unbroken, trace, point, way):
                missing.append(f"{at} did not come about; {show(trace.choices)!r} happened instead")
            if trace.violation is not None:
                failures.append(Found(at, trace))
        degraded = sorted(stage.degraded)
    enumerated = len(points) * len(WAYS)
    return CrashPoints(
        points=points,
        enumerated=enumerated,
        exercised=len(crashes) - len(missing),
        missing=(*missing, *degraded),
        failures=tuple(failures),
        seconds=time.perf_counter() - began,
    )


def _points(program: Program, unbroken: Trace, names: Mapping[str, str]) -> tuple[Point, ...]:
    """The steps that the first actor took, which it did before any other."""
    first = next(iter(program.actors))
    points: list[Point] = []
    last = ""
    for choice, event in zip(unbroken.choices, unbroken.events, strict=True):
        if choice != Step(first):
            break
        title = event.did.removeprefix(f"{first}: ").rpartition(" -> ")[0] or "commit"
        commits = title.lower() == "commit"
        last = last if commits else names.get(title, title)
        name = f"commit of {last}" if commits else last
        points.append(Point(len(points) + 1, name, title))
    return tuple(points)


def _schedule(program: Program, unbroken: Trace, point: Point, way: Way) -> Schedule:
    """The steps up to the point, the fault, and the rival's whole life if it comes in then."""
    first, rival, *_ = program.actors
    steps = [Step(first)] * (point.number - 1)
    if way.fault != STEP:
        steps.append(Step(first, way.fault))
    if way.rival_first:
        steps += [Step(rival)] * unbroken.choices.count(Step(rival))
    return tuple(steps)


_SAYS = {
    CRASH: "crashed: {}",
    CRASH_AFTER: "crashed after: {}",
    LOST_REPLY: "reply lost: {}",
    TERMINATE: "session terminated",
}


def _happened(unbroken: Trace, trace: Trace, point: Point, way: Way) -> bool:
    """Whether the life went as before up to the point, and was broken at that very step."""
    before = point.number - 1
    if trace.events[:before] != unbroken.events[:before]:
        return False
    if way.fault == STEP:
        return len(trace.events) > before
    says = _SAYS[way.fault].format(point.title).lower()  # drivers commit in capitals
    return len(trace.events) > before and trace.events[before].did.lower().startswith(says)
