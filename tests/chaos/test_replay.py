"""Replay: what a recorded run says about when to break what, and the same failure once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.history.store import save
from chaos.plan import WISH, Planned, is_time
from chaos.replay import ReplayError, recorded, timeline
from chaos.scenario import load_scenario
from tests.chaos.invariants.build import Story

TINY = """\
name: tiny
about: One worker is killed and one is stopped while they have slow tasks.
load_seconds: 4
workers: {count: 3, slots: 4, lease: 1, poll: 0.1, reclaim_every: 0.2}
tasks:
  - {behaviour: quick, count: 100}
  - {behaviour: slow, count: 24, seconds: 0.5}
faults:
  - {kind: kill, count: 1}
  - {kind: pause, count: 1, lasts: 1.5}
invariants: [no-overlap, progress]
bounds: {reclaim: 2, progress: 10}
"""


def test_an_injection_is_keyed_to_what_its_target_held_at_that_moment() -> None:
    story = Story().enqueue(1).enqueue(2).enqueue(3)
    story.claim(1, at=1, owner="w1.1/a").claim(2, at=1, owner="w2.1/b").complete(1, at=2)
    story.claim(3, at=3, owner="w1.1/c")
    for at, which in ((2.5, 0), (1.5, 1), (3.5, 0)):
        story.fault("kill", "inject", "bite", target="w1.1", at=at, which=which)
    assert timeline(story.history()) == [
        Planned(1.5, 1, frozenset({1}), 0),
        Planned(2.5, 0, frozenset(), 1),
        Planned(3.5, 0, frozenset({3}), 1),
    ]


def test_a_fault_of_the_server_or_of_several_workers_is_keyed_to_what_was_done_by_then() -> None:
    story = Story().enqueue(1).claim(1, at=1, owner="w1.1/a")
    story.fault("crash", "inject", target="server", at=2, which=0)
    story.fault("stampede", "inject", target="w1.1 w2.1", at=3, which=1)
    assert timeline(story.history()) == [Planned(2, 0, done=0), Planned(3, 1, done=0)]


def test_an_operation_is_keyed_to_its_task() -> None:
    story = Story().enqueue(1).enqueue(2).enqueue(3, max_attempts=1)
    for at, name in ((1, "cancel"), (2, "cancel"), (4, "requeue"), (5, "discard")):
        story.fault(name, "inject", target="operator", at=at, which=0)
    story.cancel(2, at=1.1).claim(3, at=2.5).fail(3, at=3).requeue(3, at=4.1)
    assert [(planned.when, list(planned.tasks)) for planned in timeline(story.history())] == [
        (1, [2]),
        (2, []),  # the task had moved on
        (4, [3]),
        (5, []),
    ]


def test_a_replayed_fault_waits_for_what_was_done_but_not_for_long() -> None:
    planned = Planned(10, 0, done=5)
    assert [is_time(planned, since, 5) for since in (1, 10 - WISH, 10)] == [False, True, True]
    assert [is_time(planned, since, 4) for since in (10, 10 + WISH)] == [False, True]
    assert [is_time(Planned(10, 0), since, 0) for since in (9, 10)] == [False, True]


def test_tasks_that_are_faults_were_not_injected_by_anybody() -> None:
    story = Story().enqueue(1).fault("poison", "inject", target="12 tasks", at=2)
    assert timeline(story.history()) == []


def test_a_directory_without_a_run_is_answered_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="is not a run that can be replayed"):
        recorded(tmp_path)
    (tmp_path / "scenario.yaml").write_text(TINY)
    save(Story().history(), tmp_path / "history.jsonl.gz")
    with pytest.raises(ReplayError, match="does not say its seed"):
        recorded(tmp_path)
    answer = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert (answer.exit_code, "Traceback" in answer.stderr) == (2, False)


@pytest.mark.chaos_long
def test_a_recorded_failure_fails_again_and_its_line_says_how(tmp_path: Path) -> None:
    def chaos(*arguments: str) -> tuple[int, Path]:
        ran = CliRunner().invoke(app, [*arguments, "--reports", str(tmp_path), "--json"])
        return ran.exit_code, Path(json.loads(ran.stdout)["run"])

    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    system = "leaseproof:reclaim-ignores-expiry"
    code, run = chaos("run", str(file), "--system", system, "--seed", "3")
    assert code == 1
    record = recorded(run)
    assert (record.system, record.seed) == (system, 3)
    assert "no-overlap" in record.failed
    assert {planned.fault for planned in record.plan} == {0, 1}

    code, again = chaos("replay", str(run), "--tries", "3")
    assert code == 1
    assert "no-overlap" in recorded(again).failed
    assert load_scenario(again / "scenario.yaml") == record.scenario
