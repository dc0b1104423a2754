"""The figures of the explorer: what is measured, what counts, and what it takes to hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.cluster.postgres import Postgres, postgres
from chaos.explore import Bounds
from chaos.explore.certificate import Certificate
from chaos.explore.explore import SERVER
from chaos.figures import exploring
from chaos.figures.exploring import Figure, Measured, all_claims, held, life, page, speed, tries

CUT = Certificate(
    bounds=Bounds(preemptions=2, crashes=1),
    coverage="cut short",
    schedules=300,
    steps=2400,
    preemptions=2,
    returned={"a": 300},
    raised={},
    crashed={"a": 3},
    faults={"crash": 3},
    blocked=3,
    checked=300,
    degraded=(),
    server="18.0",
    seconds=2.0,
)
BOUNDED = replace(CUT, coverage="bounded")
FAILED = replace(CUT, coverage="stopped at a failure", schedules=3)
UNSURE = ("it is not deterministic",)
FINE = Figure("a double claim without locks", "found in schedule 3", "within 5 schedules", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "came"),
    [
        (exploring.two_workers, r"\d+ schedules/s \(\d+ to \d+\)"),
        pytest.param(exploring.three_workers, r"\d+ in [\d.]+ s", marks=pytest.mark.chaos_long),
        (exploring.double_claim, r"found in schedule [1-5]"),
        (exploring.task_life, r"\d+ steps/s"),
    ],
)
def test_each_figure_is_measured_and_nothing_is_wrong_but_perhaps_its_speed(
    measure: Callable[[Postgres], Figure], came: str
) -> None:
    assert measure in exploring.FIGURES
    with postgres(settings=SERVER) as server:
        figure = measure(server)
    assert re.fullmatch(came, figure.came)


def test_150_schedules_a_second_hold_if_each_can_be_relied_upon() -> None:
    slow = replace(CUT, seconds=2.01)
    assert speed([slow, CUT, CUT]).held
    assert not speed([slow, CUT, slow]).held
    unsure = speed([CUT, replace(CUT, degraded=UNSURE), CUT])
    assert not unsure.held
    assert unsure.came == "150 schedules/s (150 to 150), but it is not deterministic"
    failed = speed([CUT, CUT, replace(CUT, coverage="stopped at a failure")])
    assert (failed.came, failed.held) == ("150 schedules/s (150 to 150), but one failed", False)


def test_all_schedules_of_three_workers_hold_within_a_minute_and_only_if_they_pass() -> None:
    assert all_claims(replace(BOUNDED, seconds=60)).held
    assert not all_claims(replace(BOUNDED, seconds=60.1)).held
    for wrong in (CUT, FAILED, replace(BOUNDED, degraded=UNSURE)):
        assert not all_claims(wrong).held
        assert f", but {wrong.outcome}" in all_claims(wrong).came


def test_a_double_claim_holds_if_it_is_found_within_five_schedules() -> None:
    assert tries(replace(FAILED, schedules=5)).held
    assert not tries(replace(FAILED, schedules=6)).held
    assert tries(replace(BOUNDED, schedules=5))[1:] == ("not found", "within 5 schedules", False)


def test_100_steps_a_second_hold_if_nothing_is_wrong() -> None:
    assert life(200, 2.0, "").held
    assert not life(199, 2.0, "").held
    assert life(200, 2.0, "assert a == b\nstate.claim()")[1:] == (
        "100 steps/s, but assert a == b",
        "100 or more",
        False,
    )


def test_the_page_tells_each_figure_and_what_it_was_measured_with() -> None:
    text = "\n".join(page(Measured("18.0", 61.7, [FINE, FINE._replace(held=False)])))
    assert text.startswith("PostgreSQL 18.0 with fsync off")
    assert "took 62 µs" in text
    row = "| a double claim without locks | found in schedule 3 | within 5 schedules |"
    assert f"{row} held |\n{row} NOT held |" in text
    assert text.endswith("1 of 2 figures are as asked for: NOT held.")
    assert "2 of 2 figures are as asked for: held." in page(Measured("18.0", 61.7, [FINE] * 2))


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_command_prints_the_page_keeps_it_and_ends_with_what_came_of_it(
    holds: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured("18.0", 61.7, [FINE._replace(held=holds)])
    assert held(measured) == holds
    monkeypatch.setattr(exploring, "measure", lambda tell: measured)
    file = tmp_path / "explorer.md"
    answer = CliRunner().invoke(app, ["figures", "explorer", "--out", str(file)])
    assert answer.exit_code == code
    assert "found in schedule 3" in answer.stdout
    assert "found in schedule 3" in file.read_text()
