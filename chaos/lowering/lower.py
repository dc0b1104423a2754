"""Finds a recorded failure again: in the order of the run first, then in all orders around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from chaos.explore.pytest_code import pytest_function
from chaos.explore.run import Bounds, Trace, fault, run
from chaos.explore.schedule import Advance, Schedule, Step
from chaos.explore.scheduler_actors import LEASE
from chaos.explore.search import Tally, minimise, recheck, search
from chaos.explore.stage import Stage
from chaos.history.events import History
from chaos.history.lives import lives
from chaos.invariants.judge import INVARIANTS
from chaos.invariants.verdict import Failure
from chaos.lowering.projection import (
    LOWERABLE,
    NAMES,
    CannotLowerError,
    Projection,
    projections,
)
from chaos.lowering.script import Script

SCHEDULES = 500  # of one script that is searched, at most
FAILURES = 3  # of one invariant that are tried, at most
SECOND = timedelta(seconds=1)
_TIMES = (SECOND, LEASE + SECOND)  # instead of what went by in the run, if that does as well

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Lowered:
    """A recorded failure, found again.

    recorded: what was wrong in the run. cast: who each actor was there. searched: how many
    schedules it took when the order of the run did not show it; 0 if it did.
    """

    recorded: str
    script: Script
    trace: Trace
    cast: Mapping[str, str]
    searched: int

    def test(self, mutant: str | None) -> str:
        """As the source of a test module; `mutant` names the bug that was planted in the run."""
        assert self.trace.violation is not None
        program = self.script.program()
        story = [f"recorded: {self.recorded}"]
        story += [f"{name} was {who}" for name, who in self.cast.items()]
        return pytest_function(program, self.trace.choices, self.trace.violation, mutant, story)


def lower(
    history: History, dsn: str, invariant: str | None = None, tell: Tell = lambda text: None
) -> Lowered:
    """Find the first failure of an invariant again: of this one, or of the first that it can.

    The database must be empty, and is used as a superuser and alone. The bug that was planted in
    the run must be `planted` here, too. Raises CannotLowerError, and ExplorerError.
    """
    told = lives(history)
    failed = {}
    for name in INVARIANTS if invariant is None else [invariant]:
        verdict = INVARIANTS[name](history, told)
        if verdict.outcome == "fail":
            failed[name] = sorted(verdict.failures, key=_commit)
    if not failed:
        raise CannotLowerError(f"the run did not fail {invariant or 'any invariant'}")
    reasons: dict[str, None] = {}
    for name in sorted(failed, key=_preference):
        for failure in failed[name][:FAILURES]:
            tell(f"{name}: {failure.sentence}")
            try:
                found = _find(projections(history, told, name, failure), dsn, failure, tell)
            except CannotLowerError as error:
                reasons[str(error)] = None
                break
            if found is not None:
                return found
        else:
            reasons[f"no schedule of what was done to the tasks concerned fails {name}"] = None
    raise CannotLowerError("; ".join(reasons))


def _commit(failure: Failure) -> float:
    return float("inf") if failure.seq is None else failure.seq


def _preference(name: str) -> int:
    """Those that say most of the cause come first, those that cannot be lowered last."""
    return LOWERABLE.index(name) if name in LOWERABLE else len(LOWERABLE)


def _find(looks: list[Projection], dsn: str, failure: Failure, tell: Tell) -> Lowered | None:
    """Look in every script as the run went, then around that; the first that fails, made small."""
    for look in looks:
        trace = _failing(look.script, look.schedule, dsn)
        if trace is not None:
            return _smallest(Lowered(failure.sentence, look.script, trace, look.cast, 0), dsn)
    for look in looks:
        tell(f"searching around {' | '.join(look.script.actors.values())}")
        tally = Tally()
        with Stage(dsn, look.script.program()) as stage:
            trace = search(stage, _around(look.schedule), tally, lambda tally: None)
        if trace is None or not _fails(trace):
            continue
        found = Lowered(failure.sentence, look.script, trace, look.cast, tally.schedules)
        return _smallest(found, dsn)
    return None


def _around(schedule: Schedule) -> Bounds:
    """As many faults of each kind as the run had there, at most one; two moves of the clock."""
    faults = [fault(choice) for choice in schedule]
    return Bounds(
        preemptions=2,
        crashes=min(1, faults.count("crash")),
        lost_replies=min(1, faults.count("lost reply")),
        advances=min(2, faults.count("advance")),
        advance_by=2 * LEASE,
        schedules=SCHEDULES,
    )


def _fails(trace: Trace) -> bool:
    return trace.violation is not None and trace.violation.what == "invariant"


def _failing(script: Script, schedule: Schedule, dsn: str) -> Trace | None:
    """The schedule of this script, if it fails; steps that cannot be are left out."""
    with Stage(dsn, script.program()) as stage:
        trace = run(stage, schedule, Bounds(), strict=False)
    return trace if _fails(trace) else None


def _smallest(found: Lowered, dsn: str) -> Lowered:
    """The same failure with less: without actors, words, tasks and time that it does not need."""
    found = _in_fewer_words(found, dsn)
    with Stage(dsn, found.script.program()) as stage:
        trace = minimise(stage, _in_less_time(stage, minimise(stage, found.trace)))
    found = _named_in_order(_in_fewer_words(replace(found, trace=trace), dsn), dsn)
    with Stage(dsn, found.script.program()) as stage:
        tally = Tally()
        recheck(stage, found.trace, tally)
    if tally.degraded:
        raise CannotLowerError(f"its schedule is not the same twice: {min(tally.degraded)}")
    return found


def _named_in_order(found: Lowered, dsn: str) -> Lowered:
    """The first actor that is left is `a`, and so on."""
    names = dict(zip(found.script.actors, NAMES, strict=False))
    actors = {names[name]: words for name, words in found.script.actors.items()}
    schedule = tuple(
        choice._replace(actor=names[choice.actor]) if isinstance(choice, Step) else choice
        for choice in found.trace.choices
    )
    script = replace(found.script, actors=actors)
    with Stage(dsn, script.program()) as stage:
        trace = run(stage, schedule, Bounds())
    cast = {names[name]: who for name, who in found.cast.items() if name in names}
    return replace(found, script=script, trace=trace, cast=cast)


def _in_fewer_words(found: Lowered, dsn: str) -> Lowered:
    again = True
    while again:
        again = False
        for script, schedule in _smaller(found.script, found.trace.choices):
            trace = _failing(script, schedule, dsn)
            if trace is not None:
                found, again = replace(found, script=script, trace=trace), True
                break
    return found


def _smaller(script: Script, schedule: Schedule) -> Iterator[tuple[Script, Schedule]]:
    """The script with one thing less, or as it usually is, and what is left of the schedule."""
    actors = script.actors
    if script.attempts != Script.attempts:
        yield replace(script, attempts=Script.attempts), schedule
    if script.claims != Script.claims and script.invariant != "claim-bounded":
        yield replace(script, claims=Script.claims), schedule
    if len(actors) > 1:
        for name in actors:
            others = {other: words for other, words in actors.items() if other != name}
            yield replace(script, actors=others), schedule
    for name, text in actors.items():
        words = text.split()
        for at, word in enumerate(words):
            if len(words) > 1:
                less = _saying(script, name, [*words[:at], *words[at + 1 :]])
                yield less, _without(schedule, name, _steps(script, words[:at]), script.steps(word))
            act, _, number = word.partition(":")
            if act in ("claim", "enqueue") and number:
                fewer = act if number == "2" else f"{act}:{int(number) - 1}"
                less = _saying(script, name, [*words[:at], fewer, *words[at + 1 :]])
                yield less, schedule
                if (script.cap or 0) > 1:
                    yield replace(less, cap=(script.cap or 0) - 1), schedule
                if (script.limit or 0) > 1:
                    yield replace(less, limit=(script.limit or 0) - 1), schedule
                if script.claims > 1:
                    yield replace(less, claims=script.claims - 1), schedule
    if script.tasks > 1:
        yield replace(script, tasks=script.tasks - 1), schedule


def _steps(script: Script, words: list[str]) -> int:
    return sum(map(script.steps, words))


def _without(schedule: Schedule, name: str, start: int, many: int) -> Schedule:
    """The schedule without so many of an actor's steps from one of them on, counted from 0."""
    own = [
        at
        for at, choice in enumerate(schedule)
        if isinstance(choice, Step) and choice.actor == name
    ]
    gone = set(own[start : start + many])
    return tuple(choice for at, choice in enumerate(schedule) if at not in gone)


def _saying(script: Script, name: str, words: list[str]) -> Script:
    return replace(script, actors={**script.actors, name: " ".join(words)})


def _in_less_time(stage: Stage, trace: Trace) -> Trace:
    """With moves of the clock that are as short as they may be, of a few that are easily read."""
    for at, choice in enumerate(trace.choices):
        for by in _TIMES:
            if isinstance(choice, Advance) and by < choice.by:
                schedule = (*trace.choices[:at], Advance(by), *trace.choices[at + 1 :])
                shorter = run(stage, schedule, Bounds(), strict=False)
                if _fails(shorter) and not shorter.skipped:
                    trace = shorter
                    break
    return trace
