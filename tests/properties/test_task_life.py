"""A task's whole life against a small model: any sequence of steps, all rows after each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.cluster.postgres import Postgres
from chaos.life.machine import TaskLife
from chaos.life.world import world
from chaos.mutants import MUTANTS, planted
from chaos.mutants.mutant import Mutant
from scheduler import SchedulerError

MODEST: dict[str, Any] = {"deadline": None, "database": None, "stateful_step_count": 50}
# Which examples there are differs even so, with the modules that are loaded. It ends at the first
# failure, after some dozens: this is far more than any bug here has taken.
SEARCH = settings(
    max_examples=2_000,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
    **MODEST,
)
Wrong = (AssertionError, psycopg.Error, SchedulerError)


@contextmanager
def bound(server: Postgres) -> Iterator[None]:
    """The machine over a database of its own."""
    name = f"test_{uuid4().hex}"
    server.create_database(name)
    try:
        with closing(psycopg.connect(server.dsn(name), autocommit=True)) as connection:
            TaskLife.world = world(connection)
            yield
    finally:
        TaskLife.world = None
        server.drop_database(name)


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[None]:
    """The machine's database, for all tests that leave the scheduler as it is in it."""
    with bound(server):
        yield


@pytest.mark.slow
def test_a_task_lives_as_the_model_says(database: None) -> None:
    run_state_machine_as_test(TaskLife, settings=settings(max_examples=30, **MODEST))


# What one session alone cannot show: a race, who waits for whom, a token that is issued twice. Nor
# does this machine run the worker's own code, which patches change.
BEYOND = {
    *("claim-without-lock", "cap-read-then-updated", "keys-without-an-index"),
    *("claim-waits-for-locked-rows", "holds-its-row-throughout", "fenced-by-token-only"),
    *(name for name, mutant in MUTANTS.items() if mutant.patches),
}
# What an earlier form of this machine showed, and this one did not in 400 examples.
NOT_SHOWN = {"occurrence-planned-twice"}


def caught(mutant: Mutant, server: Postgres) -> None:
    with planted(mutant), bound(server), pytest.raises(Wrong):
        run_state_machine_as_test(TaskLife, settings=SEARCH)


MAIN = ("complete-without-fence",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in MAIN else pytest.param(name, marks=pytest.mark.chaos_long)
        for name in sorted(MUTANTS.keys() - BEYOND - NOT_SHOWN)
    ],
)
def test_the_machine_catches_a_planted_bug(server: Postgres, name: str) -> None:
    caught(MUTANTS[name], server)


@pytest.mark.chaos_long
def test_a_failing_example_is_printed_as_code_that_fails_again(server: Postgres) -> None:
    shrink = settings(SEARCH, phases=[Phase.generate, Phase.shrink])
    with planted(MUTANTS["snooze-lowers-the-token"]), bound(server):
        with pytest.raises(Wrong) as found:
            run_state_machine_as_test(TaskLife, settings=shrink)
        notes = found.value.__notes__
        code = "\n".join(notes[notes.index("state = TaskLife()") :])
        with pytest.raises(Wrong):
            exec(code, {"TaskLife": TaskLife})
    with bound(server):
        exec(code, {"TaskLife": TaskLife})
