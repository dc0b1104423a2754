"""What a test is told of a run that did not pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.history.events import Fault
from chaos.invariants.verdict import Failure, Verdict
from chaos.keep import Ran
from chaos.testing import told
from tests.chaos.invariants.build import Story
from tests.chaos.test_summary import SCENARIO


def test_the_verdict_comes_first_then_what_failed_and_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = Failure("task 1: w1 wrote", 1, 1)
    verdicts = (
        Verdict("progress", "pass", 1, "all done"),
        Verdict("fenced", "fail", 1, failure.sentence, (failure,)),
    )
    ran = Ran(Story().history(), verdicts, tmp_path / "reports" / "tiny-1")
    expected = [
        "tiny: fail: fenced failed",
        "fenced: task 1: w1 wrote",
        f"run: {ran.directory}",
        f"report: {ran.directory}/report.html",
        f"replay: chaos replay {ran.directory}",
    ]
    assert told(SCENARIO, ran).splitlines() == expected
    monkeypatch.chdir(tmp_path)
    assert told(SCENARIO, ran).splitlines()[-1] == "replay: chaos replay reports/tiny-1"


def test_a_run_that_proved_nothing_says_what_was_missing(tmp_path: Path) -> None:
    planned = Fault(0, "kill", "plan", "", "3")
    ran = Ran(replace(Story().history(), faults=(planned,)), (), tmp_path)
    first, *_ = told(SCENARIO, ran).splitlines()
    assert first == "tiny: inconclusive: fault kill was planned 3 times and never injected"
