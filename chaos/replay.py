"""Runs a recorded run again: same tasks, same faults, each at the same point of the story.

A time alone would not do: another run is a little faster or slower, and the worker that held a task
then holds none now. So each injection is keyed to how many tasks were done by then, and to what its
target held when it was struck, or to which task an operator did it: the replay waits, around that
time, until as many tasks are done, and strikes whoever holds one of those tasks. Tasks have the
same ids in both runs, because the client enqueues the same ones in the same order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from chaos.faults.operator import OPERATOR
from chaos.history.events import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DISCARDED,
    PENDING,
    RUNNING,
    History,
    worker_of,
)
from chaos.history.store import HistoryError, load
from chaos.invariants.judge import judge
from chaos.invariants.verdict import Verdict
from chaos.plan import Planned
from chaos.saved import HISTORY, SCENARIO
from chaos.scenario import Scenario, ScenarioError, load_scenario


class ReplayError(Exception):
    """A directory that holds no run that could be replayed; the message says what is missing."""


class Recorded(NamedTuple):
    """A run as it was kept: what it takes to run it again, and what was found wrong with it."""

    scenario: Scenario
    seed: int
    system: str
    plan: list[Planned]
    failed: frozenset[str]


def recorded(directory: Path) -> Recorded:
    """Read a run's directory. Raises ReplayError."""
    try:
        scenario = load_scenario(directory / SCENARIO)
        history = load(directory / HISTORY)
    except (HistoryError, ScenarioError, OSError) as error:
        raise ReplayError(f"{directory} is not a run that can be replayed: {error}") from error
    seed, name = history.about.get("seed"), history.about.get("system")
    if not isinstance(seed, int) or not isinstance(name, str):
        raise ReplayError(
            f"{directory} is not a run that can be replayed: it does not say its seed and system"
        )
    return Recorded(scenario, seed, name, timeline(history), failed(judge(history)))


def failed(verdicts: Iterable[Verdict]) -> frozenset[str]:
    """The invariants that failed."""
    return frozenset(one.invariant for one in verdicts if one.outcome == "fail")


def timeline(history: History) -> list[Planned]:
    """The faults of a history as a plan: when, which, what its target held at that moment, and how
    many tasks were done."""
    injected = [fault for fault in history.faults if fault.action == "inject" and fault.which >= 0]
    injected.sort(key=lambda fault: fault.at)
    began = history.phases.began
    planned = []
    owners: dict[int, str] = {}
    done: set[int] = set()
    operated = _operated(history)
    commits = iter(history.commits)
    commit = next(commits, None)
    for fault in injected:
        while commit is not None and commit.at <= fault.at:
            for task, row in commit.changes:
                over = row is not None and row.state in (COMPLETED, DEAD)
                (done.add if over else done.discard)(task)
                if row is not None and row.state == RUNNING and row.owner is not None:
                    owners[task] = row.owner
                else:
                    owners.pop(task, None)
            commit = next(commits, None)
        if fault.target == OPERATOR:
            tasks = operated.get((fault.at, fault.name), frozenset())
        else:
            tasks = _held(owners.items(), fault.target.split())
        when = (fault.at - began) / 1e6
        planned.append(Planned(when, fault.which, tasks, len(done)))
    return planned


# From which states, and to which, each operation takes a task.
_OPERATIONS = {
    "cancel": ((PENDING, RUNNING), CANCELLED),
    "requeue": ((DEAD,), PENDING),
    "discard": ((DEAD,), DISCARDED),
}


def _operated(history: History) -> dict[tuple[int, str], frozenset[int]]:
    """The task of each operation, by its time and name: the latest before the task was changed."""
    times: dict[str, list[int]] = {name: [] for name in _OPERATIONS}
    for fault in history.faults:
        if fault.target == OPERATOR and fault.action == "inject" and fault.name in times:
            insort(times[fault.name], fault.at)
    found: dict[tuple[int, str], frozenset[int]] = {}
    states: dict[int, str] = {}
    for commit in history.commits:
        for task, row in commit.changes:
            before = states.get(task)
            if row is None:
                continue
            states[task] = row.state
            for name, (of, into) in _OPERATIONS.items():
                if before in of and row.state == into:
                    index = bisect_right(times[name], commit.at)
                    if index:
                        found.setdefault((times[name][index - 1], name), frozenset({task}))
    return found


def _held(owners: Iterable[tuple[int, str]], workers: list[str]) -> frozenset[int]:
    """The tasks that the only worker struck held; of several no one in particular is meant."""
    if len(workers) != 1:
        return frozenset()
    return frozenset(task for task, owner in owners if worker_of(owner) == workers[0])
