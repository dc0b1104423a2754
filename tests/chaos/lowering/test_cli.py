"""`chaos lower`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.history.store import save
from chaos.saved import HISTORY
from tests.chaos.invariants.build import Story
from tests.chaos.lowering.test_lower import double_claim


def kept(story: Story, directory: Path, system: str) -> Path:
    """A run's directory with this history."""
    save(replace(story.history(), about={"system": system}), directory / HISTORY)
    return directory


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_failure_is_printed_and_written_as_a_test_that_is_red(tmp_path: Path) -> None:
    run = kept(double_claim(), tmp_path, "leaseproof:claim-without-lock")
    file = tmp_path / "test_lowered.py"
    done = CliRunner().invoke(app, ["lower", str(run), "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert "a was w1/1: claim" in done.output
    assert "schedules around the order of the run" in done.output
    assert "without the planted bug it is right" in done.output
    assert file.read_text() in done.output
    names: dict[str, object] = {}
    exec(file.read_text(), names)
    test = names["test_a_b_a_b"]
    assert callable(test)
    with pytest.raises(AssertionError, match="no-overlap"):
        test()


def test_what_cannot_be_lowered_is_said_in_one_sentence_with_a_code_of_its_own(
    tmp_path: Path,
) -> None:
    run = kept(double_claim(), tmp_path, "peers.procrastinate:SYSTEM")
    for named in (run, run / HISTORY):
        done = CliRunner().invoke(app, ["lower", str(named)])
        assert done.exit_code == 5
        said = " ".join(done.output.split())
        assert "cannot be lowered: the run was one of peers.procrastinate:SYSTEM" in said


@pytest.mark.parametrize("before", [None, "# mine\n"])
def test_what_cannot_be_lowered_leaves_no_file_behind_and_none_changed(
    tmp_path: Path, before: str | None
) -> None:
    run = kept(double_claim(), tmp_path, "peers.procrastinate:SYSTEM")
    file = tmp_path / "test_lowered.py"
    if before is not None:
        file.write_text(before)
    done = CliRunner().invoke(app, ["lower", str(run), "--out", str(file)])
    assert done.exit_code == 5
    assert (file.read_text() if file.exists() else None) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "No such file or directory"),
        (["nowhere", "--invariant", "nice"], "no invariant is called 'nice'; known: no-lost-task"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["lower", *arguments])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_a_file_that_cannot_be_written_is_told_before_the_search(tmp_path: Path) -> None:
    run = kept(double_claim(), tmp_path, "leaseproof")
    done = CliRunner().invoke(app, ["lower", str(run), "--out", str(tmp_path / "no" / "x.py")])
    assert (done.exit_code, "No such file or directory" in done.output) == (2, True)
