"""The search: it runs every schedule once, the simplest first, and says what it did not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from math import comb

import psycopg
import pytest
from psycopg import Connection

from chaos.explore import Bounds, ExplorerError, Program, explore, explore_program, replay
from chaos.explore.run import run
from chaos.explore.schedule import parse, show
from chaos.explore.search import minimise
from chaos.explore.stage import Stage
from tests.chaos.explore import bodies
from tests.chaos.explore.traces import all_traces


def test_two_actors_of_three_steps_have_twenty_schedules_and_each_is_run_once(
    empty_dsn: str,
) -> None:
    traces, tally = all_traces(empty_dsn, bodies.TWO, Bounds(preemptions=None))
    schedules = [show(trace.choices) for trace in traces]
    assert len(schedules) == len(set(schedules)) == comb(6, 3) == 20
    assert not tally.pruned
    assert not tally.degraded


def test_three_actors_of_two_steps_have_ninety(empty_dsn: str) -> None:
    traces, _ = all_traces(empty_dsn, bodies.THREE, Bounds(preemptions=None))
    assert len({trace.choices for trace in traces}) == len(traces) == 90


def test_schedules_come_in_the_order_of_their_preemptions_then_faults(empty_dsn: str) -> None:
    traces, tally = all_traces(empty_dsn, bodies.TWO, Bounds(preemptions=2, crashes=1))
    weights = [(trace.preemptions, trace.faults.total()) for trace in traces]
    assert weights == sorted(weights)
    assert show(traces[0].choices) == "a a a b b b"
    assert tally.pruned
    assert {trace.preemptions for trace in traces} == {0, 1, 2}


def preemptions(schedule: str) -> int:
    """Counted by hand, for two actors of three steps that never wait."""
    left = {"a": 3, "b": 3}
    count, last = 0, ""
    for actor in schedule.split():
        count += bool(last and actor != last and left[last])
        left[actor] -= 1
        last = actor
    return count


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_a_bound_leaves_out_what_has_more_preemptions_and_nothing_else(
    empty_dsn: str, most: int
) -> None:
    everything, _ = all_traces(empty_dsn, bodies.TWO, Bounds(preemptions=None))
    bounded, _ = all_traces(empty_dsn, replace(bodies.TWO, install=None), Bounds(preemptions=most))
    assert {show(t.choices) for t in bounded} == {
        text for t in everything if preemptions(text := show(t.choices)) <= most
    }


def test_every_place_for_one_crash_is_tried(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": bodies.look})
    traces, tally = all_traces(empty_dsn, program, Bounds(preemptions=None, crashes=1))
    assert {show(t.choices) for t in traces} == {"a a", "a!", "a a!", "a a!!"}
    assert tally.faults == {"crash": 3}


def test_lost_replies_terminations_and_clock_steps_are_tried_everywhere(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": bodies.look}, advance=lambda connection, by: None)
    bounds = Bounds(lost_replies=1, terminations=1, advances=1, advance_by=timedelta(seconds=5))
    traces, _ = all_traces(empty_dsn, program, bounds)
    schedules = {show(t.choices) for t in traces}
    assert {"a a?", "a a^", "+5s a a", "a +5s a", "a +5s a?", "a +5s a^"} <= schedules
    assert len(schedules) == len(traces)


def outcome(program: Program, dsn: str, bounds: Bounds) -> tuple[str, str]:
    certificate = explore_program(program, bounds, dsn).certificate
    return certificate.outcome, " ".join(certificate.missing())


def test_a_pass_has_a_certificate(empty_dsn: str) -> None:
    found = explore_program(bodies.TWO, Bounds(preemptions=None), empty_dsn)
    certificate = found.certificate
    assert found.outcome == "pass"
    assert found.failure is None
    assert certificate.coverage == "exhausted"
    assert (certificate.schedules, certificate.steps) == (20, 120)
    assert certificate.returned == {"a": 20, "b": 20}
    assert certificate.checked >= 19
    assert certificate.degraded == ()
    assert str(found).startswith("pass\n  20 schedules, exhausted within any number")


def test_a_bounded_search_says_so_and_a_cut_one_is_inconclusive(empty_dsn: str) -> None:
    found = explore_program(bodies.TWO, Bounds(preemptions=1), empty_dsn)
    assert (found.outcome, found.certificate.coverage) == ("pass", "bounded")
    program = replace(bodies.TWO, install=None)
    verdict, missing = outcome(program, empty_dsn, Bounds(preemptions=1, schedules=3))
    assert verdict == "inconclusive"
    assert "cut short after 3" in missing


def always_refused(connection: Connection) -> None:
    connection.execute("select * from no_such_table")


def test_an_actor_whose_code_never_ran_to_its_end_makes_it_inconclusive(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": bodies.look, "b": always_refused})
    verdict, missing = outcome(program, empty_dsn, Bounds())
    assert verdict == "inconclusive"
    assert "actor b never came to its end (UndefinedTable)" in missing


def test_a_fault_that_never_happened_makes_it_inconclusive(empty_dsn: str) -> None:
    def only_reads_and_rolls_back(connection: Connection) -> None:
        connection.execute("select 1")
        connection.rollback()

    program = replace(bodies.TWO, actors={"a": only_reads_and_rolls_back})
    verdict, missing = outcome(program, empty_dsn, Bounds(lost_replies=1))
    assert verdict == "inconclusive"
    assert "no schedule had a lost reply" in missing


def fickle() -> Callable[[Connection], None]:
    """Does something else every time."""
    calls = 0

    def body(connection: Connection) -> None:
        nonlocal calls
        calls += 1
        connection.execute(f"select {calls}".encode())
        connection.commit()

    return body


def test_code_that_is_not_deterministic_is_found_out(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": fickle(), "b": bodies.look})
    verdict, missing = outcome(program, empty_dsn, Bounds())
    assert verdict == "inconclusive"
    assert "not deterministic: step" in missing


def forgetful() -> Callable[[Connection], None]:
    """Takes a step less every other time."""
    calls = 0

    def body(connection: Connection) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            connection.execute("select 1")
        bodies.look(connection)

    return body


def test_a_schedule_that_cannot_be_run_again_is_reported_and_not_fatal(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": forgetful(), "b": bodies.look_twice})
    verdict, missing = outcome(program, empty_dsn, Bounds())
    assert verdict == "inconclusive"
    assert "not deterministic" in missing


def test_an_actor_that_raises_what_no_database_would_is_a_failure(empty_dsn: str) -> None:
    def buggy(connection: Connection) -> None:
        bodies.look(connection)
        raise KeyError("x")

    found = explore_program(replace(bodies.TWO, actors={"a": buggy}), Bounds(), empty_dsn)
    assert found.failure is not None
    assert found.failure.violation == ("actor", "a raised KeyError: 'x'")


def holds_for_ever(connection: Connection) -> None:
    connection.execute("select pg_advisory_lock(%s)", [1])
    connection.commit()


def test_a_lock_that_nobody_is_left_to_release_is_a_failure(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": holds_for_ever, "b": holds_for_ever})
    found = explore_program(program, Bounds(), empty_dsn)
    assert found.failure is not None
    assert found.failure.violation is not None
    assert found.failure.violation.what == "stuck"
    assert "b wait" in found.failure.violation.sentence


def test_a_failure_is_made_minimal_and_fails_again(empty_dsn: str) -> None:
    program = replace(
        bodies.TWO, actors={"a": bodies.put, "b": bodies.look_twice}, invariant=bodies.stays_zero
    )
    with Stage(empty_dsn, program) as stage:
        long = run(stage, parse("b a b b! a"), Bounds())
        assert long.violation is not None
        best = minimise(stage, long)
    assert show(best.choices) == "a a"
    assert replay(replace(program, install=None), "a a", empty_dsn).violation == best.violation


def judged(number: object) -> None:
    assert number != 11, "fenced: both have added to it"
    assert number != 10, "no-overlap: one has added to it"


def judged_number(connection: Connection) -> None:
    row = connection.execute("select n from number").fetchone()
    judged(row and row[0])


def add_one(connection: Connection) -> None:
    connection.execute("update number set n = n + 1")


def add_ten(connection: Connection) -> None:
    connection.execute("update number set n = n + 10")


def add_ten_and_judge(connection: Connection) -> None:
    row = connection.execute("update number set n = n + 10 returning n").fetchone()
    judged(row and row[0])


@pytest.mark.parametrize("who", ["invariant", "actor"])
def test_a_failure_that_is_made_minimal_stays_one_of_the_same_invariant(
    empty_dsn: str, who: str
) -> None:
    actors = {"a": add_ten if who == "invariant" else add_ten_and_judge, "b": add_one}
    invariant = judged_number if who == "invariant" else bodies.fine
    program = replace(bodies.TWO, actors=actors, invariant=invariant, autocommit=True)
    with Stage(empty_dsn, program) as stage:
        found = run(stage, parse("b b a a"), Bounds())
        shorter = run(stage, parse("a"), Bounds())
        best = minimise(stage, found)
    assert shorter.violation is not None
    assert (shorter.violation.what, shorter.violation.named) == (who, "no-overlap")
    assert best.violation is not None
    assert (best.violation.what, best.violation.named) == (who, "fenced")
    assert show(best.choices) == "b b a a"


def test_replay_refuses_steps_that_cannot_be_taken_or_passes_over_them(empty_dsn: str) -> None:
    with pytest.raises(ExplorerError, match="step 3 of 'a a a b': a cannot happen: a has ended"):
        replay(replace(bodies.THREE), "a a a b", empty_dsn)
    program = replace(bodies.THREE, install=None)
    trace = replay(program, "a a a b", empty_dsn, strict=False)
    assert show(trace.skipped) == "a"
    assert show(trace.choices) == "a a b b c c"


def test_nothing_to_check_or_no_clock_to_move_is_a_mistake() -> None:
    with pytest.raises(ExplorerError, match="nothing is checked"):
        explore(bodies.setup, {"a": bodies.look})
    with pytest.raises(ExplorerError, match="how to `advance`"):
        explore(bodies.setup, {"a": bodies.look}, bodies.fine, bounds=Bounds(advances=1))
    with pytest.raises(ExplorerError, match="'A' cannot name an actor"):
        explore(bodies.setup, {"A": bodies.look}, bodies.fine)


def test_an_actor_that_never_ends_is_an_error_and_not_a_hang(empty_dsn: str) -> None:
    def endless(connection: Connection) -> None:
        while True:
            bodies.look(connection)

    with pytest.raises(ExplorerError, match="bound the loops"):
        explore_program(replace(bodies.TWO, actors={"a": endless}), Bounds(), empty_dsn)


def test_a_database_that_is_not_there_is_named() -> None:
    with pytest.raises(ExplorerError, match="cannot connect"):
        explore_program(bodies.TWO, Bounds(), "host=127.0.0.1 port=1")


def test_errors_of_the_invariant_itself_are_not_taken_for_verdicts(empty_dsn: str) -> None:
    program = replace(bodies.TWO, invariant=always_refused)
    with pytest.raises(psycopg.errors.UndefinedTable):
        explore_program(program, Bounds(), empty_dsn)
