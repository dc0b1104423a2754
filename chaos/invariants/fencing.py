"""Who wrote: `fenced`.

The write-ahead log does not say who changed a row, so the run-log row in the same commit is read
for the writer's token, and the journals for renewals, which write no run-log row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chaos.history.events import Ended, History, Row
from chaos.history.lives import Life, Moved, claims
from chaos.history.lost import lost
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many

BY_HOLDER = frozenset({"completed", "failed", "released", "snoozed"})
# What a note of a refusal may say, and how the evidence calls such a write.
_WRITES = {
    "completed": "completions",
    "complete": "completions_in_a_transaction",
    "failed": "failures",
    "released": "releases",
    "snoozed": "snoozes",
    "renew": "renewals",
}


def fenced(history: History, lives: Mapping[int, Life]) -> Verdict:
    """No write by a former holder changed a row: complete, fail, release, snooze, renew.

    That is only shown if a former holder was alive to try: a history in which no write was refused
    and no attempt outlived its lease is inconclusive.

    A failover that lost claims lets their tokens be issued a second time; those are counted. Who
    held such a claim is a former holder as any other: the owner tells the two apart.
    """
    found = Found()
    by_holder = told_lost = zombies = 0
    writes = Counter[str]()  # that were refused
    for life in lives.values():
        if life.moves or life.ended:
            by_holder += _judge_endings(life, found)
        if not life.notes:
            continue
        noted = [note.what for note in life.notes]
        if "refused" in noted:
            writes.update(note.detail for note in life.notes if note.what == "refused")
        told_lost += noted.count("lease-lost")
        if "renewed" in noted:
            _judge_renewals(life, found)
        zombies += _zombies(life)
    refused = writes.total()
    return found.verdict(
        "fenced",
        by_holder + refused,
        f"{many(by_holder, 'attempt')} ended by the holder; {many(refused, 'late write')} refused",
        "no attempt was ended by its holder and no late write was refused",
        {
            "by_holder": by_holder,
            "refused": refused,
            **{f"refused_{name}": writes[word] for word, name in _WRITES.items() if word in writes},
            "lease_lost": told_lost,
            "zombies": zombies,
            **({"tokens_issued_twice": _issued_twice(history, lives)} if history.failovers else {}),
        },
        None
        if refused or zombies
        else "no former holder tried to write: no write was refused, no attempt outlived its lease",
    )


def _issued_twice(history: History, lives: Mapping[int, Life]) -> int:
    """How many tokens of lost claims were given to other claims of the same task."""
    gone = lost(history)
    tokens = {(task, token) for task, token, _ in gone.claims if task not in gone.tasks}
    return sum(
        move.after is not None and (task, move.after.token) in tokens
        for task in {task for task, _ in tokens}
        if task in lives
        for move in claims(lives[task])
    )


def _judge_endings(life: Life, found: Found) -> int:
    """Judge each end of a lease with the run-log row beside it; return how many holders wrote."""
    beside = set()  # commit and token of the run-log rows that stand beside the end of a lease
    for move in life.moves:
        held, ended = move.before, move.ended
        if ended is not None:
            assert held is not None
            beside.add((move.seq, ended.token))
            if ended.outcome in BY_HOLDER and (ended.token, ended.owner) != (
                held.token,
                held.owner,
            ):
                _tell_not_holder(life, move.seq, ended, held, found)
        # A claim over a running row names its writer: the new owner.
        elif move.ends_lease and not move.is_claim:
            _tell_unlogged(life, move, found)
    by_holder = 0
    for commit, ended in life.ended:
        by_holder += ended.outcome in BY_HOLDER
        if (commit.seq, ended.token) in beside:
            beside.remove((commit.seq, ended.token))  # a second such row stands beside nothing
        else:
            _tell_changed_nothing(life, commit.seq, ended, found)
    return by_holder


def _tell_unlogged(life: Life, move: Moved, found: Found) -> None:
    held, after = move.before, move.after
    assert held is not None
    became = "was deleted" if after is None else f"became {after.state}"
    found.add(
        life.task,
        move.seq,
        f"it {became} at {clock(move.at)} while {held.owner} held token {held.token},"
        " and no run-log row says who wrote that",
    )


def _tell_changed_nothing(life: Life, seq: int, ended: Ended, found: Found) -> None:
    found.add(
        life.task,
        seq,
        f"{ended.owner} (token {ended.token}) logged {ended.outcome} at"
        f" {clock(ended.finished_at)}, but that commit ended no lease of it",
    )


def _tell_not_holder(life: Life, seq: int, ended: Ended, held: Row, found: Found) -> None:
    found.add(
        life.task,
        seq,
        f"{ended.owner} wrote {ended.outcome} with token {ended.token} at"
        f" {clock(ended.finished_at)}, but {held.owner} held the lease with token {held.token}",
    )


def _judge_renewals(life: Life, found: Found) -> None:
    """A renewal that its sender believes in must have prolonged its sender's own lease."""
    prolonged: dict[int, list[Row]] = {}
    for move in life.moves:
        row = move.after
        if row is not None and row.expires is not None:
            prolonged.setdefault(row.expires, []).append(row)
    for note in life.notes:
        if note.what != "renewed":
            continue
        # An expiry that no commit shows is a reply whose commit was lost: it changed nothing.
        rows = prolonged.get(int(note.detail), ())
        if rows and all((row.token, row.owner) != (note.token, note.owner) for row in rows):
            found.add(
                life.task,
                None,
                f"{note.owner} renewed with token {note.token} until {clock(int(note.detail))},"
                f" but that prolonged the lease of {rows[0].owner} with token {rows[0].token}",
            )


def _zombies(life: Life) -> int:
    """How many attempts were left by their handler after the lease had been taken away.

    Commit time and note time are both the machine's clock.
    """
    if all(ended.outcome in BY_HOLDER for _, ended in life.ended):
        return 0
    taken = {
        (ended.token, ended.owner): commit.at
        for commit, ended in life.ended
        if ended.outcome not in BY_HOLDER
    }
    return sum(
        note.what == "finished" and note.at > taken.get((note.token, note.owner), note.at)
        for note in life.notes
    )
