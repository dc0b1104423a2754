"""How many at once: leases of a limited kind, tasks of a capped source: `limit-held`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chaos.history.events import PENDING, RUNNING, Commit, History, Row
from chaos.history.lives import Life
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many

_TOLD = 8  # tasks that a sentence names


@dataclass(slots=True)
class _Count:
    """The tasks that take up room under one limit, as of the latest commit."""

    limit: int
    tasks: set[int] = field(default_factory=set)
    most: int = 0
    entered: int = 0


@dataclass(slots=True)
class _Bounded:
    """All limits of one sort. `of` says under which of them a row takes up room, if any."""

    counts: dict[str, _Count]
    of: Callable[[Row], str | None]
    where: dict[int, str] = field(default_factory=dict)  # each task that takes up room now

    def take(self, commit: Commit) -> dict[str, list[int]]:
        """Follow a commit; returns, by limit, who came to take up room in it."""
        came: dict[str, list[int]] = {}
        where, counts, of = self.where, self.counts, self.of
        for task, row in commit.changes:
            was, now = where.get(task), None if row is None else of(row)
            if now not in counts:
                now = None
            if was == now:
                continue
            if was is not None:
                self.counts[was].tasks.discard(task)
                del self.where[task]
            if now is not None:
                self.counts[now].tasks.add(task)
                self.where[task] = now
                came.setdefault(now, []).append(task)
        for name, tasks in came.items():
            count = self.counts[name]
            count.entered += len(tasks)
            count.most = max(count.most, len(count.tasks))
        return came


def limit_held(history: History, lives: Mapping[int, Life]) -> Verdict:
    """At every commit, no limited kind has more leases, no capped source more tasks, than it may.

    An expired lease counts until it is taken back: its holder may be running. A task is outstanding
    while it is pending or running, and one of a capped source must count. A limit that was never
    reached was never tried.
    """
    rules = history.rules
    leases = _Bounded({kind: _Count(limit) for kind, limit in rules.limits.items()}, _lease_of)
    outstanding = _Bounded({name: _Count(cap) for name, cap in rules.caps.items()}, _share_of)
    found = Found()
    free: set[int] = set()  # tasks of capped sources that do not count, told once
    for commit in history.commits if rules.limits or rules.caps else ():
        for kind, tasks in leases.take(commit).items():
            _judge(leases.counts[kind], commit, tasks, found, f"kind {kind}", "lease")
        for source, tasks in outstanding.take(commit).items():
            _judge(outstanding.counts[source], commit, tasks, found, f"source {source}", "task")
        for task, row in commit.changes:
            if row is not None and _escapes(row, rules.caps) and task not in free:
                free.add(task)
                found.add(
                    task,
                    commit.seq,
                    f"is {row.state} at {clock(commit.at)} and does not count under the cap of its"
                    f" source {row.source}",
                )
    used = {
        **{f"kind {name}": count for name, count in leases.counts.items() if count.entered},
        **{f"source {name}": count for name, count in outstanding.counts.items() if count.entered},
    }
    untried = [
        f"{name} never had more than {count.most} of the {count.limit} that it may"
        for name, count in used.items()
        if count.most < count.limit
    ]
    judged = sum(count.entered for count in used.values()) + len(free)
    reached = ", ".join(f"{name} {count.limit}" for name, count in used.items())
    return found.verdict(
        "limit-held",
        judged,
        f"{judged} claims and enqueues under limits that were reached and held: {reached}",
        "no task of a limited kind was claimed, and no capped source enqueued one",
        {f"most_of_{name.replace(' ', '_')}": count.most for name, count in used.items()},
        "; ".join(untried) or None,
    )


def _lease_of(row: Row) -> str | None:
    return row.kind if row.state == RUNNING else None


def _share_of(row: Row) -> str | None:
    return row.source if row.counted and row.state in (PENDING, RUNNING) else None


def _escapes(row: Row, caps: Mapping[str, int]) -> bool:
    return (
        row.source in caps
        and not row.counted
        and row.state in (PENDING, RUNNING)
        and row.occurrence is None  # what recurs is of no client that could be refused
    )


def _judge(
    count: _Count, commit: Commit, came: list[int], found: Found, whose: str, what: str
) -> None:
    over = len(count.tasks) - count.limit
    if over <= 0:
        return
    ids = sorted(count.tasks)
    which = ", ".join(map(str, ids[:_TOLD])) + (", …" if len(ids) > _TOLD else "")
    found.add(
        max(came),
        commit.seq,
        f"with it {whose} had {many(len(ids), what)} at {clock(commit.at)}, {over} more than the"
        f" {count.limit} that it may have: tasks {which}",
    )
