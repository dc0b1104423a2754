"""Programs and interleavings drawn together: right as they are, small where a bug is planted."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.explore import replay
from chaos.explore.schedule import parse
from chaos.lowering.script import Script
from chaos.mutants import MUTANTS, planted
from tests.properties.interleaved import ATTEMPTS, TASKS, Interleaving, theatre

AS_IT_IS = settings(max_examples=40, deadline=None, database=None, stateful_step_count=25)
SEARCH = settings(
    AS_IT_IS,
    max_examples=400,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    print_blob=False,
)


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Connections are cut on purpose; psycopg warns of each."""
    logging.getLogger("psycopg").setLevel(logging.ERROR)


@pytest.mark.slow
def test_whatever_workers_do_at_once_is_right(
    empty_dsn: str, record_property: Callable[[str, object], None]
) -> None:
    with theatre(empty_dsn) as Interleaving.theatre:
        run_state_machine_as_test(Interleaving, settings=AS_IT_IS)
        record_property("runs", Interleaving.theatre.runs)


def test_a_cancellation_whose_client_died_while_it_waited_for_a_claim_is_no_part_of_that_claim(
    empty_dsn: str,
) -> None:
    with theatre(empty_dsn) as stage:
        trace = stage.run({"a": ["claim"], "c": ["cancel"]}, list(parse("a c c! a")))
    assert trace.violation is None, trace


# Bug, and the most workers and steps that its smallest failure takes. What needs nine steps in one
# order is not drawn in a few hundred examples: that is for a search, and for lowering.
PLANTED = [
    ("claim-without-lock", 2, 4),
    ("reclaim-ignores-expiry", 2, 4),
]


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.timeout(900)  # it shrinks for as long as the machine needs
@pytest.mark.parametrize(("bug", "workers", "steps"), PLANTED)
def test_a_planted_race_shrinks_to_few_workers_and_a_handful_of_steps(
    empty_dsn: str, bug: str, workers: int, steps: int
) -> None:
    mutant = MUTANTS[bug]
    with planted(mutant), theatre(empty_dsn) as Interleaving.theatre:
        with pytest.raises(AssertionError) as failure:
            run_state_machine_as_test(Interleaving, settings=SEARCH)
        parts, schedule, *_ = str(failure.value).splitlines()
        assert len(parts.split("; ")) <= workers, failure.value
        assert len(schedule.split()) <= steps, failure.value
        # By itself, without Hypothesis.
        actors = dict(part.split(": ") for part in parts.split("; "))
        script = Script(actors=actors, invariant=mutant.invariant, tasks=TASKS, attempts=ATTEMPTS)
        again = replay(script.program(), schedule, empty_dsn, strict=False)
    assert again.violation is not None, again
    assert again.violation.sentence.startswith(mutant.invariant)
