"""The explorer as a hunter: its programs, the cheapest first, over one mutant after the other.

A program is searched much less far than by `chaos explore`: a planted bug shows in few schedules or
in none. The lives of the crash points are run unbroken, which is one schedule. Stages are kept open
from mutant to mutant, since most of what a short search costs is opening one.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import psycopg

from chaos.explore import crash_lives
from chaos.explore.clauses.programs import CLAUSES
from chaos.explore.crash_lives import LIVES, NAMES
from chaos.explore.errors import ExplorerError
from chaos.explore.program import Program, Violation
from chaos.explore.run import Bounds, Trace, run
from chaos.explore.schedule import Choice, Schedule, show
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.explore.search import Tally, minimise, search
from chaos.explore.stage import Stage
from chaos.hunt.equivalent import EQUIVALENT
from chaos.hunt.found import Hunted, Kill, hunt_again
from chaos.hunt.functions import besides, callers, replaced, standing
from chaos.invariants.judge import INVARIANTS
from chaos.mutants import MUTANTS, Mutant, planted
from scheduler import SchedulerError

MOST = 120  # schedules of one program for one mutant
# The invariants that the programs meet. The rest speaks of a whole run, or of workers as processes.
MET = frozenset(
    {
        "no-overlap",
        "fenced",
        "not-early",
        "attempts-bounded",
        "backs-off",
        "claim-bounded",
        "legal-steps",
        "effect-once",
        "limit-held",
        "progress",
        "reclaimed-in-time",
    }
)
# What they would judge and cannot meet: in a program no session idles by the server's own clock,
# nobody takes a COMMIT whose reply was lost for a failure, and it ends with the row that should not
# be, before that row aborts a claim. Scenarios have them all.
_LEFT = frozenset(
    {"holds-its-row-throughout", "lost-commit-is-a-failure", "one-row-aborts-the-claim"}
)
# Code that no program runs: what makes a worker of the functions that the actors call.
_WORKERS = (
    "scheduler.worker:",
    "scheduler.keeper:",
    "scheduler.slots:",
    "scheduler.watchdog:",
)


class Hunter(NamedTuple):
    """A program, and how far it is searched: not at all if there are no bounds, but run once.

    wide: whether it is a search among the races of all statements, which takes its time.
    database: programs of one database share what their installation makes. shows: the arguments
    of `chaos explore` that run it.
    """

    program: Program
    bounds: Bounds | None
    wide: bool
    database: str
    shows: str


def _hunters() -> Iterator[tuple[str, Hunter]]:
    for name, life in LIVES.items():
        yield f"life {name}", Hunter(life.program, None, False, "lives", f"{name} --crash-points")
    for name, known in CLAUSES.items():
        yield name, Hunter(known.program, known.bounds, False, "lives", name)
    for name, known in PROGRAMS.items():
        most = known.bounds.preemptions
        bounds = replace(
            known.bounds,
            preemptions=1 if most is None else min(1, most),
            crashes=0,
            lost_replies=0,
            schedules=MOST,
        )
        # Like the lives' installation, which finds that another program was there before.
        program = replace(known.program, install=crash_lives.install)
        yield name, Hunter(program, bounds, True, "programs", name)


HUNTERS = dict(_hunters())


class Baseline(NamedTuple):
    """A hunter on the unmodified scheduler: which statements it runs, which actors wait for locks,
    how long it takes, and what it found, which must be nothing."""

    name: str
    statements: frozenset[str]
    waits: frozenset[str]
    seconds: float
    schedules: int
    alarm: str


class _Stage(Stage):
    """A stage that remembers what the scheduler as it is does on it: which statements it runs, and
    which actors ever wait for a lock."""

    def __init__(self, dsn: str, program: Program) -> None:
        super().__init__(dsn, program)
        self.statements: set[str] = set()
        self.waits: frozenset[str] = frozenset()
        self.known = False  # whether all that is remembered already
        self.strict = False  # whether to wait where nobody waited is a failure

    def take(self, choice: Choice) -> None:
        super().take(choice)
        if not self.known:
            event = self.events[-1]
            self.waits |= set(event.waiting)
            self.statements |= {
                name for title, name in NAMES.items() if f": {title} -> " in event.did
            }

    def check(self) -> Violation | None:
        """Also a violation: waiting where the scheduler as it is passes over what is locked."""
        if self.strict and self.events:
            waiting = [name for name in self.events[-1].waiting if name not in self.waits]
            if waiting:
                who = ", ".join(waiting)
                return Violation("wait", f"progress: {who} waits for a lock, and never should here")
        return super().check()


@dataclass
class Stages:
    """Open stages by their hunters' names. `create` makes an empty database and returns its DSN."""

    create: Callable[[], str]

    def __post_init__(self) -> None:
        self._open: dict[str, tuple[_Stage, ExitStack]] = {}
        self._databases: dict[str, str] = {}

    def of(self, name: str) -> _Stage:
        """The stage of a hunter."""
        if name not in self._open:
            hunter = HUNTERS[name]
            if hunter.database not in self._databases:
                self._databases[hunter.database] = self.create()
            closing = ExitStack()
            stage = closing.enter_context(_Stage(self._databases[hunter.database], hunter.program))
            self._open[name] = stage, closing
        return self._open[name][0]

    def drop(self, name: str) -> None:
        """Close a hunter's stage, on which something went wrong."""
        if name in self._open:
            _, closing = self._open.pop(name)
            # What went wrong is told already; this is what is left of it.
            with suppress(ExplorerError, psycopg.Error, OSError):
                closing.close()

    def close(self) -> None:
        """Close them all."""
        for name in list(self._open):
            self.drop(name)


