"""Nothing due is left behind: `progress`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from chaos.history.events import PENDING, RUNNING, Fault, History
from chaos.history.lives import Life, claims
from chaos.invariants.causes import Causes, heard_of
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, spread, starved

_KILLED = "-9"  # how a process ends whose task kills it with SIGKILL
_IN_PLACE = 300_000  # microseconds that it takes at most to put a lock in place
_COMING_UP = 5_000_000  # microseconds that a process takes at most to come up, or to fail to


def progress(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Within the bound after heal, everything due is done and no lease lies expired; none crashed.

    Work that fell due only after the bound may wait, as may what was enqueued after the run's end.
    A run that ended before the bound (and the machine's lag on top) was over, or a machine that
    lagged by more than the bound, cannot show that what is left would have stayed. While a session
    holds tasks locked, those that it cannot hold are claimed all the same. A worker that
    crashes makes no progress by itself, whoever starts another; a kill from outside is not its
    doing.
    """
    phases = history.phases
    due_by = min(phases.healed + phases.progress_bound, phases.ended)
    deadline = phases.healed + phases.allowed_progress
    left, crashed = Found(), Found()
    deaths = _judge_deaths(history, lives, crashed)
    _judge_row_locks(history, lives, crashed)
    settled = after_heal = 0
    waits: list[int] = []
    for life in lives.values():
        if not life.moves or life.moves[0].at > phases.ended:
            continue
        waits.extend(
            move.after.claimed_at - move.before.due
            for move in claims(life)
            if move.before is not None
            and move.after is not None
            and move.after.claimed_at is not None
        )
        row, last = life.last, life.moves[-1]
        if row is not None and row.state == PENDING:
            if row.due < due_by:
                left.add(
                    life.task,
                    last.seq,
                    f"was due at {clock(row.due)} and is still pending at {clock(phases.ended)};"
                    f" all was healed at {clock(phases.healed)}",
                )
        elif row is not None and row.state == RUNNING:
            if row.expires is not None and row.expires < due_by:
                left.add(
                    life.task,
                    last.seq,
                    f"is still running at {clock(phases.ended)} on the lease of {row.owner}, which"
                    f" expired at {clock(row.expires)}; all was healed at {clock(phases.healed)}",
                )
        else:
            settled += 1
            after_heal += last.at > phases.healed
    reason = None
    what = f"{many(left.count, 'task')} left over"
    if left.count and phases.starved_progress:
        reason = starved(phases.lag, phases.progress_bound, what)
    elif left.count and phases.ended < deadline:
        reason = (
            f"the run ended at {clock(phases.ended)}, before the bound at {clock(deadline)}:"
            f" nothing follows from {what}"
        )
    found = crashed
    if reason is None:
        found.extend(left)
    return found.verdict(
        "progress",
        settled,
        f"{many(settled, 'task')} settled, {after_heal} of them after heal; nothing due is left",
        "no task was settled",
        {
            **spread(waits, "wait"),
            "settled_after_heal": after_heal,
            "left": left.count,
            "deaths": deaths,
        },
        reason,
    )


def _judge_row_locks(history: History, lives: Mapping[int, Life], found: Found) -> None:
    """Find sessions that held some tasks locked, and with them all others up.

    What fell due only after the session had its locks is not among what it holds. If that waits
    from the first half of the time to its end, and nothing is claimed in the second half, workers
    stand in line behind a locked task. (Who locks rows in a scenario must not keep all workers from
    claiming by another fault as well.)
    """
    slack = _IN_PLACE + history.phases.lag
    began: list[int] = []
    locks = [fault for fault in history.faults if fault.name == "row-lock"]
    # One look at all lives for all locks; at each life once more only where nothing was claimed.
    claimed = sorted(move.at for life in lives.values() for move in claims(life)) if locks else []
    for fault in sorted(locks, key=lambda fault: fault.at):
        if fault.action == "inject":
            began.append(fault.at)
        elif fault.action == "heal" and began:
            since, until = began.pop(0), fault.at
            half = (since + until) // 2
            if bisect_left(claimed, half) < bisect_left(claimed, until):
                continue
            waited = [
                life.task for life in lives.values() if _waited(life, since + slack, half, until)
            ]
            if waited:
                found.add(
                    waited[0],
                    None,
                    f"was due and nothing was claimed from {clock(half)} to {clock(until)}, while"
                    f" a session held others locked: {many(len(waited), 'task')} waited for it",
                )


def _waited(life: Life, since: int, half: int, until: int) -> bool:
    """Whether this task fell due between `since` and `half`, and nothing was done `until` then."""
    row = life.moves[0].after if life.moves else None
    if row is None:
        return False
    undone = len(life.moves) == 1 or life.moves[1].at >= until
    return undone and since <= max(row.due, life.moves[0].at) < half


def _judge_deaths(history: History, lives: Mapping[int, Life], crashed: Found) -> int:
    """Find processes that crashed; return how many ended that the harness did not end."""
    deaths = [fault for fault in history.faults if fault.action == "death"]
    if deaths:
        causes = Causes(history, lives)
        at_work = heard_of(history)
        for death in deaths:
            if death.detail == _KILLED:
                continue
            if death.target not in at_work and _could_not_come_up(death, causes, history):
                continue
            ended = death.detail
            if ended.lstrip("-").isdecimal():
                ended = f"ended with {ended}"
            elif causes.hogged(death.target, death.at):
                # A handler that keeps the interpreter to itself keeps it from being told, too; it
                # needs its time of the processor, and how long that takes is the machine's doing.
                continue
            crashed.add(None, None, f"worker {death.target} crashed: {ended}")
    return len(deaths)


def _could_not_come_up(death: Fault, causes: Causes, history: History) -> bool:
    """Whether a process that did nothing yet was told to end, or ended for want of a database."""
    if death.at >= history.phases.ended or causes.ordered(death.target, death.at):
        return True
    return causes.struck(death.target, death.at - _COMING_UP, death.at - 1)
