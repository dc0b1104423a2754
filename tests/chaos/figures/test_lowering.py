"""The figure of lowered failures: what counts, and what it takes to hold."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chaos.cli import app
from chaos.figures.lowering import BUGS, Lowering, held, page
from chaos.figures.replaying import shown
from chaos.lowering.projection import LOWERABLE
from chaos.mutants import MUTANTS

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FOUND = Lowering(
    "renews-by-id",
    "fenced",
    "pause-past-lease",
    runs=1,
    actors=("claim renew", "reclaim"),
    schedule="a a b b",
    searched=3,
    stands=True,
)
NOT = FOUND._replace(schedule=None, actors=(), why="it takes more than 6 actors")
ALSO_WITHOUT = FOUND._replace(stands=False)
UNSEEN = FOUND._replace(runs=None, actors=(), schedule=None)


def test_the_bugs_are_ten_whose_invariant_can_be_lowered_and_their_scenarios_are_there() -> None:
    assert len(set(BUGS)) == 10
    for bug in BUGS:
        assert MUTANTS[bug].invariant in LOWERABLE
        assert MUTANTS[bug].invariant in shown(bug, SCENARIOS).invariants


def test_eight_of_ten_recorded_failures_must_be_lowered() -> None:
    assert held([FOUND] * 8 + [NOT] * 2)
    assert not held([FOUND] * 7 + [NOT] * 3)
    assert not held([FOUND] * 7 + [ALSO_WITHOUT] * 3)
    assert not held([FOUND] * 10 + [UNSEEN])


def test_the_page_tells_each_bug_and_the_figure() -> None:
    text = "\n".join(page([FOUND] * 7 + [FOUND._replace(searched=0), NOT, ALSO_WITHOUT, UNSEEN]))
    assert text.count("`renews-by-id`") == 11
    assert "| in run 1 | `claim renew`, `reclaim` | `a a b b` | after 3 schedules |" in text
    assert "| `a a b b` | in the order of the run |" in text
    assert "| in run 1 | - | - | not lowered: it takes more than 6 actors |" in text
    assert "but it is wrong without the bug, too" in text
    assert "| no run failed so | - | - |" in text
    assert "lowered 8 of 10 recorded failures of planted bugs" in text
    assert text.endswith(": NOT held.")


def test_a_bug_that_nobody_planted_is_refused_in_one_sentence() -> None:
    answer = CliRunner().invoke(app, ["figures", "lowering", "nothing"])
    assert (answer.exit_code, "no planted bug is called nothing" in answer.stderr) == (2, True)
