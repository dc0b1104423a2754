"""Programs for a claim's clauses: what is due, when, of which kind and priority, and within which
limits; and what of it a claim must take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

from chaos.explore.clauses import actors as act
from chaos.explore.clauses.setting import Act, hour, known, sql, take
from chaos.explore.clock import START
from chaos.explore.scheduler_actors import KIND
from chaos.explore.scheduler_programs import Known
from scheduler.dispatch import declare_limits
from scheduler.floors import Floor
from scheduler.lease import Lease

_AT = "(select at from explorer_clock.reading)"


def task(number: int, *, after: str = "0 s", kind: str = KIND, priority: int = 1) -> str:
    """SQL that gives a task its due time, as the explorer's clock tells it, kind and priority."""
    return (
        f"update scheduler.tasks set next_run_at = {_AT} + interval '{after}', kind = '{kind}',"
        f" priority = {priority} where id = {number};"
    )


def choices() -> Iterator[tuple[str, Known]]:
    """What a claim must choose of what waits."""

    def choice(
        name: str,
        about: str,
        tasks: Sequence[str],
        expected: Sequence[int],
        limit: int = 1,
        kinds: Sequence[str] = (KIND,),
        before: Sequence[Act] = (hour,),
        floors: Sequence[Floor] = (),
    ) -> tuple[str, Known]:
        actor = partial(act.chooser, expected=expected, limit=limit, kinds=kinds, floors=floors)
        return known(
            f"choice_{name}",
            about,
            {"a": actor},
            tasks=len(tasks),
            rows="".join(tasks),
            before=before,
            claims=limit,
        )

    yield choice(
        "oldest",
        "the longest due goes first, whatever its id",
        [task(1, after="9 m"), task(2, after="1 m"), task(3, after="5 m")],
        [2],
    )
    yield choice(
        "best",
        "each level is looked at from its oldest on",
        [task(1, after="9 m"), task(2, after="1 m"), task(3, after="5 m", priority=2)],
        [2],
    )
    yield choice(
        "lowest",
        "of equals the lowest id goes first, across kinds",
        [task(1), task(2, kind="other"), task(3)],
        [1],
        kinds=("other", KIND),
    )
    yield choice(
        "second",
        "of equals the lowest ids go first, across kinds",
        [task(1, kind="other"), task(2), task(3, kind="other"), task(4)],
        [1, 2],
        2,
        kinds=("other", KIND),
    )
    yield choice(
        "credit",
        "a level of priority is worth a minute",
        [task(1, after="10 s"), task(2, after="50 s", priority=2), task(3, after="30 s")],
        [2],
    )
    yield choice(
        "no_more_credit",
        "a level of priority is worth no more than a minute",
        [task(1, after="10 s"), task(2, after="80 s", priority=2)],
        [1],
    )
    yield choice(
        "levels",
        "every level is served",
        [task(n, priority=n - 1) for n in (1, 2, 3, 4)],
        [1, 2, 3, 4],
        9,
    )
    yield choice(
        "few",
        "no more than the limit, over levels and kinds",
        [task(1, priority=3), task(2), task(3, kind="other"), task(4), task(5)],
        [1, 2],
        2,
        kinds=(KIND, "other"),
    )
    yield choice(
        "floor",
        "a level is looked at from its floor on; of tasks due at once the floor's id decides",
        [task(1, after="1 m"), *(task(n, after="5 m") for n in (2, 3, 4)), task(5, after="7 m")],
        [3, 4, 5],
        9,
        floors=[Floor(KIND, 1, START + timedelta(minutes=5), 3)],
    )
    yield choice(
        "below_a_floor",
        "what lies below a floor takes nobody's place",
        [task(1, after="1 m"), task(2, after="6 m"), task(3, after="5 m", priority=2)],
        [3],
        floors=[Floor(KIND, 1, START + timedelta(minutes=6), 2)],
    )
    yield choice(
        "own_floor",
        "a floor holds for its own kind and priority only",
        [
            *(task(1 + level, after="2 m", priority=level) for level in range(4)),
            *(task(5 + level, after="2 m", priority=level, kind="other") for level in range(4)),
        ],
        [1, 3, 4, 5, 6, 8],
        9,
        kinds=(KIND, "other"),
        floors=[
            Floor(KIND, 1, START + timedelta(minutes=3), 1),
            Floor("other", 2, START + timedelta(minutes=3), 1),
            Floor("third", 3, START + timedelta(minutes=3), 1),
        ],
    )
    yield choice(
        "others",
        "what is not due, not of a kind that is served or over takes nobody's place",
        [
            task(1, after="61 m", priority=3),
            task(2, after="-9 m", kind="third", priority=3),
            task(3, after="-8 m", priority=2),
            task(4, after="59 m", priority=0),
        ],
        [4],
        before=[hour, *_over(3)],
    )
    yield choice(
        "now",
        "what is due at this very instant is due",
        [task(1, after="3 ms")],  # the clock begins at 1 ms, and moves on by one at each look
        [1],
        before=(),
    )


