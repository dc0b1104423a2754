"""What a failover may undo, and what that explains.

A primary with an asynchronous standby tells of commits that the standby does not have yet: those
may be lost, and are counted. With a synchronous standby it tells nobody before the standby has them
as well: whatever anybody was told of must be there.
"""

from __future__ import annotations

from chaos.history.events import History
from chaos.history.lost import Lost, told_of
from chaos.invariants.words import Found, clock

_TOLD = {
    "acknowledged": "its enqueue was acknowledged to {worker}",
    "claimed": "{owner} was told that it had claimed it with token {token}",
    "renewed": "{owner} was told that its lease with token {token} was renewed",
    "reclaimed": "{worker} was told that it had taken it back from {owner}, token {token}",
    "finished": "{owner} was told that its completion with token {token} was committed",
    "settled": "{owner} was told that the end of its attempt with token {token} was written",
}


def judge_lost(history: History, lost: Lost, found: Found) -> None:
    """Find what somebody was told of and a failover to a synchronous standby undid."""
    for failover in history.failovers:
        if not failover.synchronous:
            continue
        for note, commit in told_of(failover, lost, history.notes):
            told = _TOLD[note.what].format(worker=note.worker, owner=note.owner, token=note.token)
            found.add(
                note.task,
                commit.seq,
                f"{told} at {clock(note.at)}, and the failover to a synchronous standby, done at"
                f" {clock(failover.opened)}, undid that",
            )


def allowed_losses(history: History, lost: Lost) -> frozenset[tuple[int, int, str]]:
    """The attempts whose claim or end was lost with an asynchronous standby: their tasks rightly
    run again."""
    if not history.failovers or any(failover.synchronous for failover in history.failovers):
        return frozenset()
    return lost.claims.union(lost.ends)
