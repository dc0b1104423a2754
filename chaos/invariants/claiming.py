"""What a claim may take, and when: `claim-bounded`, `not-early`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos.history.events import History
from chaos.history.lives import Life, claims
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span


@dataclass(slots=True)
class _Call:
    """One call of claim: every lease with its owner, since an owner is new in each call."""

    seq: int
    task: int  # the last one counted
    rows: int


def claim_bounded(history: History, lives: Mapping[int, Life]) -> Verdict:
    """A claim takes at most its limit, no row twice, and all of it in one commit."""
    limit = history.rules.claim_limit
    found = Found()
    calls: dict[str, _Call] = {}
    for life in lives.values():
        for move in claims(life):
            owner = move.after.owner if move.after is not None else None
            if owner is None:
                continue  # no call to count it for: `legal-steps` refuses such a row
            call = calls.get(owner)
            if call is None:
                calls[owner] = _Call(move.seq, life.task, 1)
                continue
            call.rows += 1
            if call.task == life.task:  # lives come one by one: the last task is the only suspect
                found.add(life.task, move.seq, f"the claim {owner} took it twice")
            elif call.seq != move.seq:
                found.add(
                    life.task,
                    move.seq,
                    f"the claim {owner} took it in commit {move.seq},"
                    f" and task {call.task} in commit {call.seq}",
                )
            elif call.rows == limit + 1:
                found.add(
                    life.task,
                    move.seq,
                    f"the claim {owner} was limited to {many(limit, 'row')}, and this was one more",
                )
            call.task = life.task
    largest = max((call.rows for call in calls.values()), default=0)
    return found.verdict(
        "claim-bounded",
        len(calls),
        f"{many(len(calls), 'claim')} of at most {many(largest, 'row')} each; the limit is {limit}",
        "no claim took a row",
        {"largest_claim": largest, "rows": sum(call.rows for call in calls.values())},
    )


def not_early(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Nothing is claimed before its due time, and that is no earlier than what its client ordered.

    Claim and due time are of the database's clock.
    """
    found = Found()
    judged = ordered = 0
    for life in lives.values():
        for move in claims(life):
            before, after = move.before, move.after
            if before is None or after is None or after.claimed_at is None:
                continue
            judged += 1
            if after.claimed_at < before.due:
                found.add(
                    life.task,
                    move.seq,
                    f"{after.owner} claimed it at {clock(after.claimed_at)},"
                    f" {span(before.due - after.claimed_at)} before it was due"
                    f" at {clock(before.due)}",
                )
        enqueue = life.moves[0] if life.moves else None
        if enqueue is None or enqueue.after is None:
            continue
        for note in life.notes:
            if note.what == "acknowledged" and note.detail:
                ordered += 1
                if enqueue.after.due < int(note.detail):
                    found.add(
                        life.task,
                        enqueue.seq,
                        f"was ordered for {clock(int(note.detail))}"
                        f" but was enqueued as due at {clock(enqueue.after.due)}",
                    )
                break
    return found.verdict(
        "not-early",
        judged,
        f"{many(judged, 'claim')}, none before its due time;"
        f" {many(ordered, 'order')} held to the client's word",
        "no task was claimed at a time that is known",
        {"orders": ordered},
    )
