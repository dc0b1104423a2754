"""A history told task by task: each life is the list of committed steps of one task.

Folding once keeps every invariant linear in the history and lets it speak of `before` and `after`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.history.events import RUNNING, Commit, Effect, Ended, Final, History, Note, Row
from chaos.history.lost import lost


class Moved(NamedTuple):
    """One committed change of a task: before, after, and the run-log row written beside it.

    is_claim: this step took a new lease: it left a running row whose token or owner is new.
    ends_lease: it took a lease away: the row runs no more, or on another lease.
    """

    seq: int
    at: int
    before: Row | None  # None: this change is the enqueue
    after: Row | None  # None: the row was deleted
    ended: Ended | None
    is_claim: bool
    ends_lease: bool


def _moved(seq: int, at: int, before: Row | None, after: Row | None) -> Moved:
    # Asked of each step by most invariants: found out once.
    ran = before is not None and before.state == RUNNING
    claims = ends = False
    if after is not None and after.state == RUNNING:
        if not ran:
            claims = True
        else:
            assert before is not None
            claims = ends = before.token != after.token or before.owner != after.owner
    elif ran:
        ends = True
    return Moved(seq, at, before, after, None, claims, ends)


@dataclass(slots=True)
class Life:
    """All that is known of one task, in commit order."""

    task: int
    moves: list[Moved] = field(default_factory=list)
    ended: list[tuple[Commit, Ended]] = field(default_factory=list)
    effects: list[tuple[Commit, Effect]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    final: Final | None = None

    @property
    def last(self) -> Row | None:
        """The task as the last commit left it; None if it was deleted or never seen."""
        return self.moves[-1].after if self.moves else None

    @property
    def kind(self) -> str | None:
        """The task's kind; None if no commit shows the task."""
        for move in self.moves:
            if move.after is not None:
                return move.after.kind
        return None


def lives(history: History) -> dict[int, Life]:
    """Fold a history into one life per task, keyed by task id.

    A task whose enqueue was lost in a failover has no life: what is noted of it is left out, since
    its id may be another task's now.
    """
    found = _Lives()
    for commit in history.commits:
        ends: list[tuple[Life, int]] = []  # where the ends of leases are in which life
        seq, at, _, changes, ended, effects = commit
        for task, after in changes:
            life = found[task]
            moves = life.moves
            move = _moved(seq, at, moves[-1].after if moves else None, after)
            if move.ends_lease:
                ends.append((life, len(moves)))
            moves.append(move)
        for row in ended:
            found[row.task].ended.append((commit, row))
        if ends and ended:
            _attach(ended, ends)
        for effect in effects:
            found[effect.task].effects.append((commit, effect))
    gone = lost(history)
    for note in history.notes:
        if not (gone.tasks and gone.concerns(note)):
            found[note.task].notes.append(note)
    for final in history.finals:
        found[final.task].final = final
    return dict(found)


class _Lives(dict[int, Life]):
    """Lives by task, each made when it is first asked for."""

    def __missing__(self, task: int) -> Life:
        life = self[task] = Life(task)
        return life


def _attach(logged: Iterable[Ended], ends: Iterable[tuple[Life, int]]) -> None:
    """Put each run-log row of a commit beside the change that ended its lease.

    One commit may end several leases of a task (release, claim, complete), and tells in no order
    which row is whose: the token does. A row whose token no end had is one of a writer that had no
    right to the lease it ended; it is put beside an end that nobody else logged. A claim over a
    running row logs nothing unless it says so by token.
    """
    rows: dict[tuple[int, int], Ended] = {}
    for row in logged:
        rows.setdefault((row.task, row.token), row)
    unlogged = []
    for life, index in ends:
        move = life.moves[index]
        assert move.before is not None
        own = rows.pop((life.task, move.before.token), None)
        if own is not None:
            life.moves[index] = move._replace(ended=own)
        elif not move.is_claim:
            unlogged.append((life, index))
    for life, index in unlogged:
        stray = next((key for key in rows if key[0] == life.task), None)
        if stray is not None:
            life.moves[index] = life.moves[index]._replace(ended=rows.pop(stray))


def claims(life: Life) -> Iterator[Moved]:
    """The steps of this task that took a new lease."""
    return (move for move in life.moves if move.is_claim)
