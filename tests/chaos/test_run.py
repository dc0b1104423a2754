"""Whole runs: the real scheduler passes with evidence, and every planted bug turns a run red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from chaos.cluster.standby import Standby
from chaos.faults import Fault
from chaos.faults.database import Crash, DatabaseFault, DdlLock
from chaos.faults.fault import nothing_to_heal
from chaos.faults.worker import Kill, Pause, Terminate
from chaos.figures.replaying import shown
from chaos.invariants.judge import toothless
from chaos.mutants import MUTANTS
from chaos.scenario import Scenario, Tasks, load_scenario
from chaos.testing import RunScenario, ScenarioFailed

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def small(name: str, scale: float) -> Scenario:
    """A smaller form of a scenario."""
    return load_scenario(SCENARIOS / f"{name}.yaml").scaled(scale)


STARVED = 150_000  # microseconds that the runner came too late: faults then miss what they aim at

NAMES = sorted(path.stem for path in SCENARIOS.glob("*.yaml"))
MAIN = {"kill-mid-run"}


def swept(name: str, main: set[str], *values: object) -> ParameterSet:
    """A parameter that only `make test-long` runs, unless it is one of the main ones."""
    return pytest.param(*values, id=name, marks=() if name in main else pytest.mark.chaos_long)


@pytest.mark.parametrize("name", [swept(name, MAIN, name) for name in NAMES])
def test_the_scheduler_holds_and_every_fault_bites(
    name: str, scenario: RunScenario, request: pytest.FixtureRequest
) -> None:
    short = load_scenario(SCENARIOS / f"{name}.yaml").in_short()
    if any(fault.needs_proxy for fault in short.faults):
        request.getfixturevalue("real_toxiproxy")
    try:
        history = scenario(short).history
    except ScenarioFailed as told:
        lag = told.ran.history.phases.lag
        if told.failed or lag <= STARVED:
            raise
        # The run itself says that it proves nothing; so does this test, aloud.
        pytest.skip(f"the machine lagged {lag} us: {told}")
    assert {fault.name for fault in history.faults} - {"death"} == set(short.must_bite)
    assert history.unknown == 0
    if not any(isinstance(fault, DatabaseFault) for fault in short.faults):
        # Without a database a new worker rightly ends.
        assert {fault.detail for fault in history.faults if fault.action == "death"} <= {"-9"}


@pytest.mark.chaos_long
def test_faults_that_do_nothing_or_find_nobody_leave_a_run_inconclusive(
    scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(ScenarioFailed, match="inconclusive") as told:
        scenario(calm)
    history = told.value.ran.history
    assert toothless(history) == {fault.kind for fault in faults} | {"hog"}
    assert told.value.failed == frozenset()
    assert not any(fault.name == "pause" and fault.action == "inject" for fault in history.faults)


@pytest.mark.chaos_long
def test_a_standby_that_is_synchronous_in_name_only_is_found_out(
    scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = "state = 'streaming'"
    monkeypatch.setattr(Standby, "follow", lambda standby: standby._wait_for_stream(streams))
    with pytest.raises(ScenarioFailed, match=r"no-lost-task: .*the failover to a synchronous"):
        scenario(small("failover-synchronous", 0.4))


MAIN_BUGS = {"effect-before-completion"}
# The property machine catches these in a second, without a fleet.
QUICKLY_CAUGHT = {"claim-takes-twice-the-limit", "fails-without-backoff", "snooze-lowers-the-token"}


@pytest.mark.parametrize(
    "name", [swept(name, MAIN_BUGS, name) for name in sorted(MUTANTS.keys() - QUICKLY_CAUGHT)]
)
def test_a_planted_bug_turns_the_run_red_through_the_invariant_that_names_it(
    name: str, scenario: RunScenario, request: pytest.FixtureRequest
) -> None:
    short = shown(name, SCENARIOS)
    if any(fault.needs_proxy for fault in short.faults):
        request.getfixturevalue("real_toxiproxy")
    with pytest.raises(ScenarioFailed) as told:
        scenario(short, system=f"leaseproof:{name}", seed=1)
    assert MUTANTS[name].invariant in told.value.failed, str(told.value)
