"""Nothing due is left behind: `progress`."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.history.events import PENDING, RUNNING, History
from chaos.history.lives import Life, claims
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, span, spread


def progress(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Within the bound after heal, everything due is done and no lease lies expired.

    Work that fell due only after the bound may wait. A run that ended before the bound was over, or
    a machine that lagged by more than the bound, cannot show that what is left would have stayed.
    """
    phases = history.phases
    deadline = phases.healed + phases.progress_bound
    left = Found()
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
            if row.due < min(deadline, phases.ended):
                left.add(
                    life.task,
                    last.seq,
                    f"was due at {clock(row.due)} and is still pending at {clock(phases.ended)};"
                    f" all was healed at {clock(phases.healed)}",
                )
        elif row is not None and row.state == RUNNING:
            if row.expires is not None and row.expires < min(deadline, phases.ended):
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
    if left.count and phases.lag > phases.progress_bound:
        reason = (
            f"the machine lagged {span(phases.lag)}, more than the bound of"
            f" {span(phases.progress_bound)}: {left.count} tasks left over prove nothing"
        )
    elif left.count and phases.ended < deadline:
        reason = (
            f"the run ended at {clock(phases.ended)}, before the bound at {clock(deadline)}:"
            f" {left.count} tasks left over prove nothing"
        )
    return (left if reason is None else Found()).verdict(
        "progress",
        settled,
        f"{settled} tasks are settled, {after_heal} of them after heal; nothing due is left",
        {**spread(waits, "wait"), "settled_after_heal": after_heal, "left": left.count},
        reason,
    )
