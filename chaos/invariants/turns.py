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
    """Where a task stands among those of its kind and priority: by due time, then id, the earliest
    first."""

    due: int
    task: int


class _Wait(NamedTuple):
    """A task could be claimed from `since` until it was claimed or changed, or the run ended; in
    microseconds since the epoch.

    owner: who claimed it; None: nobody did. seq: the commit that ended the wait; None: the run did.
    """

    place: _Place
    since: int
    until: int
    owner: str | None
    seq: int | None


def in_turn(history: History, lives: Mapping[int, Life]) -> Verdict:
    """No due task is passed over by later ones of its kind and priority for longer than promised.

    Tasks are claimed by due time, then id. One that others hold locked is skipped, and one that
    comes back lies before those that were claimed meanwhile: each may be passed over for a while. A
    claim that starts at a cursor, and never looks below it, would leave it there until the backlog
    ends.

    The time passed over is from the first claim of a later task to the last, while this one could
    be claimed. Allowed is what the system promises, and the machine's lag.

    A claim is left out if, for as long as is allowed before it, anything held its worker up (see
    `Causes.explain`) or a session held rows locked: it may have been sent before this task could be
    claimed, and have come late. The evidence is waits that began after a later task had been
    claimed.
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
    judged = 0
    for waits in levels.values():
        for wait, after_later, first, last in _passed(waits, counts):
            judged += after_later
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
        judged,
        f"{many(judged, 'wait')} began after a later task had been claimed; passed over"
        f" for {span(max(times, default=0))} at most",
        "no wait began after a later task of its kind and priority had been claimed",
        {**spread(times, "passed_over"), "late": late.count},
        starved(lag, promised, many(late.count, "wait") + " that lasted too long")
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
            owner = claimed.owner if claimed is not None else None
            place, until = _Place(before.due, life.task), move.at if at is None else at
            yield (before.kind, before.priority), _Wait(place, since, until, owner, move.seq)
        if waiting:
            since = max(move.at, waiting.due)
    row = life.last
    if row is not None and row.state == PENDING:
        yield (row.kind, row.priority), _Wait(_Place(row.due, life.task), since, ended, None, None)


class _Passed(NamedTuple):
    """A wait of which a later task was claimed before or while it lasted.

    after_later: one was before. first, last: when the first and the last one was while it lasted;
    both `since` if none was.
    """

    wait: _Wait
    after_later: bool
    first: int
    last: int


def _passed(waits: Iterable[_Wait], counts: Callable[[_Wait], bool]) -> Iterator[_Passed]:
    """Those waits of one level of which a later task was claimed before or while they lasted."""
    # When tasks of later places were claimed, as negative times: a later place is claimed later as
    # a rule, so new ones go near the end of the list, where inserting is cheap.
    claims: list[int] = []
    ranked = sorted(waits, key=lambda wait: wait.place, reverse=True)
    for _, together in groupby(ranked, lambda wait: wait.place):  # all waits of one task there
        own = []
        for wait in together:
            # A claim of the same moment is perhaps the same claim.
            begin, end = bisect_right(claims, -wait.until), bisect_left(claims, -wait.since)
            after_later = end < len(claims)
            if begin < end:
                yield _Passed(wait, after_later, -claims[end - 1], -claims[begin])
            elif after_later:
                yield _Passed(wait, after_later, wait.since, wait.since)
            if wait.owner is not None and counts(wait):
                own.append(-wait.until)
        for claim in own:
            insort(claims, claim)


def _counting(history: History, lives: Mapping[int, Life], within: int) -> Callable[[_Wait], bool]:
    """Tells whether a claim counts: nothing held its worker up, and no rows were locked, for
    `within` microseconds before it."""
    causes = Causes(history, lives)

    def counts(claim: _Wait) -> bool:
        assert claim.owner is not None
        begin, end = claim.until - within, claim.until
        return not (
            causes.explain(worker_of(claim.owner), begin, end) or causes.rows_locked(begin, end)
        )

    return counts
