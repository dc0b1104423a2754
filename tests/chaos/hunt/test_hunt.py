"""The hunt itself: what is caught, by what, and what is not is told as it is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlglot import parse_one
from typer.testing import CliRunner

from chaos.cli import app
from chaos.cluster.postgres import Postgres
from chaos.explore import replay
from chaos.explore.cli import ALL
from chaos.explore.crash_lives import LIVES
from chaos.hunt import machine, matrix
from chaos.hunt.bodies import parts
from chaos.hunt.equivalent import EQUIVALENT
from chaos.hunt.explorer import HUNTERS, Baseline, Stages, baseline, hunt, order
from chaos.hunt.found import SOON, Hunted, Kill
from chaos.hunt.functions import functions
from chaos.hunt.generated import FUNCTIONS, generated, rendered
from chaos.mutants import MUTANTS, Edit, Mutant, Shown, planted
from scheduler import ScheduleError

FEW = ("one_complete", "race_complete", "fence")


def hunted(mutant: Mutant, stages: Stages) -> Hunted:
    """A mutant of complete.sql after a few programs."""
    baselines = [baseline(name, stages) for name in FEW]
    assert [one.alarm for one in baselines] == ["", "", ""]
    return hunt(mutant, order(baselines, mutant), stages)


def test_a_mutant_is_caught_by_its_named_invariant_with_a_schedule_that_shows_it_again(
    stages: Stages, empty_dsn: str
) -> None:
    mutant = MUTANTS["complete-without-fence"]
    found = hunted(mutant, stages)
    assert found.result == "killed"
    assert found.kill is not None
    assert found.kill.invariant == "fenced"
    program = HUNTERS[found.kill.hunter.removeprefix("explorer: ")].program
    with planted(mutant):
        again = replay(program, found.kill.schedule, empty_dsn)
    assert again.violation is not None
    assert found.kill.sentence in again.violation.sentence
    chaos, *arguments = shlex.split(found.kill.replay)
    assert (chaos, arguments[:1], "--system" in arguments) == ("chaos", ["explore"], True)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    assert f"fenced: {found.kill.sentence}" in done.output


def test_every_hunter_says_how_the_explorer_runs_its_program() -> None:
    for hunter in HUNTERS.values():
        name, *options = hunter.shows.split()
        assert options in ([], ["--crash-points"])
        program = LIVES[name].program if options else ALL[name]
        assert program.actors == hunter.program.actors


def test_a_kill_by_another_invariant_than_the_named_is_told_and_is_none(stages: Stages) -> None:
    mutant = replace(MUTANTS["complete-without-fence"], invariant="not-early")
    found = hunted(mutant, stages)
    assert (found.result, found.held, found.kill) == ("by another", False, None)
    assert {kill.invariant for kill in found.others} == {"fenced"}
    assert "fenced" in "\n".join(matrix.summary([found], 1))


def test_a_mutant_of_a_function_is_caught_and_leaves_the_function_as_it_was(
    stages: Stages,
) -> None:
    mutant = generated()["discard(): without status = 'dead'"]
    hunter = baseline("told_discard", stages)
    assert (hunter.alarm, order([hunter], mutant)) == ("", [hunter])
    found = hunt(mutant, [hunter], stages, minimal=False)
    assert found.kill is not None
    assert found.kill.replay == f"chaos hunt --generated --only {shlex.quote(mutant.name)}"
    assert baseline("told_discard", stages).alarm == ""


@pytest.mark.slow
@pytest.mark.chaos_long
def test_what_the_parser_writes_of_the_functions_does_what_it_has_read(stages: Stages) -> None:
    edits = []
    for name in FUNCTIONS:
        file, definition = functions()[name]
        text = definition
        for part in reversed(parts(definition)):
            written = part.written(rendered(parse_one(part.sql, dialect="postgres")))
            text = text[: part.start] + written + text[part.end :]
        edits.append(Edit(file, definition, text))
    mutant = Mutant("rendered", None, "", "", Shown("none", 0), tuple(edits))
    baselines = [baseline(name, stages) for name in HUNTERS if name.startswith(("told", "order"))]
    found = hunt(mutant, order(baselines, mutant), stages)
    assert (found.result, found.broke) == ("survived", ""), found.kill and found.kill.sentence


@pytest.fixture
def worlds(server: Postgres) -> Iterator[machine.Worlds]:
    """The state machine's, in a database of its own."""
    name = f"hunt_machine_{uuid4().hex}"

    def create() -> str:
        server.create_database(name)
        return server.dsn(name)

    made = machine.Worlds(create)
    yield made
    made.close()
    server.drop_database(name)


@pytest.mark.chaos_long
def test_the_state_machine_catches_what_programs_left_and_is_quiet_otherwise(
    worlds: machine.Worlds,
) -> None:
    mutant = generated()["discard(): without status = 'dead'"]
    before = Hunted(mutant.name, "", "", schedules=7, broke="told_discard: it broke")
    found = machine.hunt(before, mutant, worlds, most=200)
    assert (found.result, found.schedules, found.broke) == ("killed", 7, "")
    assert found.kill is not None
    assert (found.kill.hunter, found.kill.invariant) == (machine.NAME, None)
    assert "steps, the last state.discard(numbers=[" in found.kill.schedule
    assert found.kill.replay.startswith("chaos hunt --generated --only ")
    # The function is as it was again.
    assert machine.hunt(before, MUTANTS["listens-once"], worlds, most=3).result == "broken"
    assert machine.alarm(worlds) == ""


