"""The attempts of a history, one by one: who held which lease, until when, and how it ended."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from chaos.history.events import RUNNING, History, Row, worker_of
from chaos.history.lives import Life, Moved
from chaos.invariants.fencing import BY_HOLDER
from chaos.report.statements import statement
from chaos.report.text import plain

# How a lease can end beyond what a run log says: `taken` (by a write of somebody who had no right
# to it, or of nobody who said so), `undone` (its claim was lost in a failover), `held` (not ended).
# `other` is a word that no run log of ours has.
TAKEN, UNDONE, HELD, OTHER = "taken", "undone", "held", "other"
OUTCOMES = (
    *("completed", "failed", "reclaimed", "snoozed", "released", "cancelled"),
    *(TAKEN, UNDONE, HELD, OTHER),
)


class Attempt(NamedTuple):
    """One lease of one task. Times are microseconds since the epoch.

    due: since when the task waited. until: the lease's expiry as last renewed. over: when a commit
    ended the lease, by the database's clock; committed: when that commit was, by the server's; both
    None if none did. started, left: when the handler was entered and left, None where no journal
    tells. effect: when it had its effect outside the database, if it had one. stopped: when the
    worker's process was killed or ended in the middle of it. headroom: how close the lease came to
    running out before it was renewed or ended by its holder. seq: the commit that gave it.
    """

    task: int
    kind: str
    worker: str
    owner: str
    token: int
    number: int
    most: int
    seq: int
    due: int
    claimed: int
    until: int
    renewals: int = 0
    over: int | None = None
    committed: int | None = None
    outcome: str = HELD
    says: str = ""
    error: str = ""
    headroom: int | None = None
    started: int | None = None
    left: int | None = None
    effect: int | None = None
    stopped: int | None = None

    @property
    def lease_end(self) -> int:
        """Until when the lease was valid: its expiry, or its end by a commit if that came first."""
        return self.until if self.over is None else max(self.claimed, min(self.until, self.over))

    @property
    def run_end(self) -> int | None:
        """Until when its handler certainly ran on a valid lease; None if it was never entered."""
        if self.started is None:
            return None
        ends = (self.lease_end, self.left, self.stopped)
        return max(self.started, min(end for end in ends if end is not None))

    @property
    def zombie(self) -> tuple[int, int] | None:
        """From when to when its handler ran on after the lease had run out or was taken away."""
        if self.started is None or self.left is None:
            return None
        # The note of leaving is written after the commit of who ended the lease by right.
        begin = self.until if self.outcome in BY_HOLDER else self.lease_end
        begin = max(begin, self.started)
        return (begin, self.left) if self.left > begin else None

    @property
    def end(self) -> int:
        """The last moment of which anything is drawn."""
        return max(self.lease_end, self.left or 0, self.run_end or 0)


def attempts(history: History, lives: Mapping[int, Life]) -> list[Attempt]:
    """Every attempt, in the order of the claims' commits; those lost in failovers come last."""
    system = str(history.about.get("system", ""))
    found = [attempt for life in lives.values() for attempt in _of_life(life, system)]
    found.sort(key=lambda one: (one.seq, one.task))
    known = {(one.task, one.token, one.owner) for one in found}
    found += _undone(history, known)
    return _with_notes(found, history)


def _of_life(life: Life, system: str) -> Iterator[Attempt]:
    transactions = {commit.seq for commit, _ in life.effects}
    open_: Attempt | None = None
    for move in life.moves:
        if move.ends_lease and open_ is not None:
            yield _ended(open_, move, system, move.seq in transactions)
            open_ = None
        if move.is_claim:
            assert move.after is not None
            open_ = _given(life.task, move)
        elif open_ is not None and move.after is not None and move.after.expires is not None:
            headroom = _least(open_.headroom, open_.until - move.at)
            open_ = open_._replace(
                until=move.after.expires, renewals=open_.renewals + 1, headroom=headroom
            )
    if open_ is not None:
        yield open_._replace(says="not ended by the end of the run")


def _given(task: int, move: Moved) -> Attempt:
    row, before = move.after, move.before
    assert row is not None
    owner = plain(row.owner)
    claimed = move.at if row.claimed_at is None else row.claimed_at
    return Attempt(
        task=task,
        kind=plain(row.kind, 80),
        worker=worker_of(owner),
        owner=owner,
        token=row.token,
        number=row.attempts,
        most=row.max_attempts,
        seq=move.seq,
        due=row.due if before is None else before.due,
        claimed=claimed,
        until=claimed if row.expires is None else row.expires,
    )


