"""What failovers undid: the tasks, leases and ends of attempts that only the old primary knew.

A lost task's id may be given to another one on the promoted server, and a lost claim's token to
another claim of the task. Owners are never used twice: so it is the owner that tells which of the
two a note is about, and for a client's notes, which have none, the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.history.events import COMPLETED, RUNNING, Commit, Failover, History, Note, Row

Lease = tuple[int, int, str]  # task, token, owner


@dataclass(frozen=True, slots=True)
class Lost:
    """What the promoted server did not have, of all failovers of a history.

    tasks: those whose enqueue was lost, each with its failover. claims: the leases that were given
    in lost commits. ends: the attempts whose end was lost, and their outcome. completed: tasks that
    were enqueued before, and whose completion was lost.
    """

    tasks: Mapping[int, Failover] = field(default_factory=dict)
    claims: frozenset[Lease] = frozenset()
    ends: Mapping[Lease, str] = field(default_factory=dict)
    completed: frozenset[int] = frozenset()

    def concerns(self, note: Note) -> bool:
        """Whether the note is about a task whose enqueue was lost."""
        failover = self.tasks.get(note.task)
        if failover is None:
            return False
        if note.owner:
            return (note.task, note.token, note.owner) in self.claims
        return note.at < failover.opened


def lost(history: History) -> Lost:
    """Read off the lost commits, each after those that were kept before it."""
    if not history.failovers:
        return Lost()
    tasks: dict[int, Failover] = {}
    claims: set[Lease] = set()
    ends: dict[Lease, str] = {}
    completed: set[int] = set()
    kept: dict[int, Row | None] = {}
    commits = iter(history.commits)
    commit = next(commits, None)
    for failover in history.failovers:
        first = failover.lost[0].seq if failover.lost else -1
        while commit is not None and commit.seq < first:
            kept.update(commit.changes)
            commit = next(commits, None)
        rows: dict[int, Row | None] = {}  # as the lost commits left them
        for gone in failover.lost:
            for task, row in gone.changes:
                before = rows[task] if task in rows else kept.get(task)
                rows[task] = row
                if task not in kept:
                    tasks[task] = failover
                if row is None:
                    continue
                if _lease(row) and _lease(row) != _lease(before):
                    claims.add((task, row.token, row.owner or ""))
                if row.state == COMPLETED and task in kept:
                    completed.add(task)
            for ended in gone.ended:
                ends[ended.task, ended.token, ended.owner] = ended.outcome
    return Lost(tasks, frozenset(claims), ends, frozenset(completed))


def _lease(row: Row | None) -> tuple[int, str | None] | None:
    return (row.token, row.owner) if row is not None and row.state == RUNNING else None


def told_of(failover: Failover, lost: Lost, notes: tuple[Note, ...]) -> list[tuple[Note, Commit]]:
    """The notes that show that somebody was told of a commit which the failover undid.

    Those are acknowledged enqueues and claims, renewals, reclaims, ends of attempts, and
    completions whose transaction a handler saw commit.
    """
    enqueues: dict[int, Commit] = {}
    claims: dict[Lease, Commit] = {}
    renewals: dict[tuple[Lease, int], Commit] = {}
    ends: dict[tuple[Lease, str], Commit] = {}
    for commit in failover.lost:
        for task, row in commit.changes:
            if lost.tasks.get(task) is failover:
                enqueues.setdefault(task, commit)
            if row is not None and row.state == RUNNING and row.owner is not None:
                lease = (task, row.token, row.owner)
                if lease in lost.claims:
                    claims.setdefault(lease, commit)
                if row.expires is not None:
                    renewals.setdefault((lease, row.expires), commit)
        for ended in commit.ended:
            ends[(ended.task, ended.token, ended.owner), ended.outcome] = commit
    found = []
    for note in notes:
        lease = (note.task, note.token, note.owner)
        gone: Commit | None = None
        match note.what:
            case "acknowledged":
                gone = enqueues.get(note.task) if note.at < failover.opened else None
            case "claimed":
                gone = claims.get(lease)
            case "renewed":
                gone = renewals.get((lease, int(note.detail)))
            case "reclaimed":
                gone = ends.get((lease, "reclaimed"))
            case "finished" if note.detail == "committed":
                gone = ends.get((lease, "completed"))
            # The promoted server may have been asked again, and have settled it as well.
            case "settled" if note.at < failover.opened:
                gone = ends.get((lease, note.detail))
        if gone is not None:
            found.append((note, gone))
    return found
