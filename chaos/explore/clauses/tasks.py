"""What the functions for tasks answer and change, call by call.

For the clauses that a life of tasks would meet too seldom: a key that is dead twice, say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from chaos.explore import clock
from chaos.explore.clauses.actors import take
from chaos.explore.clauses.calls import (
    AT,
    LATE,
    OTHER,
    PAPERS,
    SHUFFLED,
    SOURCES,
    asked,
    due,
    held,
    keyed,
    over,
    several,
)
from chaos.explore.clauses.told import told
from chaos.explore.crash_actors import WORK
from chaos.explore.scheduler_actors import KIND
from chaos.explore.scheduler_programs import Known
from scheduler import (
    Priority,
    Unique,
    cancel,
    discard,
    enqueue,
    enqueue_many,
    enqueue_unique,
    requeue,
)
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import declare_limits, release_claims
from scheduler.finish import fail
from scheduler.lease import Lease


def programs() -> Iterator[tuple[str, Known]]:
    """All of them, by name."""
    yield told(
        "cancel",
        "cancel: what is waiting or runs, and is named",
        [
            lambda c: cancel(c, [1, 2, 4, 5]),
            lambda c: cancel(c, [1, 4]),
            lambda c: cancel(c, [3]),
        ],
        tasks=6,
        rows=(held("2, 3") + over("completed", "4") + SOURCES + SHUFFLED),
    )
    yield told(
        "discard",
        "discard: what is dead and is named",
        [
            lambda c: discard(c, [5, 4, 2, 1]),
            lambda c: discard(c, [1, 4]),
            lambda c: discard(c, [3]),
        ],
        tasks=6,
        rows=(over("dead", "1, 2, 3, 5") + over("completed", "4") + SOURCES + SHUFFLED),
    )
    yield told(
        "requeue",
        "requeue: what is dead and is named, and whose key nobody has",
        [
            lambda c: requeue(c, [2, 5, 4, 1]),
            lambda c: requeue(c, [1, 4]),
            lambda c: requeue(c, [3, 6]),
        ],
        tasks=6,
        rows=(
            over("dead", "1, 2, 3, 6")
            + over("completed", "4")
            + keyed("k", "started", "1")
            + keyed("m", "period", "6")
            + SHUFFLED
        ),
    )
    yield told(
        "requeue_live",
        "requeue: a key that another live task has",
        [partial(requeue, tasks=[task]) for task in range(1, 10)],
        tasks=19,
        rows=(
            over("dead", "1, 2, 3, 4, 5, 6, 7, 8, 9")
            + "".join(keyed(f"k{n}", "finished", str(n)) for n in range(1, 10))
            + keyed("k1", "started", "11")
            + keyed("k2", "started", "12")
            + held("12")
            + keyed("k3", "started", "13")
            + "update scheduler.tasks set lease_token = 1 where id = 13;"
            + keyed("k4", "finished", "14")
            + keyed("k5", "finished", "15")
            + held("15")
            + keyed("k6", "finished", "16")
            + over("completed", "16")
            + keyed("k7", "period", "17")
            + over("completed", "17")
            + keyed("k9", "started", "18")
            + "update scheduler.tasks set status = 'cancelled', "
            "finished_at = next_run_at where id = 18;"
            + keyed("k8", "finished", "10")
            + "update scheduler.tasks set kind = 'other' where id = 10;"
        ),
    )
    yield told(
        "requeue_newer",
        "requeue: of dead tasks of one key that are named the newest",
        [
            lambda c: requeue(c, [1, 2]),
            lambda c: requeue(c, [3]),
            lambda c: requeue(c, [5, 6]),
            lambda c: requeue(c, [7, 8]),
            lambda c: requeue(c, [9, 10]),
            lambda c: requeue(c, [11, 12]),
        ],
        tasks=12,
        rows=(
            over("dead", "1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12")
            + over("completed", "6")
            + keyed("k1", "finished", "1, 2")
            + keyed("k2", "finished", "3, 4")
            + keyed("k3", "finished", "5, 6")
            + keyed("k4", "finished", "7")
            + keyed("k4", "started", "8")
            + keyed("k5", "finished", "9, 10")
            + "update scheduler.tasks set kind = 'other' where id = 10;"
            + keyed("k6", "finished", "11")
            + keyed("k7", "finished", "12")
        ),
    )
    yield told(
        "enqueue",
        "enqueue: as asked, and with a cap while there is room",
        [
            lambda c: enqueue_many(c, WORK, [1, 2, 3], delay=timedelta(seconds=5)),
            lambda c: enqueue_many(c, WORK, []),
            lambda c: enqueue_many(c, WORK, [4], run_at=AT),
            lambda c: enqueue_many(c, WORK, [5], delay=timedelta(seconds=10)),
            lambda c: enqueue_many(c, WORK, [5], run_at=LATE),
            lambda c: enqueue_many(c, WORK, [5], delay=timedelta(seconds=11)),
            lambda c: limit_source(c, "postgres", 2),
            lambda c: enqueue_many(c, WORK, [6, 7]),
            lambda c: enqueue_many(c, WORK, [8]),
            lambda c: enqueue(c, PAPERS, {"password": 1}),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            lambda c: restrict_kind(c, "other", ["postgres"]),
            lambda c: enqueue_many(c, WORK, [9]),
            several(),
            several("1"),
            lambda c: restrict_kind(c, KIND, ["postgres"]),
            lambda c: limit_source(c, "postgres", None),
            lambda c: enqueue_many(c, WORK, [9]),
        ],
        rows=(
            "insert into scheduler.sources (name, max_outstanding, outstanding) values "
            "('mall', 0, 0);"
        ),
    )
    yield told(
        "unique",
        "enqueue_unique: a key has one live task, for as long as asked",
        [
            lambda c: enqueue_unique(c, WORK, 1, Unique("k", "started")),
            lambda c: enqueue_unique(c, WORK, 1, Unique("k", "started")),
            lambda c: enqueue_unique(c, WORK, 1, Unique("m", "started")),
            lambda c: enqueue_unique(c, OTHER, 1, Unique("k", "started")),
            lambda c: take(c, "a/1", 3),
            lambda c: enqueue_unique(c, WORK, 1, Unique("k", "started")),
            lambda c: sorted(release_claims(c, ["a/1"])),
            lambda c: enqueue_unique(c, WORK, 1, Unique("k", "started")),
            lambda c: enqueue_unique(c, WORK, 1, Unique("f", "finished")),
            lambda c: enqueue_unique(c, WORK, 1, Unique("f", "finished")),
            lambda c: take(c, "a/2", 9),
            lambda c: enqueue_unique(c, WORK, 1, Unique("f", "finished")),
            lambda c: cancel(c, [105]),
            lambda c: enqueue_unique(c, WORK, 1, Unique("f", "finished")),
            lambda c: enqueue_unique(c, WORK, 1, Unique("p", timedelta(hours=1))),
            lambda c: enqueue_unique(c, WORK, 1, Unique("p", timedelta(hours=1))),
            lambda c: cancel(c, [107]),
            lambda c: enqueue_unique(c, WORK, 1, Unique("p", timedelta(hours=1))),
            lambda c: clock.advance(c, timedelta(hours=1)),
            lambda c: enqueue_unique(c, WORK, 1, Unique("p", timedelta(hours=1))),
            lambda c: enqueue_unique(
                c, WORK, 1, Unique("d", "started"), delay=timedelta(seconds=11)
            ),
            lambda c: enqueue_unique(c, WORK, 1, Unique("e", "started"), run_at=AT),
            lambda c: enqueue_unique(
                c, WORK, 1, Unique("e2", "started"), delay=timedelta(seconds=10)
            ),
            lambda c: enqueue_unique(c, WORK, 1, Unique("l", "started"), run_at=LATE),
            lambda c: cancel(c, [112]),
            lambda c: enqueue_unique(c, WORK, 1, Unique("l", "started"), run_at=LATE),
        ],
    )
    yield told(
        "unique_refused",
        "enqueue_unique: refuses what is no key, no period, too much or not allowed",
        [
            asked(key=""),
            asked(key=None),
            asked(key="k" * 501),
            asked(until="period"),
            asked(until="period", period=timedelta(seconds=0.5)),
            asked(until="period", period=timedelta(days=36526)),
            asked(payload='{"password": 1}'),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            asked(),
            lambda c: restrict_kind(c, KIND, []),
            lambda c: limit_source(c, "postgres", 1),
            asked(),
            asked(),
            asked(key="m"),
        ],
    )
    yield told(
        "next",
        "next_due: when the first task is due that may be claimed",
        [
            lambda c: enqueue(c, WORK, 1, delay=timedelta(seconds=9)),
            lambda c: enqueue(c, OTHER, 1, delay=timedelta(seconds=3), priority=Priority.LOW),
            lambda c: enqueue(c, WORK, 1, delay=timedelta(seconds=5)),
            lambda c: enqueue(c, WORK, 1, delay=timedelta(seconds=6), priority=Priority.HIGH),
            due(KIND),
            due("other"),
            due("other", KIND),
            due("third"),
            lambda c: declare_limits(c, {"other": 1}),
            due("other", KIND),
            due("other", KIND, limited=["other"]),
            lambda c: declare_limits(c, {KIND: 2}),
            due("other", KIND, limited=["other", KIND]),
            due("other", KIND, limited=[KIND]),
            lambda c: clock.advance(c, timedelta(seconds=5)),
            lambda c: take(c, "a/1", 3, [KIND], [KIND]),
            due(KIND, limited=[KIND]),
            due("other", KIND, limited=["other", KIND]),
            lambda c: take(c, "a/2", 1, ["other"], ["other"]),
            lambda c: enqueue(c, OTHER, 1),
            due("other", KIND, limited=["other", KIND]),
            lambda c: cancel(c, [104]),
            due("other", KIND, limited=["other", KIND]),
        ],
    )
    yield told(
        "retry",
        "fail: the wait grows, up to its cap and less its jitter",
        [
            lambda c: take(c, "a/1", 3),
            lambda c: fail(
                c, [Lease(1, 1, "a/1"), Lease(2, 1, "a/1"), Lease(3, 1, "a/1")], ["no"] * 3
            ),
        ],
        tasks=3,
        rows=(
            "update scheduler.tasks set max_attempts = 20, backoff_cap = 4, "
            "attempts = case id when 1 then 1 when 2 then 2 else 11 end, "
            "backoff_jitter = case id when 1 then 0.5 else 0 end;"
        ),
    )