def _ended(one: Attempt, move: Moved, system: str, transactional: bool) -> Attempt:
    ended = move.ended
    if ended is None:
        says = "its row was changed while it held the lease, and no run-log row says by whom"
        return one._replace(over=move.at, committed=move.at, outcome=TAKEN, says=says)
    by = statement(system, ended.outcome, transactional=transactional)
    behind = f" ({by})" if by else ""
    by_holder = (ended.token, plain(ended.owner)) == (one.token, one.owner)
    one = one._replace(over=ended.finished_at, committed=move.at, error=plain(ended.error or ""))
    if ended.outcome in BY_HOLDER:
        if not by_holder:
            says = f"another attempt, which had no right to, wrote {ended.outcome}{behind}"
            return one._replace(outcome=TAKEN, says=says)
        headroom = _least(one.headroom, one.until - ended.finished_at)
        says = f"its holder wrote {ended.outcome}{behind}"
        return one._replace(outcome=ended.outcome, says=says, headroom=headroom)
    says = {
        "reclaimed": f"its lease ran out and another worker took the task back{behind}",
        "cancelled": f"somebody cancelled the task{behind}",
    }.get(ended.outcome, plain(ended.outcome, 40))
    outcome = ended.outcome if ended.outcome in OUTCOMES else OTHER
    return one._replace(outcome=outcome, says=says)


def _undone(history: History, known: set[tuple[int, int, str]]) -> Iterator[Attempt]:
    """The attempts of which only a primary knew that died before its standby did."""
    for failover in history.failovers:
        rows: dict[tuple[int, int, str], Attempt] = {}
        before: dict[int, Row | None] = {}
        for commit in failover.lost:
            for task, row in commit.changes:
                held = before.get(task)
                if held is not None and held.state == RUNNING:
                    key = (task, held.token, plain(held.owner))
                    if key in rows:  # renewed, or over until the failover undid that, too
                        still = row is not None and (row.state, row.token) == (RUNNING, held.token)
                        rows[key] = (
                            rows[key]._replace(until=(row and row.expires) or rows[key].until)
                            if still
                            else rows[key]._replace(over=commit.at)
                        )
                if row is not None and row.state == RUNNING and row.owner is not None:
                    key = (task, row.token, plain(row.owner))
                    if key not in rows and key not in known:
                        rows[key] = _given(
                            task, Moved(commit.seq, commit.at, held, row, None, True, False)
                        )
                before[task] = row
        for one in rows.values():
            over = failover.died if one.over is None else one.over
            says = "its claim was lost in a failover: it happened, and then it had not"
            yield one._replace(over=over, outcome=UNDONE, says=says)


def _with_notes(found: list[Attempt], history: History) -> list[Attempt]:
    started: dict[tuple[int, int, str], int] = {}
    left: dict[tuple[int, int, str], int] = {}
    effects: dict[tuple[int, int, str], int] = {}
    for note in history.notes:
        if note.what == "started":
            started.setdefault((note.task, note.token, plain(note.owner)), note.at)
        elif note.what == "finished":
            left[note.task, note.token, plain(note.owner)] = note.at
        elif note.what == "effect":
            effects.setdefault((note.task, note.token, plain(note.owner)), note.at)
    stops: defaultdict[str, list[int]] = defaultdict(list)
    for fault in sorted(history.faults, key=lambda fault: fault.at):
        if fault.action == "death" or (fault.action == "inject" and fault.name == "kill"):
            for worker in plain(fault.target, 10_000).split():
                stops[worker].append(fault.at)
    told = []
    for one in found:
        key = (one.task, one.token, one.owner)
        begun, end = started.get(key), left.get(key)
        stopped = None
        if begun is not None and end is None and one.worker in stops:
            times = stops[one.worker]
            index = bisect_left(times, begun)
            stopped = times[index] if index < len(times) else None
        effect = effects.get(key)
        told.append(one._replace(started=begun, left=end, effect=effect, stopped=stopped))
    return told


def _least(known: int | None, other: int) -> int:
    return other if known is None else min(known, other)
