"""The scheduler's own statements explored: planted bugs are found, and without them nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.explore import Bounds, explore_program, pytest_function, replay
from chaos.explore.schedule import show
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.mutants import MUTANTS, planted

# mutant, program, the simplest schedule that shows it
PLANTED = [
    ("claim-without-lock", "completions", "a b a b"),
    ("reclaim-ignores-expiry", "reclaim", "a!! b b"),
    ("complete-without-fence", "zombie", "a +1m a b b b b a a"),
    ("effect-before-completion", "effect", "a a a a a? b b"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "name", "schedule"), PLANTED)
def test_a_planted_bug_is_found_with_its_simplest_schedule(
    empty_dsn: str, mutant: str, name: str, schedule: str
) -> None:
    with planted(MUTANTS[mutant]):
        found = explore_program(PROGRAMS[name].program, PROGRAMS[name].bounds, empty_dsn)
    assert found.failure is not None
    assert show(found.failure.choices) == schedule
    assert found.failure.violation is not None
    assert found.failure.violation.sentence.startswith(MUTANTS[mutant].invariant)


def test_a_double_claim_without_locks_is_found_within_five_schedules(empty_dsn: str) -> None:
    with planted(MUTANTS["claim-without-lock"]):
        found = explore_program(
            PROGRAMS["completions"].program, Bounds(preemptions=None), empty_dsn
        )
    assert found.outcome == "fail"
    assert found.certificate.schedules <= 5


@pytest.mark.parametrize("schedule", [schedule for _, _, schedule in PLANTED])
def test_the_scheduler_as_it_is_stands_where_the_planted_bugs_fall(
    empty_dsn: str, schedule: str
) -> None:
    name = next(name for _, name, planted_at in PLANTED if planted_at == schedule)
    assert replay(PROGRAMS[name].program, schedule, empty_dsn, strict=False).violation is None


def test_two_workers_that_claim_and_complete_are_exhausted_without_a_failure(
    empty_dsn: str,
) -> None:
    program = PROGRAMS["completions"].program
    found = explore_program(program, Bounds(preemptions=None), empty_dsn)
    assert (found.outcome, found.certificate.coverage) == ("pass", "exhausted")


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_scheduler_as_it_is_has_no_failure_in_any_program(empty_dsn: str, name: str) -> None:
    bounds = PROGRAMS[name].bounds
    # Faults multiply: `chaos explore` goes further than a test has time for.
    if bounds.advances:
        bounds = replace(bounds, crashes=0)
    bounds = replace(bounds, preemptions=1)
    found = explore_program(PROGRAMS[name].program, bounds, empty_dsn)
    assert found.outcome == "pass", str(found)


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_generated_test_starts_a_server_by_itself_and_plants_the_bug() -> None:
    known = PROGRAMS["completions"]
    with planted(MUTANTS["claim-without-lock"]):
        trace = replay(known.program, "a b a b")
    assert trace.violation is not None
    source = pytest_function(known.program, trace.choices, trace.violation, "claim-without-lock")
    run = {"__name__": "generated"}
    exec(source, run)
    test = run["test_a_b_a_b"]
    assert callable(test)
    with pytest.raises(AssertionError, match="no-overlap"):
        test()
