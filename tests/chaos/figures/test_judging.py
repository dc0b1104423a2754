"""The figure of judging: its histories are lawful and alike, and judging them is linear."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.figures.judging import Judged, events_of, held, judge_file, make
from chaos.figures.simulated import simulated
from chaos.history.events import History
from chaos.history.lives import Life, lives
from chaos.history.store import load
from chaos.invariants.judge import INVARIANTS, Invariant, judge, overall, why

SMALL, LARGE = 5_000, 20_000
# How many lines of Python each event of the larger history may take, to one of the smaller.
LINEAR = 1.4


@pytest.fixture(scope="module")
def histories() -> tuple[History, History]:
    return simulated(SMALL), simulated(LARGE)


@pytest.mark.slow
def test_a_simulated_history_is_lawful_and_has_something_for_each_invariant(
    histories: tuple[History, History],
) -> None:
    for history in histories:
        verdicts = judge(history)
        assert overall(history, verdicts) == "pass", why(history, verdicts)
        assert history.named == INVARIANTS.keys()
    assert SMALL <= events_of(histories[0]) < 1.2 * SMALL
    assert LARGE <= events_of(histories[1]) < 1.2 * LARGE


def test_a_simulated_history_is_the_same_each_time(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl.gz"
    make(3_000, file)
    assert load(file) == simulated(3_000)


def lines(invariant: Invariant, history: History, told: Mapping[int, Life]) -> int:
    """How many lines of Python an invariant takes: unlike its time, the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        invariant(history, told)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the lives", *INVARIANTS])
def test_what_judging_takes_is_linear_in_the_history(
    name: str, histories: tuple[History, History]
) -> None:
    def each(history: History) -> float:
        if name == "the lives":
            count = lines(lambda history, _: lives(history), history, {})  # type: ignore[arg-type, return-value]  # only its lines are looked at
        else:
            count = lines(INVARIANTS[name], history, lives(history))
        return count / events_of(history)

    small, large = map(each, histories)
    assert large / small < LINEAR


def test_a_history_is_loaded_and_judged_and_its_figure_says_what_came_of_it(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl.gz"
    make(SMALL, file)
    judged = judge_file(file)
    assert judged.events >= SMALL
    assert judged.outcome == "pass"
    assert min(judged.load, judged.judge, judged.peak_megabytes) > 0


def test_the_figure_holds_only_within_its_time_and_memory_and_if_all_passed() -> None:
    fine = Judged(1_000_000, 1, 1, 6.0, 6.0, 20, 900, "pass")
    assert held([fine])
    assert not held([fine._replace(judge=9.1)])
    assert not held([fine._replace(peak_megabytes=1001)])
    assert not held([fine._replace(outcome="fail"), fine])
    assert not held([fine._replace(events=100_000)])


def test_sizes_that_are_none_are_refused_in_one_sentence() -> None:
    for sizes, said in (("many", "whole numbers"), ("10", "at least")):
        answer = CliRunner().invoke(app, ["figures", "judging", "--sizes", sizes])
        assert (answer.exit_code, said in answer.stderr) == (2, True)
