"""The figure of replays: what counts, and what it takes to hold."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chaos.cli import app
from chaos.figures.replaying import BUGS, Replayed, held, page, shown
from chaos.mutants import MUTANTS

SCENARIOS = Path(__file__).parents[3] / "scenarios"
AGAIN = Replayed("never-reclaims", "reclaimed-in-time", "kill-mid-run", runs=1, replay=2)
NEVER = AGAIN._replace(replay=None)
UNSEEN = AGAIN._replace(runs=None, replay=None)


def test_the_bugs_that_are_replayed_are_of_ten_kinds_at_least_and_their_scenarios_are_there() -> (
    None
):
    assert len({MUTANTS[bug].row for bug in BUGS}) >= 10
    for bug in BUGS:
        assert MUTANTS[bug].invariant in shown(bug, SCENARIOS).invariants


def test_nine_of_ten_recorded_failures_must_fail_again() -> None:
    assert held([AGAIN] * 9 + [NEVER])
    assert not held([AGAIN] * 8 + [NEVER] * 2)
    assert not held([AGAIN] * 10 + [UNSEEN])
    assert held([AGAIN])
    assert not held([UNSEEN])


def test_the_page_tells_each_bug_and_the_figure() -> None:
    text = "\n".join(page([AGAIN] * 9 + [AGAIN._replace(replay=1), NEVER, UNSEEN]))
    assert text.count("`never-reclaims`") == 12
    assert "| in run 1 | failed again in try 2 |" in text
    assert "| no run failed so | - |" in text
    assert "10 of 11 recorded failures failed again" in text
    assert "1 of them in the first" in text
    assert text.endswith(": NOT held.")


def test_a_bug_that_nobody_planted_is_refused_in_one_sentence() -> None:
    answer = CliRunner().invoke(app, ["figures", "replay", "nothing"])
    assert (answer.exit_code, "no planted bug is called nothing" in answer.stderr) == (2, True)
