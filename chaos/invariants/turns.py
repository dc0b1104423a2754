"""Nobody jumps the queue: `in-turn`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from chaos.history.events import PENDING, History, worker_of
from chaos.history.lives import Life
from chaos.invariants.causes import Causes
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span, spread, starved


class _Place(NamedTuple):
    """Where a task stands among those of its kind and priority: the earliest is claimed first."""

    due: int
    task: int


class _Wait(NamedTuple):
    """A task could be claimed from `since` on, `until` it was, or was changed, or the run ended.

    owner: who claimed it, if anybody did. seq: the commit that ended the wait, if one did.
    """

    until: int
    place: _Place
    since: int
    owner: str | None
    seq: int | None


def in_turn(history: History, lives: Mapping[int, Life]) -> Verdict:
    """No due task is passed over by later ones of its kind and priority for longer than promised.

    Claims skip what others hold locked, and a task that comes back stands before those that were
    claimed meanwhile: each may be passed over for a while. Whatever looks for tasks from where it
    found the last one would never come back to it as long as there are others. The time counts from
    the first claim of a later task to the last, while this one could be claimed; the machine's own
    lag is added to what is promised.

    A claim does not count if its worker was struck within that time, or a session held rows locked:
    it may have been asked for before, and have come late. That nobody was passed over is only shown
    if tasks came to stand before others that had been claimed already.
    """
    promised = history.rules.passed_over
    if promised is None:
        return Found().verdict("in-turn", 0, "", "the system promises no order", {}, None)
    lag = history.phases.lag
    counts = _counting(history, lives, promised + lag)
    levels: defaultdict[tuple[str, int], list[_Wait]] = defaultdict(list)
    for life in lives.values():
        for level, wait in _waits(life, history.phases.ended):
            levels[level].append(wait)
    late = Found()
    times: list[int] = []
    came_back = 0
    for waits in levels.values():
        for wait, behind, first, last in _passed(waits, counts):
            came_back += behind
            passed = last - first
            times.append(passed)
            if passed > promised + lag:
                late.add(
                    wait.place.task,
                    wait.seq,
                    f"was due at {clock(wait.place.due)} and could be claimed from"
                    f" {clock(wait.since)} on, but from {clock(first)} to {clock(last)} tasks were"
                    f" claimed that were due later: for {span(passed)}, and"
                    f" {span(promised + lag)} are allowed",
                )
    unfit = lag > promised
    return (Found() if unfit else late).verdict(
        "in-turn",
        came_back,
        f"{many(came_back, 'task')} came to stand before others that had been claimed; passed over"
        f" for {span(max(times, default=0))} at most",
        "no task came to stand before one of its kind and priority that had been claimed",
        {**spread(times, "passed_over"), "late": late.count},
        starved(lag, promised, many(late.count, "task") + " passed over")
        if unfit and late.count
        else None,
    )


def _waits(life: Life, ended: int) -> Iterator[tuple[tuple[str, int], _Wait]]:
    """The times in which this task could be claimed, by kind and priority."""
    since = ended
    for move in life.moves:
        before, after = move.before, move.after
        waiting = after if after is not None and after.state == PENDING else None
        if before is not None and before.state == PENDING:
            if waiting and (waiting.due, waiting.priority) == (before.due, before.priority):
                continue
            claimed = after if move.is_claim else None
            at = claimed.claimed_at if claimed is not None else None
            yield (
                (before.kind, before.priority),
                _Wait(
                    move.at if at is None else at,
                    _Place(before.due, life.task),
                    since,
                    claimed.owner if claimed is not None else None,
                    move.seq,
                ),
            )
        if waiting:
            since = max(move.at, waiting.due)
    row = life.last
    if row is not None and row.state == PENDING:
        yield (row.kind, row.priority), _Wait(ended, _Place(row.due, life.task), since, None, None)


class _Passed(NamedTuple):
    """A wait, whether a later task had been claimed before it began, and when the first and the
    last one was claimed while it lasted: the same time if there was but one, or none."""

    wait: _Wait
    behind: bool
    first: int
    last: int


def _passed(waits: Iterable[_Wait], counts: Callable[[_Wait], bool]) -> Iterator[_Passed]:
    """Each wait of one level before which or in which a later task was claimed."""
    # When later tasks were claimed, the last first: so they come nearly in the order of this list.
    claims: list[int] = []
    ranked = sorted(waits, key=lambda wait: wait.place, reverse=True)
    for _, together in groupby(ranked, lambda wait: wait.place):  # all waits of one task there
        own = []
        for wait in together:
            # A claim of the same moment is perhaps the same claim.
            begin, end = bisect_right(claims, -wait.until), bisect_left(claims, -wait.since)
            behind = end < len(claims)
            if begin < end:
                yield _Passed(wait, behind, -claims[end - 1], -claims[begin])
            elif behind:
                yield _Passed(wait, behind, 0, 0)
            if wait.owner is not None and counts(wait):
                own.append(-wait.until)
        for claim in own:
            insort(claims, claim)


def _counting(history: History, lives: Mapping[int, Life], within: int) -> Callable[[_Wait], bool]:
    """Which claims were not held up: neither was their worker struck within this time before, nor
    were rows locked."""
    causes = Causes(history, lives)

    def counts(claim: _Wait) -> bool:
        assert claim.owner is not None
        begin, end = claim.until - within, claim.until
        return not (
            causes.explain(worker_of(claim.owner), begin, end) or causes.rows_locked(begin, end)
        )

    return counts
