"""The state machine of a task's life as a hunter, for mutants that the explorer's programs left.

It knows what each call must answer and change, and no invariant by name: so it is for mutants that
name none. It stops at the first failure, which mostly comes within some dozens of examples.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from chaos.hunt.found import Hunted, Kill, hunt_again
from chaos.hunt.functions import besides, replaced, standing
from chaos.life.machine import TaskLife
from chaos.life.world import World, world
from chaos.mutants import Mutant, planted
from scheduler import SchedulerError

NAME = "state machine"
MOST = 2_000  # examples for a mutant; one that is caught mostly takes some dozens
CALM = 30  # examples on the scheduler as it is
STEPS = 50

_SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "stateful_step_count": STEPS,
    "phases": [Phase.generate],
    "report_multiple_bugs": False,
    "print_blob": False,
    "suppress_health_check": list(HealthCheck),  # how long it takes is the machine's doing
}
# What a call answers, or how it fails, where the scheduler is not what the model says.
_WRONG = (AssertionError, psycopg.Error, SchedulerError, FlakyFailure)


@dataclass
class Worlds:
    """The databases in which it runs. `create` makes an empty one and returns its DSN."""

    create: Callable[[], str]
    _kept: list[World] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def genuine(self, functions: Mapping[str, str]) -> Iterator[World]:
        """The one that is kept, with these functions in place of the scheduler's."""
        if not self._kept:
            self._kept.append(self._open.enter_context(self.own()))
        [kept] = self._kept
        with standing(kept.db, functions):
            yield kept

    @contextmanager
    def own(self) -> Iterator[World]:
        """One with the schema that this process would make now."""
        with closing(psycopg.connect(self.create(), autocommit=True)) as connection:
            yield world(connection)

    def close(self) -> None:
        """Close the kept one."""
        self._open.close()


def alarm(worlds: Worlds) -> str:
    """What it says of the scheduler as it is, which must be nothing."""
    with worlds.genuine({}) as calm:
        error, _ = _failure(calm, CALM)
    return "" if error is None else "\n".join([_sentence(error), *_steps(error)])


def hunt(before: Hunted, mutant: Mutant, worlds: Worlds, most: int = MOST) -> Hunted:
    """Run it on a mutant, and add what that found."""
    began = time.monotonic()
    functions = replaced(mutant)
    with planted(mutant if functions is None else besides(mutant)):
        place = worlds.own() if functions is None else worlds.genuine(functions)
        with place as changed:
            error, examples = _failure(changed, most)
    seconds = before.seconds + time.monotonic() - began
    kill = None
    if error is not None:
        again = hunt_again(mutant)
        kill = Kill(NAME, None, _sentence(error), seconds, again, _schedule(error))
    broke = "" if kill else before.broke
    return replace(before, kill=kill, examples=examples, seconds=seconds, broke=broke)


def _failure(place: World, most: int) -> tuple[BaseException | None, int]:
    """What went wrong, if anything did, and how many examples were run."""

    class Counted(TaskLife):
        """Hypothesis makes one for each example."""

        examples = 0

        def __init__(self) -> None:
            Counted.examples += 1
            super().__init__()

    log = logging.getLogger("scheduler")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of schedules that go
    TaskLife.world = place
    try:
        # The seed alone does not make examples the same everywhere: Hypothesis draws constants
        # of the modules that are loaded as well.
        run_state_machine_as_test(
            seed(1)(Counted), settings=settings(max_examples=most, **_SETTINGS)
        )
    except _WRONG as error:
        failure = error.exceptions[0] if isinstance(error, FlakyFailure) else error
        return failure, Counted.examples
    finally:
        TaskLife.world = None
        log.setLevel(level)
    return None, Counted.examples


def _sentence(error: BaseException) -> str:
    """What was wrong: the assertion as it is written, or what the database said."""
    if isinstance(error, AssertionError) and not str(error):
        line = traceback.extract_tb(error.__traceback__)[-1].line
        return " ".join((line or "an assertion").split())
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _steps(error: BaseException) -> list[str]:
    """The example, as Hypothesis prints it: code that runs."""
    notes: list[str] = getattr(error, "__notes__", [])
    return [note for note in notes if note.startswith("state.")]


def _schedule(error: BaseException) -> str:
    steps = [step for step in _steps(error) if step != "state.teardown()"]
    return f"{len(steps)} steps, the last {steps[-1]}" if steps else "before the first step"
