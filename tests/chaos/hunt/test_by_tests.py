"""Tests as hunters: what they catch, and what is no catch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.hunt.by_tests import ROOT, PytestError, are_for, hunt_by_tests
from chaos.hunt.found import Hunted
from chaos.hunt.generated import generated
from chaos.hunt.pool import FalseAlarmError
from chaos.hunt.tested import TESTED

BACKWARDS = "tokens: name descending"


def hunted(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Hunted]:
    """A mutant of tokens.sql after one test, whose body is this."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    file = directory / "test_tokens_alone.py"
    file.write_text(
        "from scheduler.statements import statement\nruns = []\ndef test_them():\n" + lines
    )
    monkeypatch.setitem(TESTED, "tokens", (os.path.relpath(file, ROOT / "tests"),))
    return list(hunt_by_tests([generated()[BACKWARDS]]))


@pytest.mark.slow
def test_the_schedulers_own_tests_catch_what_they_meet() -> None:
    names = ("retry_deliveries: without given_up", "delivery_failed: without set last_error")
    found = list(hunt_by_tests([generated()[name] for name in names]))
    assert [one.mutant for one in found] == list(names)
    for one in found:
        assert one.kill is not None, one
        assert one.kill.hunter.startswith("test: scheduler/test_hooks.py::test_")
        assert 0 < one.kill.seconds <= one.seconds
        assert one.kill.replay == f"chaos hunt --generated --only '{one.mutant}'"


def test_a_test_that_fails_with_the_mutant_alone_catches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = hunted("assert b'DESC' not in statement('tokens')", tmp_path, monkeypatch)
    assert found.kill is not None
    assert found.kill.hunter.endswith("test_tokens_alone.py::test_them")
    assert "assert b'DESC' not in b'-- All tokens" in found.kill.sentence
    assert (found.result, found.tests) == ("killed", 1)


def test_a_test_that_sees_nothing_lets_it_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = hunted("statement('tokens')", tmp_path, monkeypatch)
    assert (found.result, found.tests) == ("survived", 1)


def test_a_failure_that_comes_without_the_mutant_too_catches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = "statement('tokens')\nruns.append(1)\nassert len(runs) == 1"
    [found] = hunted(flaky, tmp_path, monkeypatch)
    assert found.result == "survived"


def test_a_statement_that_no_test_runs_is_told_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = hunted("statement('audit')", tmp_path, monkeypatch)
    assert (found.result, found.broke) == ("broken", "no test runs what it changes")


def test_a_test_that_fails_without_a_mutant_ends_the_hunt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FalseAlarmError, match=r"unmodified scheduler fails in a test.*assert 1"):
        hunted("assert 1 > 2", tmp_path, monkeypatch)


def test_tests_that_cannot_be_run_are_told_with_what_pytest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PytestError, match="SyntaxError"):
        hunted("this is no Python", tmp_path, monkeypatch)


def test_each_mutant_is_for_the_explorer_or_for_tests() -> None:
    assert are_for(generated()[BACKWARDS])
    assert not are_for(generated()["complete: without set lease_owner"])
    assert not are_for(generated()["cancel(): id descending"])
