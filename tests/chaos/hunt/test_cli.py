"""`chaos hunt`."""

from __future__ import annotations

import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app


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


def test_a_hunter_that_dies_is_the_harnesss_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise BrokenProcessPool("a process was killed")

    monkeypatch.setattr("chaos.hunt.cli._explore", die)
    done = CliRunner().invoke(app, ["hunt", "--killers", "explorer"])
    assert done.exit_code == 4
    assert "the harness could not do its work: a process was killed" in done.output
