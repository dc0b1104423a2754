"""Who wrote: `fenced`.

The write-ahead log does not say who changed a row, so the run-log row in the same commit is read
for the writer's token, and the journals for renewals, which write no run-log row.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaos.history.events import Ended, History, Row
from chaos.history.lives import Life, Moved
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many

BY_HOLDER = frozenset({"completed", "failed", "released", "snoozed"})


def fenced(history: History, lives: Mapping[int, Life]) -> Verdict:
    """No write by a former holder changed a row: complete, fail, release, snooze, renew.

    That is only shown if a former holder was alive to try: a history in which no write was refused
    and no attempt outlived its lease is inconclusive.
    """
    found = Found()
    by_holder = refused = lost = zombies = 0
    for life in lives.values():
        if life.moves or life.ended:
            by_holder += _judge_endings(life, found)
        if not life.notes:
            continue
        renewed = False
        for note in life.notes:
            what = note.what
            if what == "renewed":
                renewed = True
            elif what == "refused":
                refused += 1
            elif what == "lease-lost":
                lost += 1
        if renewed:
            _judge_renewals(life, found)
        zombies += _zombies(life)
    return found.verdict(
        "fenced",
        by_holder + refused,
        f"{many(by_holder, 'attempt')} ended by the holder; {many(refused, 'late write')} refused",
        "no attempt was ended by its holder and no late write was refused",
        {"by_holder": by_holder, "refused": refused, "lease_lost": lost, "zombies": zombies},
        None
        if refused or zombies
        else "no former holder tried to write: no write was refused, no attempt outlived its lease",
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
    taken = {
        (ended.token, ended.owner): commit.at
        for commit, ended in life.ended
        if ended.outcome not in BY_HOLDER
    }
    if not taken:
        return 0
    return sum(
        note.what == "finished" and note.at > taken.get((note.token, note.owner), note.at)
        for note in life.notes
    )
