"""`chaos hunt`."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chaos.cli import app
from chaos.hunt.found import SOON, Hunted, Kill
from chaos.hunt.pool import FalseAlarmError
from chaos.invariants.judge import INVARIANTS
from chaos.invariants.verdict import Verdict
from chaos.keep import Ran
from chaos.mutants import MUTANTS
from chaos.scenario import Scenario
from tests.chaos.invariants.build import Story


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_hunt_prints_and_keeps_the_matrix_and_ends_by_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("claim-without-lock", "holds-its-row-throughout")
    only = [word for name in names for word in ("--only", name)]
    rest = ["--killers", "explorer", "--json", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, ["hunt", *only, *rest])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    results = {one["mutant"]: one["result"] for one in told["mutants"]}
    assert results == dict(zip(names, ("killed", "unmet"), strict=True))
    [directory] = tmp_path.glob("hunt-*")
    assert json.loads((directory / "matrix.json").read_text()) == told
    assert (
        "| `claim-without-lock` | killed | `no-overlap` |" in (directory / "matrix.md").read_text()
    )

    # One that nothing can catch, and of which nobody has said so.
    monkeypatch.setattr("chaos.hunt.cli.EQUIVALENT", {})
    only = ["--only", "reclaim: without status = 'running'"]
    done = CliRunner().invoke(app, ["hunt", "--generated", *only, *rest])
    assert done.exit_code == 1, done.output
    assert [one["result"] for one in json.loads(done.stdout)["mutants"]] == ["survived"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nice"], "no such mutant: nice; `chaos hunt` lists them all"),
        (["--generated", "--only", "nice"], "`chaos hunt --generated` lists them all"),
        (["--generated", "--killers", "scenarios"], "leave --killers out"),
        (["--killers", "tests"], "add --generated"),
        (
            ["--generated", "--killers", "explorer", "--only", "task: without where id = %(task)s"],
            "leave --killers out",
        ),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["hunt", *arguments])
    assert (done.exit_code, says in " ".join(done.output.split())) == (2, True), done.output


KILL = Kill("explorer: fence", "fenced", "wrong", 1.0, "a b")
KILLED = Hunted("one", "a bug", "fenced", kill=KILL)
BROKE = Hunted("one", "a bug", "fenced", broke="fence: the server is gone")
OTHER = Hunted("one", "a bug", "not-early", others=(KILL,), schedules=1)
SURVIVED = Hunted("one", "a bug", "fenced", schedules=1)
STALE = Hunted("one", "a bug", "fenced", kill=KILL, reason="nobody can tell")
UNMET = Hunted("one", "a bug", "fenced")
LATE = replace(KILLED, kill=KILL._replace(seconds=SOON + 1))


@pytest.mark.parametrize(
    ("hunted", "code"),
    [
        ([KILLED, UNMET], 0),
        ([KILLED, BROKE], 4),
        ([KILLED, LATE], 1),
        ([BROKE, OTHER], 1),
        ([BROKE, SURVIVED], 1),
        ([BROKE, STALE], 1),
    ],
)
def test_what_the_hunt_found_weighs_more_than_that_a_hunter_broke(
    hunted: list[Hunted], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.hunt.cli._hunt", lambda *_, **__: hunted)
    rest = ["--killers", "explorer", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, ["hunt", *rest])
    assert done.exit_code == code, done.output


@pytest.mark.parametrize("command", ["hunt", "variants"])
def test_a_failure_of_the_unmodified_scheduler_ends_it_with_1(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cry(*_: object, **__: object) -> None:
        raise FalseAlarmError("the unmodified scheduler fails in fence")

    monkeypatch.setattr(f"chaos.{command}.cli._explore", cry)
    done = CliRunner().invoke(app, [command])
    assert (done.exit_code, "unmodified scheduler fails" in done.output) == (1, True)
    told = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
    assert "the unmodified scheduler" in told


SHOWN = (  # by two scenarios, the second of them at two lengths
    *("never-reclaims", "never-renews", "stuck-judged-by-age"),
    *("stops-renewing-at-shutdown", "forgets-the-rest-at-shutdown"),
)


class Runs:
    """Stands for runs of scenarios: a planted bug fails its invariant, and so does `cries`."""

    def __init__(self, cries: str = "") -> None:
        self.cries = cries
        self.systems: list[tuple[str, str]] = []

    def __call__(self, scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        self.systems.append((f"{scenario.name} {scenario.load_seconds:g}", system))
        bug = system.partition(":")[2]
        failed = MUTANTS[bug].invariant if bug else self.cries
        verdicts = tuple(
            Verdict(name, "fail" if name == failed else "pass", 1, "seen") for name in INVARIANTS
        )
        return Ran(Story().history(), verdicts, reports / "run")


def hunt_in_scenarios(runs: Runs, reports: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr("chaos.hunt.scenarios.run_and_keep", runs)
    only = [word for name in SHOWN for word in ("--only", name)]
    options = ["--killers", "scenarios", "--json", "--reports", str(reports)]
    return CliRunner().invoke(app, ["hunt", *only, *options])


def test_each_scenario_is_run_without_a_bug_first_with_the_bounds_of_the_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    done = hunt_in_scenarios(runs, tmp_path, monkeypatch)
    assert done.exit_code == 0, done.output
    without = [scenario for scenario, system in runs.systems if system == "leaseproof"]
    assert runs.systems[: len(without)] == [(scenario, "leaseproof") for scenario in without]
    assert len(without) == len(set(without)) == 3
    assert set(without) == {scenario for scenario, _ in runs.systems}
    assert len(runs.systems) == 3 + len(SHOWN)


@pytest.mark.parametrize("cries", ["progress", "reclaimed-in-time", "fenced"])
def test_a_scenario_that_cries_without_a_bug_ends_the_hunt(
    cries: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(cries)
    done = hunt_in_scenarios(runs, tmp_path, monkeypatch)
    assert done.exit_code == 1, done.output
    said = " ".join(done.output.split())
    assert "the unmodified scheduler fails in scenario" in said
    assert f"{cries}: seen" in said
    assert [system for _, system in runs.systems] == ["leaseproof"]


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_scenario_shows_a_bug_and_is_quiet_without_it(tmp_path: Path) -> None:
    options = ["--only", "never-reclaims", "--killers", "scenarios", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, ["hunt", *options])
    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("kill-mid-run-leaseproof-*/verdicts.json"))) == 2


def test_a_hunter_that_dies_is_the_harnesss_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise BrokenProcessPool("a process was killed")

    monkeypatch.setattr("chaos.hunt.cli._explore", die)
    done = CliRunner().invoke(app, ["hunt", "--killers", "explorer"])
    assert done.exit_code == 4
    assert "the harness could not do its work: a process was killed" in done.output