def _over(task: int) -> list[Act]:
    """A task that was completed."""
    return [
        sql(
            "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,"
            " lease_owner = 'z/1', claimed_at = scheduler.now(),"
            f" lease_expires_at = scheduler.now() + interval '30 s' where id = {task}"
        ),
        lambda connection: act.ENDS["complete"](connection, [Lease(task, 1, "z/1")]),
    ]


def limits() -> Iterator[tuple[str, Known]]:
    """What a claim may take of kinds that have a limit."""
    one: Mapping[str, int | None] = {KIND: 1, "other": 1}
    both = (KIND, "other")
    kinds = "update scheduler.tasks set kind = 'other' where id > 2;"

    def limited(
        name: str, about: str, expected: Sequence[int], before: Sequence[Act], rows: str = ""
    ) -> tuple[str, Known]:
        actor = partial(act.chooser, expected=expected, limit=9, kinds=both, limited=both)
        return known(
            f"limit_{name}",
            about,
            {"a": actor},
            tasks=4,
            rows=kinds + rows,
            before=[partial(declare_limits, limits=one), *before],
            limits=name != "lowered",
        )

    taken = partial(act.take, owner="z/1", limited=(KIND,))
    yield limited("each", "each kind has its own limit", [1, 3], [])
    yield limited("held", "what runs counts, and only what runs", [3], [taken])
    yield limited("over", "what is over does not count", [2, 3], _over(1))
    yield limited(
        "best",
        "of a limited kind the best goes first, over all levels",
        [2, 3],
        [],
        task(2, priority=3),
    )
    yield limited(
        "lowered",
        "a limit that was lowered below what runs holds up no other kind",
        [3],
        [
            partial(declare_limits, limits={KIND: None}),
            take("z/1", 2),
            partial(declare_limits, limits=one),
        ],
    )
    yield known(
        "limit_free",
        "a kind without a limit is served beside one that has it",
        {"a": partial(act.chooser, expected=[3, 4], limit=9, kinds=both)},
        tasks=4,
        rows=kinds,
        before=[partial(declare_limits, limits={KIND: 1})],
    )
    yield known(
        "limit_race",
        "two workers claim a kind of which one task may run",
        {
            name: partial(act.limited_claimer, owner=f"{name}/1", kinds=(KIND,))
            for name in ("a", "b")
        },
        tasks=2,
        before=[partial(declare_limits, limits={KIND: 1})],
        limits=True,
    )
    yield known(
        "limit_apart",
        "two workers claim two kinds of which one task each may run",
        {
            "a": partial(act.limited_claimer, owner="a/1", kinds=(KIND,)),
            "b": partial(act.limited_claimer, owner="b/1", kinds=("other",)),
        },
        tasks=4,
        rows=kinds,
        before=[partial(declare_limits, limits=one)],
        limits=True,
        returned={"a": [1], "b": [3]},
    )
