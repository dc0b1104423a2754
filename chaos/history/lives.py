"""A history told task by task: each life is the list of committed steps of one task.

Folding once keeps every invariant linear in the history and lets it speak of `before` and `after`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.history.events import RUNNING, Commit, Effect, Ended, Final, History, Note, Row


class Moved(NamedTuple):
    """One committed change of a task: before, after, and the run-log row written beside it."""

    seq: int
    at: int
    before: Row | None  # None: this change is the enqueue
    after: Row | None  # None: the row was deleted
    ended: Ended | None

    @property
    def is_claim(self) -> bool:
        """Whether this step took a new lease: a running row whose token or owner is new."""
        after, before = self.after, self.before
        if after is None or after.state != RUNNING:
            return False
        return (
            before is None
            or before.state != RUNNING
            or (before.token, before.owner) != (after.token, after.owner)
        )

    @property
    def ends_lease(self) -> bool:
        """Whether this step took a lease away: the row runs no more, or on another lease."""
        before = self.before
        if before is None or before.state != RUNNING:
            return False
        return self.after is None or self.after.state != RUNNING or self.is_claim


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
    """Fold a history into one life per task, keyed by task id."""
    found: dict[int, Life] = {}

    def life(task: int) -> Life:
        one = found.get(task)
        if one is None:
            one = found[task] = Life(task)
        return one

    for commit in history.commits:
        ends: list[tuple[Life, int]] = []  # where the ends of leases are in which life
        for task, after in commit.changes:
            one = life(task)
            move = Moved(commit.seq, commit.at, one.last, after, None)
            if move.ends_lease:
                ends.append((one, len(one.moves)))
            one.moves.append(move)
        for row in commit.ended:
            life(row.task).ended.append((commit, row))
        if ends and commit.ended:
            _attach(commit.ended, ends)
        for effect in commit.effects:
            life(effect.task).effects.append((commit, effect))
    for note in history.notes:
        life(note.task).notes.append(note)
    for final in history.finals:
        life(final.task).final = final
    return found


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
