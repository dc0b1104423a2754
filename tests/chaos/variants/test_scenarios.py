"""Scenarios over variants: what cried, what decided nothing and what never ran are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.cluster import ClusterError
from chaos.history.events import History
from chaos.invariants.judge import judge
from chaos.keep import Ran
from chaos.mutants import MUTANTS
from chaos.scenario import Scenario
from chaos.variants import UNMODIFIED, VARIANTS, Variant, scenarios
from chaos.variants.tried import Tried
from tests.chaos.invariants.build import Story

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def good() -> History:
    """One task done."""
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=3)
    return story.history(named=["no-lost-task"])


def lost() -> History:
    """A task that vanishes."""
    return Story().enqueue(1).prune(1, at=2).history(named=["no-lost-task"])


def toothless() -> History:
    """All is well, but the fault that was planned never came."""
    story = (
        Story().enqueue(1).claim(1, at=1).complete(1, at=3).fault("kill", "plan", at=0, detail="1")
    )
    return story.history(named=["no-lost-task"])


def bitten() -> History:
    """All is well with a clock that was wrong."""
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=3)
    return story.fault("wrong-clock", "plan", "inject", "bite", at=2, detail="1").history(
        named=["no-lost-task"]
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[History | Exception]:
    """What the next runs come to, instead of what they would."""
    coming: list[History | Exception] = []
    numbers = iter(range(1000))

    def run_and_keep(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        directory = reports / f"{scenario.name}-{seed}-{next(numbers)}"
        (directory / "workers").mkdir(parents=True)
        (directory / "system").write_text(system)
        come = coming.pop(0)
        if isinstance(come, BaseException):
            raise come
        history = replace(come, about={"scenario": scenario.name})
        return Ran(history, judge(history), directory)

    monkeypatch.setattr(scenarios, "run_and_keep", run_and_keep)
    monkeypatch.setattr(scenarios, "write", lambda *_: None)
    return coming


def tried(variant: Variant, runs: int, reports: Path) -> Tried:
    """The variant after so many runs."""
    return scenarios.run(variant, scenarios.loaded(variant, SCENARIOS), runs, 1, reports, "news")


def test_a_failed_run_is_an_alarm_and_an_inconclusive_one_is_told_apart(
    told: list[History | Exception], tmp_path: Path
) -> None:
    told[:] = [good(), lost(), toothless()]
    found = tried(UNMODIFIED, 3, tmp_path)
    assert found.outcomes == {"pass": 1, "fail": 1, "inconclusive": 1}
    [alarm] = found.alarms
    assert "no-lost-task" in alarm.what
    assert alarm.shown_by.startswith("chaos replay ")
    [undecided] = found.undecided
    assert "kill" in undecided
    assert len(list(tmp_path.iterdir())) == 2  # what passed is not kept
    assert not found.held
    assert Tried("one", outcomes=found.outcomes, undecided=found.undecided).held


def test_a_run_is_of_the_variants_own_system(
    told: list[History | Exception], tmp_path: Path
) -> None:
    told[:] = [lost(), lost()]
    tried(VARIANTS["fenced-twice"], 2, tmp_path)
    systems = {file.read_text() for file in tmp_path.glob("*/system")}
    assert systems == {"leaseproof:fenced-twice"}


def test_a_change_that_no_worker_ran_and_a_fault_that_never_bit_are_told(
    told: list[History | Exception], tmp_path: Path
) -> None:
    told[:] = [good(), good(), bitten()]
    assert tried(VARIANTS["pooled"], 1, tmp_path).unmet == (
        "in no worker: scheduler.worker:Worker.__init__",
    )
    assert tried(VARIANTS["heavy-skew"], 1, tmp_path).unmet == ("fault wrong-clock never bit",)
    assert tried(VARIANTS["heavy-skew"], 1, tmp_path).unmet == ()


def test_a_run_that_cannot_be_finished_is_no_alarm_and_does_not_pass_for_one_that_was(
    told: list[History | Exception], tmp_path: Path
) -> None:
    told[:] = [good(), ClusterError("no server")]
    found = tried(UNMODIFIED, 2, tmp_path)
    assert (found.runs, found.broke, found.held) == (1, ("no server",), False)


def test_who_ends_it_ends_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def end(*_: object) -> Ran:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenarios, "run_and_keep", end)
    with pytest.raises(KeyboardInterrupt):
        tried(UNMODIFIED, 2, tmp_path)


def test_a_slow_machine_is_slow_during_the_run_only(
    monkeypatch: pytest.MonkeyPatch, told: list[History | Exception], tmp_path: Path
) -> None:
    burning: list[int] = []

    def counted(count: int) -> Iterator[list[int]]:
        burning.append(count)
        yield []

    monkeypatch.setattr(scenarios, "burning", contextmanager(counted))
    told[:] = [good()]
    assert tried(VARIANTS["slow-machine"], 1, tmp_path).unmet == ("nothing was burnt",)
    assert burning == [VARIANTS["slow-machine"].burners]


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_bug_that_is_passed_off_as_a_variant_fails_a_scenario(tmp_path: Path) -> None:
    bug = MUTANTS["claim-without-lock"]
    variant = Variant(bug.name, "no lock", "nobody minds", bug.edits, scenarios=("kill-mid-run",))
    found = tried(variant, 1, tmp_path)
    assert found.outcomes == {"fail": 1}
    assert "no-overlap" in found.alarms[0].what


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize("name", ["serializable", "slow-machine"])
def test_a_correct_variant_passes_a_scenario_that_runs_its_change(
    name: str, tmp_path: Path
) -> None:
    found = tried(VARIANTS[name], 1, tmp_path)
    assert (found.alarms, found.unmet, found.broke, found.runs) == ((), (), (), 1)
