"""Crash points: derived from what is sent, all exercised, and where planted bugs are found."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest
from psycopg import Connection
from typer.testing import CliRunner

from chaos.explore import CrashPoints, ExplorerError, crash_points, pytest_function, replay, wire
from chaos.explore import crash_actors as act
from chaos.explore.crash_lives import LIVES, NAMES
from chaos.explore.crashpoints import WAYS
from chaos.explore.program import Program
from chaos.explore.schedule import show
from chaos.explore.stage import Stage
from chaos.mutants import MUTANTS, Edit, Mutant, Shown, planted
from scheduler.lease import Attempt
from scheduler.statements import SQL
from tests.chaos.explore import bodies
from tests.chaos.explore.test_cli import app

# What no life sends: what people read, and what a worker asks of its session when it starts.
READ = {
    *("dead_letters", "restrictions", "schedules", "session_settings", "sources", "status"),
    *("task", "task_runs", "list_dead_letters", "list_tasks", "live_counts", "of_kinds"),
    *("serves_others", "find_token", "tokens", "at_limit", "kind_limits", "totals", "throughput"),
    *("current_snapshot", "new_letters", "standing_letters", "hook_counts", "sampled_counts"),
    *("audit", "dead_letter_ids", "dead_letter_summaries"),
}
# A script for an administrator, the service's tokens and refusals, and what is told of deaths:
# no part of a task's life.
APART = {
    *("roles", "create_token", "revoke_token", "limit_source", "restrict_kind", "run_schedule"),
    *("register_hook", "forget_hook", "take_delivery", "delivered", "delivery_failed"),
    *("retry_deliveries", "record_refusals"),
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Connections are cut on purpose; psycopg warns of each."""
    logging.getLogger("psycopg").setLevel(logging.ERROR)


def failed_at(found: CrashPoints) -> list[str]:
    return [failure.at for failure in found.failures]


def names(found: CrashPoints) -> list[str]:
    return [point.name for point in found.points]


def apart(connection: Connection, attempt: Attempt) -> None:
    """A planted bug: the effect is committed by itself, and then the completion."""
    act.effect(connection, attempt)
    act.completed(connection, attempt)


def test_each_statement_has_a_first_line_of_its_own_by_which_it_is_known_on_the_wire() -> None:
    files = list(SQL.glob("*.sql"))
    assert len({wire.title(file.read_text()) for file in files}) == len(files)


@pytest.mark.slow
def test_every_point_is_exercised_in_every_way(empty_dsn: str) -> None:
    found = crash_points(LIVES["effect"].program, empty_dsn, NAMES)
    assert names(found) == [
        "claim",
        "commit of claim",
        "begin_attempt",
        "insert into explorer_effects (task, token) values ($1, $2)",
        "complete_in_transaction",  # one message with its COMMIT
    ]
    assert (found.outcome, found.missing) == ("pass", ())
    assert found.exercised == found.enumerated == 5 * len(WAYS)


@pytest.mark.slow
def test_an_effect_that_is_committed_before_its_completion_fails_where_one_would_crash_between(
    empty_dsn: str,
) -> None:
    life = LIVES["effect"].program
    broken = replace(
        life, actors={**life.actors, "a": partial(act.transactional, ends=apart)}, imported=""
    )
    found = crash_points(broken, empty_dsn, NAMES)
    effect = "insert into explorer_effects (task, token) values ($1, $2)"
    assert failed_at(found)[0] == f"3 {effect}: crashed after it was sent"
    assert f"4 commit of {effect}: crashed after it was sent" in failed_at(found)
    assert "5 complete: crashed before it was sent" in failed_at(found)
    assert not any(at.startswith(("1 ", "2 ")) for at in failed_at(found))
    assert found.outcome == "fail"
    violation = found.failures[0].trace.violation
    assert violation is not None
    # `python -m pytest` adds a line of its own to what an assert of the harness says.
    assert violation.sentence.splitlines()[0] == "task 1 has 2 effects"


