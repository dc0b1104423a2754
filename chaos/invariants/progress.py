"""Nothing due is left behind: `progress`."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.history.events import PENDING, RUNNING, Fault, History
from chaos.history.lives import Life, claims
from chaos.invariants.causes import Causes
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, spread, starved

_KILLED = "-9"  # how a process ends whose task kills it with SIGKILL
_COMING_UP = 5_000_000  # microseconds that a process takes at most to come up, or to fail to


def progress(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Within the bound after heal, everything due is done and no lease lies expired; none crashed.

    Work that fell due only after the bound may wait. A run that ended before the bound (and the
    machine's lag on top) was over, or a machine that lagged by more than the bound, cannot show
    that what is left would have stayed. A worker that crashes makes no progress by itself, whoever
    starts another; a kill from outside is not its doing.
    """
    phases = history.phases
    due_by = min(phases.healed + phases.progress_bound, phases.ended)
    deadline = phases.healed + phases.allowed_progress
    left, crashed = Found(), Found()
    deaths = _judge_deaths(history, lives, crashed)
    settled = after_heal = 0
    waits: list[int] = []
    for life in lives.values():
        if not life.moves:
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


def _judge_deaths(history: History, lives: Mapping[int, Life], crashed: Found) -> int:
    """Find processes that crashed; return how many ended that the harness did not end."""
    deaths = [fault for fault in history.faults if fault.action == "death"]
    if deaths:
        causes = Causes(history, lives)
        at_work = {note.worker for note in history.notes}
        for death in deaths:
            if death.detail == _KILLED:
                continue
            if death.target not in at_work and _could_not_come_up(death, causes, history):
                continue
            ended = death.detail
            if ended.lstrip("-").isdecimal():
                ended = f"ended with {ended}"
            crashed.add(None, None, f"worker {death.target} crashed: {ended}")
    return len(deaths)


def _could_not_come_up(death: Fault, causes: Causes, history: History) -> bool:
    """Whether a process that did nothing yet was told to end, or ended for want of a database."""
    if death.at >= history.phases.ended or causes.ordered(death.target, death.at):
        return True
    return causes.struck(death.target, death.at - _COMING_UP, death.at - 1)
