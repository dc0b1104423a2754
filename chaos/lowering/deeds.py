"""Who did what to a task, told from its life in a history, in the words of a script's actors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chaos.explore.schedule import CRASH, LOST_REPLY, STEP
from chaos.history.events import (
    CANCELLED,
    DEAD,
    DISCARDED,
    PENDING,
    RUNNING,
    Ended,
    History,
    Row,
    worker_of,
)
from chaos.history.lives import Life, Moved

REAPER, OPERATOR, CLIENT = "a reaper", "an operator", "client"
_KILLS = frozenset({"kill", "death"})
_ENDS = {
    "completed": "complete",
    "failed": "fail",
    "released": "release",
    "snoozed": "snooze",
}


class Deed(NamedTuple):
    """Something that somebody did to a task.

    seq: the commit; half-way between two commits for what left none.
    who: the owner of a lease, or one of those above; a client with a number.
    word: of `chaos.lowering.actors`; empty for what belongs to the word before.
    of: whose lease it took back or prolonged.
    fault: what happened to its actor in its last step.
    ripe: whether the lease was over that it took back, or the task due that it claimed.
    lease: how long the lease is that it gave, in microseconds.
    """

    seq: float
    at: int
    who: str
    word: str
    task: int
    of: str = ""
    fault: str = STEP
    ripe: bool = True
    lease: int = 0


def deeds(history: History, life: Life, upto: int, created_by: str = "") -> list[Deed]:
    """What was done to a task up to a commit, in order.

    `created_by` is the word for how the task came to be, if that is of interest.
    """
    told = [deed for deed in _told(life, created_by) if deed.seq <= upto]
    told = _unheard_claims(history, life, told)
    told += [deed for deed in _deaths(history, told) if deed.seq <= upto]
    return sorted(told, key=lambda deed: deed.seq)


def _told(life: Life, created_by: str) -> Iterator[Deed]:
    logged: dict[int, Ended] = {}
    for commit, ended in life.ended:
        logged.setdefault(commit.seq, ended)
    owners = {
        move.after.token: move.after.owner or ""
        for move in life.moves
        if move.is_claim and move.after is not None
    }
    effects: dict[str, int] = {}  # by whom, and in which commit first
    for commit, effect in life.effects:
        effects.setdefault(owners.get(effect.token, ""), commit.seq)
    # Who failed what it had completed had not heard that it had: the reply was lost.
    unheard = {
        ended.owner
        for commit, ended in life.ended
        if ended.outcome == "failed" and commit.seq > effects.get(ended.owner, commit.seq)
    }
    for commit, effect in life.effects:
        owner = owners.get(effect.token, "")
        if effects[owner] == commit.seq:
            fault = LOST_REPLY if owner in unheard else STEP
            yield Deed(commit.seq, commit.at, owner, "transact", life.task, fault=fault)
    for move in life.moves:
        if move.before is None:
            if created_by:
                yield Deed(move.seq, move.at, f"{CLIENT} {move.seq}", created_by, life.task)
        elif move.after is not None:
            told = _deed(life, move, move.before, move.after, move.ended or logged.get(move.seq))
            if told is None or (told.who in effects and told.word == "complete"):
                continue  # a completion goes with the effect
            if told.who in unheard and told.word == "fail":
                told = told._replace(word="")  # and so does this
            yield told


def _deed(life: Life, move: Moved, before: Row, after: Row, ended: Ended | None) -> Deed | None:
    """What one change of a standing task is, if it is anything that somebody does."""

    deed = Deed(move.seq, move.at, before.owner or "", "", life.task)
    if move.is_claim:
        given = after.claimed_at or move.at
        lease = (after.expires or given) - given
        return deed._replace(
            who=after.owner or "", word="claim", ripe=before.due <= given, lease=lease
        )
    if ended is not None and ended.outcome == "reclaimed":
        over = before.expires is not None and before.expires < ended.finished_at
        return deed._replace(who=REAPER, word="reclaim", of=before.owner or "", ripe=over)
    if ended is not None and ended.outcome in _ENDS:
        return deed._replace(who=ended.owner, word=_ENDS[ended.outcome])
    if after.state == CANCELLED:
        return deed._replace(who=OPERATOR, word="cancel")
    if (before.state, after.state) == (DEAD, PENDING):
        return deed._replace(who=OPERATOR, word="requeue")
    if after.state == DISCARDED:
        return deed._replace(who=OPERATOR, word="discard")
    if before.state == after.state == RUNNING and before.expires != after.expires:
        return deed._replace(who=renewer(life, after), word="renew", of=after.owner or "")
    if before.key is not None and before.state == after.state:
        return deed._replace(who=f"{CLIENT} {move.seq}", word="ask")
    return None


def renewer(life: Life, row: Row) -> str:
    """Who set this expiry: whoever noted so, or else the holder, who may not have lived to."""
    for note in life.notes:
        if note.what == "renewed" and int(note.detail) == row.expires:
            return note.owner
    return row.owner or ""


def _unheard_claims(history: History, life: Life, told: list[Deed]) -> list[Deed]:
    """With the claims whose reply never arrived as what they are: the release goes with them."""
    heard = {note.owner for note in life.notes if note.what == "claimed"}
    silent = {deed.who for deed in told if deed.word == "release"} - heard
    if silent:
        lossy = {note.worker for note in history.notes if note.what == "reply-lost"}
        silent = {owner for owner in silent if worker_of(owner) in lossy}
    return [
        deed._replace(fault=LOST_REPLY)
        if deed.who in silent and deed.word == "claim"
        else deed._replace(word="")
        if deed.who in silent and deed.word == "release"
        else deed
        for deed in told
    ]


def _deaths(history: History, told: Iterable[Deed]) -> Iterator[Deed]:
    """The ends of workers that held the task: each was about to complete it."""
    holders: dict[str, Deed] = {}
    for deed in told:
        if deed.word == "claim":
            holders[deed.who] = deed
        elif deed.word in {"transact", *_ENDS.values()}:
            holders.pop(deed.who, None)
    times = [commit.at for commit in history.commits]
    for owner, claim in holders.items():
        for fault in history.faults:
            if (
                fault.action in ("inject", "death")
                and fault.name in _KILLS
                and worker_of(owner) in fault.target.split()
                and fault.at >= claim.at
            ):
                before = bisect_right(times, fault.at) - 1
                seq = history.commits[before].seq + 0.5
                yield Deed(seq, fault.at, owner, "complete", claim.task, fault=CRASH)
                break
