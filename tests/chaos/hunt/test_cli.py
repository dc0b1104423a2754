"""`chaos hunt`."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.hunt.found import Hunted, Kill
from chaos.hunt.pool import FalseAlarmError


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


@pytest.mark.parametrize(
    ("hunted", "code"),
    [
        ([KILLED, UNMET], 0),
        ([KILLED, BROKE], 4),
        ([BROKE, OTHER], 1),
        ([BROKE, SURVIVED], 1),
        ([BROKE, STALE], 1),
    ],
)
def test_what_the_hunt_found_weighs_more_than_that_a_hunter_broke(
    hunted: list[Hunted], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.hunt.cli._explore", lambda *_, **__: hunted)
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


def test_a_hunter_that_dies_is_the_harnesss_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise BrokenProcessPool("a process was killed")

    monkeypatch.setattr("chaos.hunt.cli._explore", die)
    done = CliRunner().invoke(app, ["hunt", "--killers", "explorer"])
    assert done.exit_code == 4
    assert "the harness could not do its work: a process was killed" in done.output