def baseline(name: str, stages: Stages) -> Baseline:
    """Run a hunter on the unmodified scheduler."""
    stage = stages.of(name)
    began = time.monotonic()
    trace, schedules = _look(stage, HUNTERS[name])
    seconds = time.monotonic() - began
    stage.known = True
    alarm = "" if trace is None else str(trace)
    return Baseline(name, frozenset(stage.statements), stage.waits, seconds, schedules, alarm)


def order(baselines: Iterable[Baseline], mutant: Mutant) -> list[Baseline]:
    """The hunters that can meet a mutant, the cheapest first: those that run what it changes.

    All of them if it changes the schema, and for a function those that run what calls it; none if
    it only changes code of the worker, which no program runs.
    Where it is written down why nothing can catch it, none of the wide ones.
    """
    if mutant.name in _LEFT or (mutant.invariant and mutant.invariant not in MET):
        return []
    changed = replaced(mutant)
    files = {edit.file for edit in mutant.edits}.union(*map(callers, changed or ()))
    everywhere = changed is None or any(
        not patch.target.startswith(_WORKERS) for patch in mutant.patches
    )
    ranked = sorted(baselines, key=lambda one: one.seconds)
    return [
        one
        for one in ranked
        if (everywhere or one.statements & files)
        and not (HUNTERS[one.name].wide and mutant.name in EQUIVALENT)
    ]


def hunt(
    mutant: Mutant, hunters: Sequence[Baseline], stages: Stages, *, minimal: bool = True
) -> Hunted:
    """Hunt one mutant until its named invariant fails; if it names none, until anything does.

    minimal: whether the schedule is made so, by trying to leave out each of its steps.
    """
    functions = replaced(mutant)
    own = functions is None
    if own:  # a schema of its own, which nobody else may meet
        stages = Stages(stages.create)
    found: list[Kill] = []
    schedules = 0
    broke = ""
    began = time.monotonic()
    try:
        with planted(mutant if own else besides(mutant)):
            for hunter in hunters:
                try:
                    kill, looked = _try(
                        mutant,
                        hunter,
                        stages,
                        functions or {},
                        began,
                        minimal=minimal,
                        # Whoever waits is seen at once, and would hide what comes of it.
                        strict=mutant.invariant in ("", "progress"),
                    )
                except (ExplorerError, psycopg.Error, OSError) as error:
                    broke = f"{hunter.name}: {' '.join(str(error).split())}"
                    stages.drop(hunter.name)
                    continue
                schedules += looked
                if kill is not None:
                    found.append(kill)
                    if mutant.invariant in ("", kill.invariant):
                        break
    finally:
        if own:
            stages.close()
    killed = bool(found) and mutant.invariant in ("", found[-1].invariant)
    return Hunted(
        mutant.name,
        mutant.stands_for,
        mutant.invariant,
        found.pop() if killed else None,
        tuple(found),
        schedules,
        time.monotonic() - began,
        broke=broke,
    )


def _try(
    mutant: Mutant,
    hunter: Baseline,
    stages: Stages,
    functions: Mapping[str, str],
    began: float,
    *,
    minimal: bool,
    strict: bool,
) -> tuple[Kill | None, int]:
    """What one hunter finds, and in how many schedules."""
    stage = stages.of(hunter.name)
    stage.known, stage.strict, stage.waits = True, strict, hunter.waits
    with standing(stage.admin, functions):
        try:
            trace, looked = _look(stage, HUNTERS[hunter.name])
        except (AssertionError, psycopg.Error, SchedulerError) as error:
            # How a program begins is the scheduler's work, too.
            if isinstance(error, psycopg.Error) and error.sqlstate is None:
                raise
            violation = Violation("setup", " ".join(str(error).split()))
            seconds = time.monotonic() - began
            return _kill(mutant, hunter.name, violation, seconds, ()), 1
        seconds = time.monotonic() - began
        if trace is None or trace.violation is None:
            return None, looked
        if minimal:
            trace = minimise(stage, trace)
    assert trace.violation is not None
    return _kill(mutant, hunter.name, trace.violation, seconds, trace.choices), looked


def _look(stage: Stage, hunter: Hunter) -> tuple[Trace | None, int]:
    """The schedule that fails, if one does, and how many were run."""
    if hunter.bounds is None:
        trace = run(stage, (), Bounds())
        return (None if trace.violation is None else trace), 1
    tally = Tally()
    return search(stage, hunter.bounds, tally, lambda tally: None), tally.schedules


def _kill(
    mutant: Mutant, name: str, violation: Violation, seconds: float, choices: Schedule
) -> Kill:
    invariant = violation.named if violation.named in INVARIANTS else None
    sentence = f"{violation.what}: {violation.sentence}"
    if invariant is not None:
        sentence = violation.said.removeprefix(f"{invariant}: ")
    again = hunt_again(mutant)
    # That an actor waits where it should not is a failure only here, and a setup has no schedule.
    if mutant.name in MUTANTS and violation.what not in ("wait", "setup"):
        shows = HUNTERS[name].shows.split()
        system = f"leaseproof:{mutant.name}"
        again = shlex.join(
            ["chaos", "explore", *shows, "--system", system, "--replay", show(choices)]
        )
    schedule = show(choices) or "before the first step"
    return Kill(f"explorer: {name}", invariant, sentence, seconds, again, schedule)
