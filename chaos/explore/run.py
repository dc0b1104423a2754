"""Runs one schedule: the steps it is given, then each actor to its end without a preemption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.program import Endings, Violation
from chaos.explore.schedule import (
    CRASH,
    CRASH_AFTER,
    LOST_REPLY,
    STEP,
    TERMINATE,
    Advance,
    Choice,
    Schedule,
    Step,
    show,
)
from chaos.explore.stage import Event, Stage

LONGEST = 1000  # steps of one schedule: more is an actor that never ends


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far to search. A preemption is a switch away from an actor that could have gone on.

    preemptions: at most this many; None for every interleaving there is.
    crashes, lost_replies, terminations, advances: at most this many of each in one schedule.
    advance_by: how far each advance moves the database's clock.
    schedules: stop after this many; a search that was cut short is inconclusive.
    """

    preemptions: int | None = 2
    crashes: int = 0
    lost_replies: int = 0
    terminations: int = 0
    advances: int = 0
    advance_by: timedelta = timedelta(seconds=60)
    schedules: int = 20_000

    def budget(self) -> dict[str, int]:
        """How many faults of each kind one schedule may have."""
        return {
            "crash": self.crashes,
            "lost reply": self.lost_replies,
            "termination": self.terminations,
            "advance": self.advances,
        }


class Option(NamedTuple):
    """Another choice that could have been made, and how many preemptions (0, 1) it costs."""

    choice: Choice
    preempts: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One schedule as it went."""

    choices: Schedule
    options: tuple[tuple[Option, ...], ...]  # for each step, what could have been done instead
    costs: tuple[tuple[int, int], ...]  # preemptions and faults before each step
    events: tuple[Event, ...]
    preemptions: int
    faults: Counter[str]
    violation: Violation | None
    endings: Endings
    skipped: Schedule = ()

    def __str__(self) -> str:
        lines = [show(self.choices), *(f"  {event}" for event in self.events)]
        if self.violation is not None:
            lines.append(f"  {self.violation.what}: {self.violation.sentence}")
        return "\n".join(lines)


def fault(choice: Choice) -> str | None:
    """The kind of fault that a choice is, if it is one."""
    if isinstance(choice, Advance):
        return "advance"
    return {
        STEP: None,
        CRASH: "crash",
        CRASH_AFTER: "crash",
        LOST_REPLY: "lost reply",
        TERMINATE: "termination",
    }[choice.what]


def run(stage: Stage, prefix: Sequence[Choice], bounds: Bounds, strict: bool = True) -> Trace:
    """Run a schedule and check it after every step, up to its end or its first violation.

    Without `strict` a step that cannot be taken is passed over. Raises ScheduleError otherwise.
    """
    stage.begin()
    todo = list(prefix)
    choices: list[Choice] = []
    alternatives: list[tuple[Option, ...]] = []
    costs: list[tuple[int, int]] = []
    skipped: list[Choice] = []
    faults: Counter[str] = Counter()
    preemptions = 0
    current: str | None = None
    violation = _check(stage)
    while violation is None:
        ready = stage.ready()
        if not ready and not todo:
            violation = stage.check_end()
            break
        options = _options(stage, ready, current, bounds, faults, first=not choices)
        if todo:
            choice = todo.pop(0)
            try:
                stage.take(choice)
            except ScheduleError as error:
                if strict:
                    stage.abandon()
                    raise ScheduleError(
                        f"step {len(choices) + 1} of {show(prefix)!r}: {error}"
                    ) from error
                skipped.append(choice)
                continue
        else:
            choice = options[0].choice
            stage.take(choice)
        costs.append((preemptions, faults.total()))
        preemptions += _preempts(choice, current, ready)
        if (kind := fault(choice)) is not None:
            faults[kind] += 1
        if isinstance(choice, Step) and choice.what in (STEP, LOST_REPLY):
            current = choice.actor
        choices.append(choice)
        alternatives.append(tuple(option for option in options if option.choice != choice))
        violation = _check(stage)
        if len(choices) > LONGEST:
            stage.abandon()
            raise ExplorerError(
                f"a schedule did not end within {LONGEST} steps: bound the loops of its actors"
            )
    endings = stage.endings()
    stage.finish()
    return Trace(
        tuple(choices),
        tuple(alternatives),
        tuple(costs),
        tuple(stage.events),
        preemptions,
        faults,
        violation,
        endings,
        tuple(skipped),
    )


def _check(stage: Stage) -> Violation | None:
    """What is wrong after a step, and after each commit that it brings about by itself."""
    violation = stage.check()
    while violation is None and stage.follow():
        violation = stage.check()
    return violation


def _preempts(choice: Choice, current: str | None, ready: Sequence[str]) -> int:
    """Whether a choice takes the turn from an actor that could have gone on."""
    if isinstance(choice, Advance) or choice.what in (CRASH, TERMINATE):
        return 0
    return int(current in ready and choice.actor != current)


def _options(
    stage: Stage,
    ready: Sequence[str],
    current: str | None,
    bounds: Bounds,
    faults: Counter[str],
    *,
    first: bool,
) -> list[Option]:
    """All that could happen now, what happens by default first.

    Nothing is left out because it "commutes" with something: two claims that touched different
    rows do not, since each would have skipped what the other held. One thing is: an actor that
    crashes before its first step is the same at whatever time, so it may do so only first.
    """
    order = [*(n for n in ready if n == current), *(n for n in ready if n != current)]
    choices: list[Choice] = [Step(name) for name in order]
    left = {kind for kind, most in bounds.budget().items() if faults[kind] < most}
    commits = [name for name in order if stage.commits_next(name)] if left else []
    if "lost reply" in left:
        choices += [Step(name, LOST_REPLY) for name in commits]
    if "crash" in left:
        choices += [Step(n, CRASH) for n in stage.live() if first or stage.started(n)]
        choices += [Step(name, CRASH_AFTER) for name in commits]
    if "termination" in left:
        choices += [Step(name, TERMINATE) for name in stage.live() if stage.started(name)]
    if "advance" in left and stage.live():
        choices.append(Advance(bounds.advance_by))
    return [Option(choice, _preempts(choice, current, ready)) for choice in choices]
