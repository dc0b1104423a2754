"""Programs for single clauses of the scheduler's statements: one actor's life, or a race of two.

Each is exhausted in a few schedules, so `chaos hunt` can afford them for every mutant there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from chaos.explore.clauses import actors as act
from chaos.explore.clauses import claims, orders, rules, tasks
from chaos.explore.clauses.setting import Act, end_one, hour, known, reclaim_all, take
from chaos.explore.crash_actors import cap
from chaos.explore.scheduler_programs import Known
from scheduler.access import limit_source
from scheduler.tasks import cancel


def _ends() -> Iterator[tuple[str, Known]]:
    for end in act.ENDS:
        yield known(
            f"one_{end}",
            f"{end}: of two tasks of a claim one is named",
            {"a": partial(act.one_of_two, end=end)},
            tasks=3,
        )
        yield known(
            f"race_{end}",
            f"{end} beside a reclaim of the same task",
            {"a": partial(end_one, end=end), "b": reclaim_all},
            tasks=1,
            before=[take("z/1"), hour],
        )
    for by in ("fail", "reclaim"):
        yield known(
            f"twice_{by}",
            f"{by}: the last attempt is over",
            {"a": partial(act.twice, by=by)},
            tasks=1,
        )


def _sources() -> Iterator[tuple[str, Known]]:
    shop = (
        "insert into scheduler.sources (name, max_outstanding, outstanding)"
        " values ('shop', 9, {}), ('mall', 9, 7);"
    )
    counted = "update scheduler.tasks set source = 'shop', counted = id in ({});"
    before = [take("z/1"), take("z/2"), take("z/3")]
    # Task 3 is counted for a source whose record somebody has removed.
    one_by_one = shop.format(1) + counted.format("1, 3")
    gone = "update scheduler.tasks set source = 'gone' where id = 3;"
    for end in ("complete", "complete_in_transaction"):
        yield known(
            f"counted_{end}",
            f"{end} frees the places that were taken",
            {"a": partial(act.each_completed, end=end)},
            tasks=3,
            rows=one_by_one + gone,
            before=before,
        )
    yield known(
        "counted_together",
        "one statement frees the places of several tasks",
        {"a": act.together},
        tasks=3,
        rows=shop.format(2) + counted.format("1, 3"),
        before=before,
    )
    yield known(
        "counted_stale",
        "what frees no place holds up nobody who takes one",
        {"a": act.stale_and_uncounted, "b": partial(limit_source, source="mall", most=5)},
        tasks=4,
        rows=shop.format(1)
        + "update scheduler.tasks set source = 'mall', counted = id < 3;"
        + "update scheduler.tasks set source = 'shop', counted = true where id = 4;",
        before=[*_FENCE, take("z/4")],
    )
    yield known(
        "counted_cap",
        "two clients enqueue for a source that may have one more",
        {"a": act.enqueuer, "b": act.enqueuer},
        tasks=0,
        before=[cap],
        limits=True,
    )
    yield known(
        "counted_race",
        "a place is freed while its source's record changes",
        {
            "a": partial(end_one, end="complete"),
            "b": partial(limit_source, source="shop", most=5),
        },
        tasks=1,
        rows=shop.format(1) + counted.format("1"),
        before=[take("z/1")],
    )


_FENCE: tuple[Act, ...] = (take("z/1"), hour, reclaim_all, take("z/2"), take("z/3"), take("z/0"))

CLAUSES: Mapping[str, Known] = dict(
    [
        *_ends(),
        *claims.choices(),
        *claims.limits(),
        *_sources(),
        *tasks.programs(),
        *rules.programs(),
        *orders.programs(),
        known(
            "fence",
            "leases that nobody holds end nothing",
            {"a": act.intruder},
            tasks=3,
            before=_FENCE,
        ),
        known(
            "cancelled",
            "a task that was cancelled while it ran stays so",
            {"a": act.overtaken},
            tasks=1,
            before=[take("z/1"), partial(cancel, tasks=[1])],
        ),
        known(
            "future",
            "two workers claim what is due, and not what will be",
            {name: partial(act.take, owner=f"{name}/1") for name in ("a", "b")},
            tasks=2,
            rows=claims.task(2, after="9 h"),
        ),
        known(
            "one_reclaim",
            "a reclaim of one takes the lease that is over first",
            {"a": act.one_reclaimed},
            tasks=3,
        ),
        known(
            "last_instant",
            "a lease is held to its end",
            {"a": act.last_instant},
            tasks=1,
            before=[take("z/1")],
        ),
        known(
            "unfinished",
            "a handler that commits by itself cannot complete",
            {"a": act.unfinished},
            tasks=1,
        ),
    ]
)
