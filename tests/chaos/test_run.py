"""Whole runs: the real scheduler passes with evidence, and every planted bug turns a run red."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.history.events import History
from chaos.invariants.judge import judge, overall
from chaos.runner import run
from chaos.scenario import Bounds, Scenario, load_scenario
from chaos.systems.mutants import MUTANTS

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def small(name: str, scale: float) -> Scenario:
    """A smaller form of a scenario."""
    return load_scenario(SCENARIOS / f"{name}.yaml").scaled(scale)


def play(scenario: Scenario, directory: Path, system_name: str = "leaseproof") -> History:
    """Run a scenario with its own seed."""
    return run(scenario, seed=scenario.seed, system_name=system_name, directory=directory)


def sentences(history: History) -> dict[str, str]:
    """What each invariant says that did not pass."""
    return {
        verdict.invariant: verdict.sentence
        for verdict in judge(history)
        if verdict.outcome != "pass"
    }


def test_workers_killed_and_stopped_mid_run_take_effect_exactly_once(tmp_path: Path) -> None:
    history = play(small("kill-mid-run", 0.3), tmp_path)
    assert overall(history, judge(history)) == "pass", sentences(history)
    assert history.about["crashes"] == []


@pytest.mark.usefixtures("real_toxiproxy")
def test_a_worker_cut_off_for_longer_than_its_lease_changes_nothing_late(tmp_path: Path) -> None:
    history = play(small("black-holed-worker", 0.5), tmp_path)
    assert overall(history, judge(history)) == "pass", sentences(history)
    assert history.about["crashes"] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_turns_the_run_red_through_the_invariant_that_names_it(
    name: str, tmp_path: Path
) -> None:
    scenario = small("kill-mid-run", 0.25)
    # Some of these never converge; there is nothing to learn from waiting for them.
    hasty = scenario.model_copy(update={"bounds": Bounds(reclaim=2, progress=1)})
    history = play(hasty, tmp_path, f"leaseproof:{name}")
    verdicts = {verdict.invariant: verdict for verdict in judge(history)}
    assert verdicts[MUTANTS[name].invariant].outcome == "fail"
    assert overall(history, verdicts.values()) == "fail"