# What goes wrong only where something breaks, and the first crash point at which it does.
PLANTED = [
    ("attempts-counted-on-failure-only", "complete", "1 claim: crashed before it was sent"),
    (
        "complete-without-fence",
        "complete",
        "3 renew: reply lost, back when another has taken over",
    ),
]


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize(("mutant", "life", "at"), PLANTED)
def test_a_planted_bug_is_found_at_its_crash_point_and_replays_as_a_test(
    empty_dsn: str, mutant: str, life: str, at: str
) -> None:
    program = LIVES[life].program
    with planted(MUTANTS[mutant]):
        found = crash_points(program, empty_dsn, NAMES)
    assert failed_at(found)[0] == at
    trace = found.failures[0].trace
    assert trace.violation is not None
    source = pytest_function(program, trace.choices, trace.violation, mutant)
    assert f"replay(program, {show(trace.choices)!r}, strict=False)" in source
    assert f"program = LIVES[{life!r}].program" in source
    assert replay(program, show(trace.choices), empty_dsn, strict=False).violation is None


@pytest.mark.slow
def test_a_new_statement_in_a_life_is_a_new_point_by_itself(empty_dsn: str) -> None:
    edit = Edit("release_claim", "-- Give back", "-- Hand back")
    twice = Mutant("new", None, "", "", Shown("none", 0), (edit,))
    with planted(twice):
        found = crash_points(LIVES["forget"].program, empty_dsn, NAMES)
    assert names(found)[2].startswith("Hand back every row of claims")
    more = replace(bodies.TWO, actors={"a": bodies.look, "b": bodies.look})
    assert names(crash_points(more, empty_dsn)) == [
        "select n from number",
        "commit of select n from number",
    ]


def test_a_life_that_does_not_repeat_itself_is_inconclusive(empty_dsn: str) -> None:
    runs = iter(range(100))

    def changes(connection: Connection) -> None:
        if next(runs) == 0:
            bodies.look(connection)
        bodies.put(connection)

    program = replace(bodies.TWO, actors={"a": changes, "b": bodies.look})
    found = crash_points(program, empty_dsn)
    assert found.outcome == "inconclusive"
    assert found.exercised < found.enumerated == 4 * len(WAYS)
    assert "1 select n from number: crashed before it was sent did not come" in found.missing[0]


def test_a_stage_that_cannot_vouch_for_what_it_saw_makes_it_inconclusive(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Doubtful(Stage):
        """As where a session waits and does not report its deadlock check."""

        def __init__(self, dsn: str, program: Program) -> None:
            super().__init__(dsn, program)
            self.degraded.add("a session of a waited without reporting its deadlock check")

    monkeypatch.setattr("chaos.explore.crashpoints.Stage", Doubtful)
    program = replace(bodies.TWO, actors={"a": bodies.look, "b": bodies.look})
    found = crash_points(program, empty_dsn)
    assert found.exercised == found.enumerated
    assert "missing: a session of a waited" in str(found)
    assert found.outcome == "inconclusive"


def test_without_anybody_to_recover_there_are_no_crash_points(empty_dsn: str) -> None:
    with pytest.raises(ExplorerError, match="second actor"):
        crash_points(replace(bodies.TWO, actors={"a": bodies.look}), empty_dsn)


@pytest.mark.slow
@pytest.mark.chaos_long
def test_no_life_fails_at_any_crash_point_and_the_lives_send_every_statement_that_writes(
    empty_dsn: str,
) -> None:
    sent: set[str] = set()
    for name, life in LIVES.items():
        found = crash_points(life.program, empty_dsn, NAMES)
        assert found.outcome == "pass", f"{name}: {found}"
        sent.update(names(found))
    assert {file.stem for file in SQL.glob("*.sql")} - sent - APART == READ


@pytest.mark.slow
def test_the_command_prints_what_was_enumerated_and_exercised() -> None:
    done = CliRunner().invoke(app, ["cancel", "--crash-points"])
    assert done.exit_code == 0, done.output
    assert "1 lives: 2 points, 12 crashes enumerated, 12 exercised" in done.output


def test_a_life_that_is_not_known_is_answered_with_those_that_are() -> None:
    done = CliRunner().invoke(app, ["zombie", "--crash-points"])
    assert done.exit_code == 2
    assert "known programs: complete" in " ".join(done.output.split())
