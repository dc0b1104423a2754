"""Whole runs: the real scheduler passes with evidence, and every planted bug turns a run red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from chaos.faults import Fault
from chaos.faults.database import Crash, DatabaseFault, DdlLock
from chaos.faults.fault import nothing_to_heal
from chaos.faults.worker import Kill, Pause, Terminate
from chaos.history.events import History
from chaos.invariants.judge import judge, overall, toothless, why
from chaos.runner import run
from chaos.scenario import Bounds, Scenario, Tasks, load_scenario
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


STARVED = 150_000  # microseconds that the runner came too late: faults then miss what they aim at

# Each at the share of its length at which it still shows what it is about.
SHARES = {
    "bad-network": 0.6,
    "black-holed-worker": 0.5,
    "connection-exhaustion": 0.4,
    "database-crash": 0.3,
    "database-restart": 0.3,
    "ddl-lock": 0.3,
    "graceful-shutdown": 0.35,
    "interpreter-hogged": 0.3,
    "kill-mid-run": 0.3,
    "long-transaction": 0.4,
    "pause-past-lease": 0.25,
    "poison-pill": 0.3,
    "reset-storm": 0.3,
    "retry-storm": 0.3,
    "slow-task-renewal": 0.3,
    "stale-statistics": 0.4,
    "thundering-start": 0.3,
}


def test_every_scenario_is_run() -> None:
    assert {path.stem for path in SCENARIOS.glob("*.yaml")} == SHARES.keys()


MAIN = {"kill-mid-run", "black-holed-worker", "database-crash"}


def swept(name: str, main: set[str], *values: object) -> ParameterSet:
    """A parameter that only `make test-sweep` runs, unless it is one of the main ones."""
    return pytest.param(*values, id=name, marks=() if name in main else pytest.mark.sweep)


@pytest.mark.parametrize(
    ("name", "share"), [swept(name, MAIN, name, share) for name, share in SHARES.items()]
)
def test_the_scheduler_holds_and_every_fault_bites(
    name: str, share: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scenario = small(name, share)
    if any(fault.needs_proxy for fault in scenario.faults):
        request.getfixturevalue("real_toxiproxy")
    history = play(scenario, tmp_path)
    outcome = overall(history, judge(history))
    assert outcome != "fail", sentences(history)
    if outcome == "inconclusive" and history.phases.lag > STARVED:
        # The run itself says that it proves nothing; so does this test, aloud.
        pytest.skip(f"the machine lagged {history.phases.lag} us: {why(history, judge(history))}")
    assert outcome == "pass", (sentences(history), toothless(history))
    assert {fault.name for fault in history.faults} - {"death"} == set(scenario.must_bite)
    assert history.unknown == 0
    if not any(isinstance(fault, DatabaseFault) for fault in scenario.faults):
        # Without a database a new worker rightly ends.
        assert {fault.detail for fault in history.faults if fault.action == "death"} <= {"-9"}


def test_faults_that_do_nothing_or_find_nobody_leave_a_run_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spare(*_: object) -> Callable[[], int]:
        return nothing_to_heal

    faults: tuple[Fault, ...] = (
        Kill(kind="kill", count=1),
        Terminate(kind="terminate", count=1),
        Crash(kind="crash", count=1, lasts=0.5),
        DdlLock(kind="ddl-lock", count=1, lasts=0.5),
        Pause(kind="pause", count=1, lasts=2, aim="last-attempt"),
    )
    for fault in faults[:3]:
        monkeypatch.setattr(type(fault), "strike", spare)
    monkeypatch.setattr(DdlLock, "take_hold", spare)
    tasks = (Tasks(behaviour="slow", count=40, seconds=0.3), Tasks(behaviour="hog", count=1))
    calm = small("database-crash", 0.15).model_copy(update={"faults": faults, "tasks": tasks})
    history = play(calm, tmp_path)
    assert toothless(history) == {fault.kind for fault in faults} | {"hog"}
    assert {verdict.outcome for verdict in judge(history)} <= {"pass", "inconclusive"}
    assert overall(history, judge(history)) == "inconclusive"
    assert not any(fault.name == "pause" and fault.action == "inject" for fault in history.faults)


# The property machine catches these in a second, without a fleet.
MAIN_BUGS = {
    *("claim-without-lock", "complete-without-fence", "reclaim-ignores-expiry"),
    *("attempts-counted-on-failure-only", "claim-takes-future-tasks"),
}
# A short kill-mid-run wakes too few zombies for this one; behind a lock on the table many wait.
SHOWN_BY = {"complete-without-fence": ("ddl-lock", 0.3)}
QUICKLY_CAUGHT = {"claim-takes-twice-the-limit", "fails-without-backoff", "snooze-lowers-the-token"}


@pytest.mark.parametrize(
    "name", [swept(name, MAIN_BUGS, name) for name in sorted(MUTANTS.keys() - QUICKLY_CAUGHT)]
)
def test_a_planted_bug_turns_the_run_red_through_the_invariant_that_names_it(
    name: str, tmp_path: Path
) -> None:
    scenario = small(*SHOWN_BY.get(name, ("kill-mid-run", 0.25)))
    # Some of these never converge; there is nothing to learn from waiting for them.
    hasty = scenario.model_copy(update={"bounds": Bounds(reclaim=2, progress=1)})
    history = play(hasty, tmp_path, f"leaseproof:{name}")
    verdicts = {verdict.invariant: verdict for verdict in judge(history)}
    assert verdicts[MUTANTS[name].invariant].outcome == "fail"
    assert overall(history, verdicts.values()) == "fail"
