"""Tasks that are faults themselves: what each does to its worker, and how it shows that it did.

They are injected by the load, so they have no moment and no heal. A behaviour that is not here does
no harm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from chaos.history.events import COMPLETED, DEAD, Ended, History
from chaos.workload import Behaviour, Job


class TaskFault(NamedTuple):
    """A fault that tasks are.

    `bite` says of some tasks, in a history with leases of so many seconds, which effect they had;
    None if none.
    """

    name: str
    bite: Callable[[Collection[int], History, float], str | None]


def faults_of(job: Job, lease: float) -> list[TaskFault]:
    """The faults that a job is, to workers whose leases have so many seconds."""
    bite = _OF_BEHAVIOUR.get(job.behaviour)
    found = [TaskFault(job.behaviour, bite)] if bite is not None else []
    if job.behaviour != "hog" and job.seconds > lease:
        found.append(TaskFault("outlast-lease", _outlasted))
    return found


def effects_of(
    jobs: Mapping[int, Job], history: History, lease: float
) -> Iterator[tuple[str, set[int], str | None]]:
    """The faults that tasks are, by task id: the name of each, which tasks, and what it did."""
    tasks: defaultdict[TaskFault, set[int]] = defaultdict(set)
    for task, job in jobs.items():
        for fault in faults_of(job, lease):
            tasks[fault].add(task)
    for fault, ids in tasks.items():
        yield fault.name, ids, fault.bite(ids, history, lease)


def _outlasted(tasks: Collection[int], history: History, lease: float) -> str | None:
    """Attempts ran for longer than a lease, and were completed all the same."""
    longest = max(
        (
            ended.finished_at - ended.claimed_at
            for ended, _ in _ends(tasks, history)
            if ended.outcome == "completed"
        ),
        default=0,
    )
    if longest <= lease * 1e6:
        return None
    return f"held a lease of {lease} s for {longest / 1e6:.1f} s by renewing it"


def _failed(tasks: Collection[int], history: History, lease: float) -> str | None:
    failed = sum(ended.outcome == "failed" for ended, _ in _ends(tasks, history))
    return f"failed {failed} times" if failed else None


def _exhausted(tasks: Collection[int], history: History, lease: float) -> str | None:
    dead = sum(
        ended.outcome == "failed" and state == DEAD for ended, state in _ends(tasks, history)
    )
    return f"failed until {dead} were dead letters" if dead else None


def _killed(tasks: Collection[int], history: History, lease: float) -> str | None:
    killed = sum(ended.outcome == "reclaimed" for ended, _ in _ends(tasks, history))
    return f"killed their worker {killed} times" if killed else None


def _hogged(tasks: Collection[int], history: History, lease: float) -> str | None:
    """Leases of hogs were reclaimed from workers that lived to have the effect all the same."""
    effects = {
        (note.task, note.token)
        for note in history.notes
        if note.what == "effect" and note.task in tasks
    }
    starved = sum(
        ended.outcome == "reclaimed" and (ended.task, ended.token) in effects
        for ended, _ in _ends(tasks, history)
    )
    return f"starved the renewal of their own lease {starved} times" if starved else None


def _hostile(tasks: Collection[int], history: History, lease: float) -> str | None:
    """Their errors were stored, and they were done in the end."""
    ends = list(_ends(tasks, history))
    errors = sum(ended.outcome == "failed" and bool(ended.error) for ended, _ in ends)
    done = sum(state == COMPLETED for _, state in ends)
    if not errors or not done:
        return None
    return f"failed with {errors} hostile errors, {done} completed with hostile payloads"


_OF_BEHAVIOUR: dict[Behaviour, Callable[[Collection[int], History, float], str | None]] = {
    "flaky": _failed,
    "failing": _exhausted,
    "poison": _killed,
    "hog": _hogged,
    "hostile": _hostile,
}


def _ends(tasks: Collection[int], history: History) -> Iterator[tuple[Ended, str | None]]:
    """Each end of an attempt of these tasks, with the state that it left its task in."""
    for commit in history.commits:
        ends = [ended for ended in commit.ended if ended.task in tasks]
        if ends:
            rows = {change.task: change.row for change in commit.changes}
            for ended in ends:
                row = rows.get(ended.task)
                yield ended, row.state if row is not None else None