def test_a_mutant_that_only_the_state_machine_looked_at_has_survived(
    worlds: machine.Worlds,
) -> None:
    mutant = MUTANTS["listens-once"]  # which changes nothing that the machine can see
    unmet = Hunted(mutant.name, "", "")
    found = machine.hunt(unmet, mutant, worlds, most=3)
    assert (unmet.result, found.result, found.held) == ("unmet", "survived", False)
    assert found.examples == 3
    [told] = json.loads(matrix.as_text([found], 1.0))["mutants"]
    assert (told["examples"], told["result"]) == (3, "survived")


def test_an_equivalent_mutant_survives_and_is_told(stages: Stages) -> None:
    found = hunted(generated()["complete: task.id descending"], stages)
    assert (found.result, found.held) == ("survived", False)
    assert "nothing caught it" in "\n".join(matrix.summary([found], 1))
    argued = replace(found, reason=EQUIVALENT[found.mutant])
    assert (argued.result, argued.held) == ("equivalent", True)


def test_an_equivalent_mutant_survives_after_one_with_which_no_program_can_begin(
    stages: Stages,
) -> None:
    hunter = baseline("life plan", stages)
    refuses = generated()["declare_schedules(): if application IS NULL: always"]
    equivalent = generated()["declare_schedules(): without LIMIT 1"]
    refused = hunt(refuses, [hunter], stages)
    assert refused.kill is not None
    assert refused.kill.sentence.startswith("setup: ")
    found = hunt(equivalent, [hunter], stages)
    assert found.result == "survived", found.kill


def test_an_argument_for_what_is_caught_after_all_is_told(stages: Stages) -> None:
    found = hunted(generated()["complete: without set lease_owner"], stages)
    assert found.result == "killed"
    assert replace(found, reason="nobody could tell").result == "stale"


def test_a_wait_where_the_scheduler_passes_over_a_lock_is_a_failure(stages: Stages) -> None:
    found = hunted(generated()["complete: without skip locked (2)"], stages)
    assert found.kill is not None
    assert found.kill.invariant == "progress"
    assert "waits for a lock" in found.kill.sentence
    assert found.kill.replay.startswith("chaos hunt ")  # to wait is a failure nowhere else


def test_a_hunter_meets_only_what_it_runs_and_the_cheapest_goes_first() -> None:
    nobody: frozenset[str] = frozenset()
    dear = Baseline("claims", frozenset({"claim", "complete"}), nobody, 2.0, 9, "")
    cheap = Baseline("one_complete", frozenset({"complete"}), nobody, 1.0, 1, "")
    both = [dear, cheap]
    assert order(both, MUTANTS["complete-without-fence"]) == [cheap, dear]
    assert order(both, MUTANTS["claim-without-lock"]) == [dear]
    assert order(both, MUTANTS["listens-once"]) == []
    assert order(both, MUTANTS["holds-its-row-throughout"]) == []
    assert order(both, MUTANTS["keys-without-an-index"]) == []
    assert order(both, generated()["complete: task.id descending"]) == [cheap]


def test_every_argument_is_about_a_mutant_that_there_is() -> None:
    assert EQUIVALENT.keys() <= generated().keys()
    assert all(EQUIVALENT.values())


def test_a_scenario_that_looked_and_found_nothing_is_no_excuse() -> None:
    assert Hunted("one", "a bug", "fenced", runs=1).result == "survived"
    assert Hunted("one", "a bug", "fenced").result == "unmet"


def test_a_bug_that_is_caught_only_after_a_minute_is_told_and_is_an_error() -> None:
    soon = Hunted("one", "a bug", "fenced", kill=Kill("life", "fenced", "wrong", SOON, "again"))
    late = replace(soon, mutant="two", kill=Kill("life", "fenced", "wrong", SOON + 1, "again"))
    assert (soon.result, soon.held) == ("killed", True)
    assert (late.result, late.held) == ("killed", False)
    first, second = matrix.summary([soon, late], 80)
    assert first == "2 mutants in 80 s: 2 killed. Killed later than after 60 s: 1."
    assert second.startswith("- two: caught, by its named invariant if it names one, after 61 s: ")


def test_the_matrix_as_json_and_as_a_page_has_every_mutant() -> None:
    found = [Hunted("one", "a bug", "fenced"), Hunted("two|", "", "", schedules=3, reason="why")]
    document = json.loads(matrix.as_text(found, 2.0))
    assert [one["result"] for one in document["mutants"]] == ["unmet", "equivalent"]
    lines = matrix.page(found, 2.0)
    assert any("`two\\|`" in line and "why" in line for line in lines)
    assert matrix.table(found).row_count == 2


def test_a_long_schedule_of_one_actor_is_told_in_brief() -> None:
    kill = Kill("explorer: told_cancel", None, "wrong", 1.0, "chaos hunt", " ".join(["a"] * 40))
    found = [Hunted("one", "", "", kill=kill)]
    assert any("`a, 40 times`" in line for line in matrix.page(found, 1.0))
    assert json.loads(matrix.as_text(found, 1.0))["mutants"][0]["kill"] == kill._asdict()


def test_what_the_client_refuses_before_the_first_step_is_a_failure_of_the_mutant(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    hunter = baseline("told_discard", stages)

    def refuses(*_: object) -> None:
        raise ScheduleError("the schedule belongs to another application")

    monkeypatch.setattr("chaos.hunt.explorer._look", refuses)
    found = hunt(generated()["discard(): without status = 'dead'"], [hunter], stages)
    assert (found.result, found.broke) == ("killed", ""), found
    assert found.kill is not None
    assert "belongs to another application" in found.kill.sentence
