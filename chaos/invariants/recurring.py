"""What a schedule promises: `occurrence-once`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from chaos.history.events import (
    CANCELLED,
    COMPLETED,
    DEAD,
    PENDING,
    Fault,
    History,
    Phases,
    Recurrence,
)
from chaos.history.lives import Life, Moved
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span, spread, starved

_SETTLED = frozenset({COMPLETED, DEAD, CANCELLED})
_STILL_RUN = 60_000_000  # how late, in microseconds, `skip` still runs an occurrence


class _Run(NamedTuple):
    """An occurrence that was planned: when that was committed, and the end of its task."""

    task: int
    at: int
    seq: int
    planned: int
    over: Moved | None


def occurrence_once(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Each time on a schedule's grid has one task, settled once; none is left out for nothing.

    A schedule has one task at a time, so what falls due meanwhile is missed, and its policy says
    what becomes of that. But when something is due and no task of the schedule lives, the next must
    be planned within the bound for a reclaim: counted anew from the end of each fault, since any of
    them may have struck whoever was planning. On a machine that lagged by more than the bound such
    a delay is inconclusive.
    """
    found, late = Found(), Found()
    runs: dict[str, list[_Run]] = {name: [] for name in history.rules.schedules}
    for life in lives.values():
        occurrence = _occurrence(life)
        if occurrence is not None:
            schedule, run = occurrence
            runs.setdefault(schedule, []).append(run)
            _judge_end(life, found)
    delays: list[int] = []
    skipped = 0
    faults = _Faults(history.faults)
    for name, planned in runs.items():
        planned.sort(key=lambda run: (run.seq, run.at))
        recurrence = history.rules.schedules.get(name)
        _judge_order(name, planned, found)
        if recurrence is not None:
            _judge_times(name, planned, recurrence, history.phases, found)
            skipped += sum(
                max(0, later.at - run.at) // recurrence.every - (later.at > run.at)
                for run, later in pairwise(planned)
            )
            delays += _judge_delays(name, planned, recurrence, history.phases, faults, late)
    judged = sum(map(len, runs.values()))
    settled = sum(run.over is not None for planned in runs.values() for run in planned)
    reason = None
    if late.count and history.phases.starved_reclaim:
        what = many(late.count, "schedule that was left alone")
        reason = starved(history.phases.lag, history.phases.reclaim_bound, what)
    else:
        found.extend(late)
    return found.verdict(
        "occurrence-once",
        judged,
        f"{many(judged, 'occurrence')} of {many(len(runs), 'schedule')}, each planned once and"
        f" settled once; {skipped} passed over as their policy says",
        "no occurrence of a schedule was planned",
        {
            **spread(delays, "delay"),
            "settled": settled,
            "passed_over": skipped,
            "late": late.count,
        },
        reason,
    )


def _occurrence(life: Life) -> tuple[str, _Run] | None:
    """The occurrence that this task is, by its schedule's name, if it is one."""
    first = life.moves[0] if life.moves else None
    if first is None or first.after is None or first.after.occurrence is None:
        return None
    over = next(
        (move for move in life.moves if move.after is None or move.after.state in _SETTLED), None
    )
    schedule, at = first.after.occurrence
    return schedule, _Run(life.task, at, first.seq, first.at, over)


def _judge_end(life: Life, found: Found) -> None:
    """A task settles once; again only after an operator's requeue of a dead one."""
    settled: str | None = None
    for move in life.moves:
        before, after = move.before, move.after
        if before is None or after is None or before.state == after.state:
            continue
        if before.occurrence != after.occurrence:
            found.add(life.task, move.seq, f"became another occurrence at {clock(move.at)}")
        if before.state == DEAD and after.state == PENDING:
            settled = None
        elif after.state in _SETTLED:
            if settled is not None:
                found.add(
                    life.task,
                    move.seq,
                    f"its occurrence was {settled} already, and {after.state} at {clock(move.at)}",
                )
            settled = after.state


