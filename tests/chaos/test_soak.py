"""The soak: ever new seeds for a time, sums that nobody makes up, and only odd runs kept."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.history.events import History
from chaos.invariants.judge import judge
from chaos.keep import Ran
from chaos.scenario import Scenario, parse_scenario
from chaos.soak import soak, told
from tests.chaos.invariants.build import Story

TEXT = """\
name: {}
about: Made up.
load_seconds: 1
workers: {{count: 1}}
tasks:
  - {{behaviour: quick, count: 1}}
invariants: [no-lost-task]
bounds: {{reclaim: 1, progress: 1}}
"""
TWO = [parse_scenario(TEXT.format(name), name) for name in ("one", "two")]


def good(story: Story) -> History:
    """One task done and its effect doubled, with a reason; one kill that bit."""
    story.enqueue(1).claim(1, at=1).note("effect", 1, 2, token=1).reclaim(1, 7)
    story.claim(1, by="w2", at=8).note("effect", 1, 9, token=2).complete(1, at=10)
    story.fault("kill", "plan", at=0, detail="1").fault("kill", "inject", "bite", at=3)
    return story.history(named=["no-lost-task"])


def lost(story: Story) -> History:
    """A task that vanishes."""
    return story.enqueue(1).prune(1, at=2).history(named=["no-lost-task"])


def played(history: History, reports: Path, name: str) -> Ran:
    """A run that is over, with a directory."""
    directory = reports / name
    directory.mkdir(parents=True)
    return Ran(history, judge(history), directory)


def test_scenarios_take_turns_with_ever_new_seeds_until_the_time_is_over(tmp_path: Path) -> None:
    turns: list[tuple[str, int, str]] = []

    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        turns.append((scenario.name, seed, system))
        return played(good(Story()), reports, str(seed))

    soaked = soak(TWO, 0.05, 7, "leaseproof", tmp_path, play)
    assert soaked.seconds >= 0.05
    assert soaked.outcomes == {"pass": len(turns)}
    turns.clear()
    soak(TWO, inf, 7, "leaseproof", tmp_path, play, runs=3)
    assert turns == [
        ("one", 7, "leaseproof"),
        ("two", 8, "leaseproof"),
        ("one", 9, "leaseproof"),
    ]
    assert list(tmp_path.iterdir()) == []  # what passed is not kept


def test_as_many_runs_as_asked_for_are_made_and_told(tmp_path: Path) -> None:
    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        return played(good(Story()), reports, str(seed))

    soaked = soak(TWO, inf, 1, "leaseproof", tmp_path, play, runs=3)
    assert soaked.outcomes == {"pass": 3}
    assert told(soaked)[0].startswith("3 runs in ")
    assert told(soaked)[0].endswith("seeds from 1: 3 pass")
    answer = CliRunner().invoke(app, ["soak"])
    assert (answer.exit_code, "--runs" in answer.stderr) == (2, True)


def test_the_sums_are_those_of_the_histories(tmp_path: Path) -> None:
    histories = iter([good(Story()), lost(Story()), good(Story())])

    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        return played(next(histories), reports, str(seed))

    soaked = soak(TWO, 0, 1, "leaseproof", tmp_path, play)
    assert (soaked.tasks, soaked.lost, soaked.effects) == (1, 0, 2)
    assert (soaked.explained, soaked.unexplained) == (1, 0)
    assert soaked.faults["kill"] == (1, 1)
    soaked.add(play(TWO[0], 2, "leaseproof", tmp_path))
    assert (soaked.outcomes["fail"], soaked.lost) == (1, 1)
    soaked.add(play(TWO[0], 3, "leaseproof", tmp_path))
    assert soaked.faults["kill"] == (2, 2)


def test_what_it_came_to_until_somebody_ended_it_is_told(tmp_path: Path) -> None:
    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        if seed == 3:
            raise KeyboardInterrupt
        return played(good(Story()), reports, str(seed))

    soaked = soak(TWO, 3600, 1, "leaseproof", tmp_path, play)
    assert (soaked.interrupted, soaked.outcomes) == (True, {"pass": 2})


def test_a_run_that_did_not_pass_is_kept_and_named(tmp_path: Path) -> None:
    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        return played(lost(Story()), reports, str(seed))

    kept: list[Ran] = []
    soaked = soak(TWO, 0, 1, "leaseproof", tmp_path, play, keep=kept.append)
    [(reason, directory)] = soaked.kept
    assert "no-lost-task" in reason
    assert directory.exists()
    assert [ran.directory for ran in kept] == [directory]


@pytest.mark.slow
def test_the_command_tells_what_it_came_to_and_ends_by_the_worst(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TEXT.format("tiny"))
    answer = CliRunner().invoke(
        app, ["soak", str(file), "--runs", "1", "--reports", str(tmp_path / "reports")]
    )
    assert answer.exit_code == 0, answer.output
    assert "1 pass" in answer.stdout
    assert "1 tasks, 0 lost" in answer.stdout
