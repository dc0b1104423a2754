"""A history told task by task: each life is the list of committed steps of one task.

Folding once keeps every invariant linear in the history and lets it speak of `before` and `after`.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def lives(history: History) -> dict[int, Life]:
    """Fold a history into one life per task, keyed by task id."""
    found: dict[int, Life] = {}

    def life(task: int) -> Life:
        one = found.get(task)
        if one is None:
            one = found[task] = Life(task)
        return one

    for commit in history.commits:
        ended = {row.task: row for row in commit.ended}
        for change in commit.changes:
            one = life(change.task)
            before, after = one.last, change.row
            # A commit may also renew the lease that it then ends: only the end is the log row's.
            ends = before is not None and before.state == RUNNING
            ends = ends and (after is None or after.state != RUNNING)
            log = ended.get(change.task) if ends else None
            one.moves.append(Moved(commit.seq, commit.at, before, after, log))
        for row in commit.ended:
            life(row.task).ended.append((commit, row))
        for effect in commit.effects:
            life(effect.task).effects.append((commit, effect))
    for note in history.notes:
        life(note.task).notes.append(note)
    for final in history.finals:
        life(final.task).final = final
    return found


def claims(life: Life) -> Iterator[Moved]:
    """The steps of this task that took a new lease."""
    return (move for move in life.moves if move.is_claim)