def _judge_order(name: str, planned: Iterable[_Run], found: Found) -> None:
    """One task an occurrence, one after the other."""
    tasks: dict[int, int] = {}
    before: _Run | None = None
    for run in planned:
        told = f"was planned at {clock(run.planned)} as the run of schedule {name} that is due"
        told += f" at {clock(run.at)}"
        if run.at in tasks:
            found.add(run.task, run.seq, f"{told}, which task {tasks[run.at]} is already")
            continue
        tasks[run.at] = run.task
        if run.planned < run.at:
            found.add(run.task, run.seq, f"{told}, {span(run.at - run.planned)} before that")
        if before is not None and run.at < before.at:
            found.add(
                run.task, run.seq, f"{told}, after task {before.task}, due at {clock(before.at)}"
            )
        if before is not None and (before.over is None or before.over.seq > run.seq):
            found.add(run.task, run.seq, f"{told}, while task {before.task} of it still lived")
        before = run


def _judge_times(
    name: str, planned: Iterable[_Run], recurrence: Recurrence, phases: Phases, found: Found
) -> None:
    """Each occurrence lies on the grid, and is the one that the policy wanted at that moment."""
    every, missed = recurrence
    before: _Run | None = None
    for run in planned:
        told = f"is the run of schedule {name} that is due at {clock(run.at)}"
        if run.at % every:
            found.add(run.task, run.seq, f"{told}, which is no multiple of {span(every)}")
        elif missed != "all":
            # What the statement took for now is a little before its commit, by the machine's doing.
            age = run.planned - run.at - phases.allowed_reclaim
            most = min(every, _STILL_RUN) if missed == "skip" else every
            if age >= most:
                found.add(
                    run.task,
                    run.seq,
                    f"{told} and was planned at {clock(run.planned)}, but what is missed is to be"
                    f" passed over ({missed}) once a later one is due"
                    + (" or a minute is over" if missed == "skip" else ""),
                )
        elif before is not None and run.at > before.at + every:
            found.add(
                run.task,
                run.seq,
                f"{told}, and the run before it is task {before.task}, due at {clock(before.at)}:"
                f" the one due at {clock(before.at + every)} was left out, and all are wanted",
            )
        before = run


def _judge_delays(
    name: str,
    planned: list[_Run],
    recurrence: Recurrence,
    phases: Phases,
    faults: _Faults,
    late: Found,
) -> Iterable[int]:
    """How long each occurrence after the first was planned after it could be, in microseconds."""
    every, _ = recurrence
    allowed = phases.allowed_reclaim
    delays = []
    if not planned and faults.quiet(phases.began + every, phases.ended) > allowed:
        told = f"schedule {name} was never planned until {clock(phases.ended)}"
        late.add(None, None, f"{told}, {span(allowed)} are allowed")
    for index, run in enumerate(planned):
        if run.over is None or run.over.after is None or run.over.after.state == DEAD:
            continue  # a schedule may stop at a dead run
        since = max(run.over.at, run.at + every)
        later = planned[index + 1] if index + 1 < len(planned) else None
        until = phases.ended if later is None else later.planned
        if later is not None:
            delays.append(max(0, until - since))
        quiet = faults.quiet(since, until)
        if quiet <= allowed:
            continue
        what = f"task {later.task} was planned" if later else "the run ended with nothing planned"
        late.add(
            run.task,
            later.seq if later else run.over.seq,
            f"the run of schedule {name} that is due at {clock(run.at + every)} was left out for"
            f" nothing: task {run.task} before it was over at {clock(run.over.at)}, and {what} at"
            f" {clock(until)}: {span(quiet)} without a fault, {span(allowed)} are allowed",
        )
    return delays


class _Faults:
    """When faults were in place."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        """A fault without a heal was over at once, as is a death."""
        begun: dict[tuple[str, str], int] = {}
        stretches = []
        for at, name, action, target, *_ in sorted(faults, key=lambda fault: fault.at):
            if action == "death" or (action == "inject" and not target.endswith(" tasks")):
                stretches.append((at, at))
                begun[name, target] = at
            elif action == "heal" and (name, target) in begun:
                stretches.append((begun[name, target], at))
        self._merged: list[tuple[int, int]] = []
        for begin, end in sorted(stretches):
            if self._merged and begin <= self._merged[-1][1]:
                begin, last = self._merged.pop()
                end = max(end, last)
            self._merged.append((begin, end))
        self._ends = [end for _, end in self._merged]

    def quiet(self, begin: int, end: int) -> int:
        """The longest stretch between these times without a fault; negative if they are no time."""
        longest = -1
        for index in range(bisect_right(self._ends, begin), len(self._merged)):
            since, until = self._merged[index]
            if since >= end:
                break
            longest = max(longest, since - begin)
            begin = until
        return max(longest, end - begin)
