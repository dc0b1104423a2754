"""What the functions of the migrations answer and change, call by call.

For the clauses that a life of tasks would meet too seldom: a key that is dead twice, a schedule
that is declared with one thing changed, a client that a restriction leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clause_actors import take
from chaos.explore.clause_setting import sql
from chaos.explore.clause_told import BEGAN, Call, told
from chaos.explore.crash_actors import WORK
from chaos.explore.scheduler_actors import KIND, LEASE
from chaos.explore.scheduler_programs import Known
from scheduler import (
    Priority,
    Registry,
    Unique,
    cancel,
    discard,
    enqueue,
    enqueue_many,
    enqueue_unique,
    requeue,
)
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import declare_limits, next_due, release_claims
from scheduler.finish import fail
from scheduler.lease import Attempt, Lease
from scheduler.schedules import pause_schedules, plan_due, resume_schedules, run_schedule
from scheduler.statements import statement

AT = BEGAN + timedelta(seconds=7)
LATE = BEGAN + timedelta(days=1)
OTHER = Registry().kind("other", int)(WORK.handler)


def _never(attempt: Attempt, payload: dict[str, int]) -> None:
    raise AssertionError("no handler runs here")


PAPERS = Registry().kind("papers", dict[str, int])(_never)
THIRD = Registry().kind("third", int)(WORK.handler)

SCHEDULES = """
insert into scheduler.schedules (name, application, kind, queue, priority, payload, max_attempts,
    backoff_base, backoff_factor, backoff_cap, backoff_jitter, rule, timezone, missed, on_dead,
    declared, next_at, source, created_at, changed_at)
select name, 'app', kind, 'default', 1, '1', 2, 1, 2, 60, 0, 'every 60s', 'UTC', 'all', on_dead,
    declared, scheduler.now(), source, scheduler.now(), scheduler.now()
from (values
    ('d', 'third', 'stop', true, 'postgres'), ('e', 'job', 'stop', false, 'postgres'),
    ('c', 'job', 'stop', true, 'shop'), ('b', 'job', 'continue', true, 'postgres'),
    ('a', 'job', 'stop', true, 'postgres')
) as new (name, kind, on_dead, declared, source)
"""
# Of sources with caps, with places that are taken.
_SOURCES = (
    "insert into scheduler.sources (name, max_outstanding, outstanding)"
    " values ('shop', 9, 3), ('mall', 9, 7);"
    " update scheduler.tasks set source = 'shop', counted = id <> 6 where id in (1, 4, 5, 6);"
    " update scheduler.tasks set source = 'mall', counted = id = 2 where id in (2, 3);"
)
# From here on rows lie in another order than that of their ids.
_SHUFFLED = "update scheduler.tasks set queue = queue where id = 1;"


def _held(tasks: str) -> str:
    """These run."""
    return (
        "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,"
        " lease_owner = 'z/' || id, claimed_at = next_run_at,"
        f" lease_expires_at = next_run_at + interval '1 h' where id in ({tasks});"
    )


def _over(status: str, tasks: str) -> str:
    """These are over."""
    return (
        f"update scheduler.tasks set status = '{status}', attempts = 2, lease_token = 2,"
        " finished_at = next_run_at, last_error = 'it failed'"
        f" where id in ({tasks});"
    )


def _keyed(key: str, until: str, tasks: str) -> str:
    """These have a key."""
    return (
        f"update scheduler.tasks set unique_key = '{key}', unique_until = '{until}'"
        f" where id in ({tasks});"
    )


# Other than in `declared`, in every column.
_OTHER: dict[str, object] = {
    "kinds": "third",
    "queues": "other",
    "priorities": 2,
    "payloads": "2",
    "max_attempts": 3,
    "bases": 2.0,
    "factors": 3.0,
    "caps": 90.0,
    "jitters": 0.1,
    "rules": "every 90s",
    "timezones": "CET",
    "missed": "once",
    "on_dead": "continue",
}


second: Call = partial(clock.advance, by=timedelta(seconds=1))


def declared(
    application: str | None, names: list[str] | None = None, **schedules: dict[str, object]
) -> Call:
    """Declare these schedules, or by these names; each with what it has other than the rest."""
    usual = {
        "kinds": KIND,
        "queues": "default",
        "priorities": 1,
        "payloads": "1",
        "max_attempts": 2,
        "bases": 1.0,
        "factors": 2.0,
        "caps": 60.0,
        "jitters": 0.0,
        "rules": "every 60s",
        "timezones": "UTC",
        "missed": "all",
        "on_dead": "stop",
    }
    rows = [usual | changes for changes in schedules.values()]
    arrays = {column: [row[column] for row in rows] for column in usual}
    values = {"application": application, "names": names or list(schedules), **arrays}
    return lambda connection: connection.execute(statement("declare_schedules"), values).fetchall()


def planned(*schedules: tuple[str, dict[str, object]]) -> Call:
    """Plan an occurrence of each, due now; each with what the planner had read otherwise."""
    usual = {"rules": "every 60s", "timezones": "UTC", "read": BEGAN, "occurrences": BEGAN}
    rows = [usual | changes for _, changes in schedules]
    arrays: dict[str, object] = {column: [row[column] for row in rows] for column in usual}
    names = [name for name, _ in schedules]
    values = arrays | {"names": names, "next": [BEGAN + timedelta(seconds=60)] * len(names)}

    def plan(connection: Connection) -> list[tuple[int, str]]:
        rows = connection.execute(statement("plan_occurrences"), values).fetchall()
        return sorted((task, schedule) for task, schedule, *_ in rows)

    return plan


def asked(**changes: object) -> Call:
    """Enqueue under a key, without the client's own checks."""
    usual: dict[str, object] = {
        "kind": KIND,
        "queue": "default",
        "priority": 1,
        "payload": "1",
        "run_at": None,
        "delay": timedelta(),
        "max_attempts": 2,
        "base": 1.0,
        "factor": 2.0,
        "cap": 60.0,
        "jitter": 0.0,
        "key": "k",
        "until": "started",
        "period": None,
        "source": None,
    }
    values = usual | changes
    return lambda connection: connection.execute(statement("enqueue_unique"), values).fetchall()


def die(task: int) -> Call:
    """A task dies."""
    return sql(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
        f" finished_at = scheduler.now() where id = {task}"
    )


def now_next(*names: str, after: int = 0) -> Call:
    """The schedules' next occurrence is the present moment, or so many seconds after."""
    listed = ", ".join(f"'{name}'" for name in names)
    return sql(
        f"update scheduler.schedules set next_at = scheduler.now() + interval '{after} s'"
        f" where name in ({listed})"
    )


def due(*kinds: str, limited: Sequence[str] = ()) -> Call:
    """In how many seconds the next task of these kinds is due."""
    return lambda connection: next_due(connection, dict.fromkeys(kinds, LEASE), limited)


def found(after: str, limit: int) -> Call:
    """What there is to plan after this schedule, and in how many seconds there will be more."""
    page = {"after_time": BEGAN, "after_name": after, "limit": limit}
    return lambda connection: [
        row[:2] for row in connection.execute(statement("due_schedules"), page).fetchall()
    ]


def ids(name: str, *tasks: int) -> Call:
    """What a function for tasks returns, in its order."""
    values = {"tasks": list(tasks), "source": None}
    return lambda connection: [
        task for (task,) in connection.execute(statement(name), values).fetchall()
    ]


def several(*payloads: str) -> Call:
    """Enqueue these, without the client's own checks."""
    values: dict[str, object] = {
        "kind": "other",
        "queue": "default",
        "priority": 1,
        "payloads": list(payloads),
        "run_at": None,
        "delay": timedelta(),
        "max_attempts": 2,
        "base": 1.0,
        "factor": 2.0,
        "cap": 60.0,
        "jitter": 0.0,
        "source": None,
    }
    return lambda connection: connection.execute(statement("enqueue"), values).fetchall()


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
        rows=(_held("2, 3") + _over("completed", "4") + _SOURCES + _SHUFFLED),
    )
    yield told(
        "discard",
        "discard: what is dead and is named",
        [
            ids("discard", 5, 4, 2, 1),
            lambda c: discard(c, [1, 4]),
            lambda c: discard(c, [3]),
        ],
        tasks=6,
        rows=(_over("dead", "1, 2, 3, 5") + _over("completed", "4") + _SOURCES + _SHUFFLED),
    )
    yield told(
        "requeue",
        "requeue: what is dead and is named, and whose key nobody has",
        [
            ids("requeue", 2, 5, 4, 1),
            lambda c: requeue(c, [1, 4]),
            lambda c: requeue(c, [3, 6]),
        ],
        tasks=6,
        rows=(
            _over("dead", "1, 2, 3, 6")
            + _over("completed", "4")
            + _keyed("k", "started", "1")
            + _keyed("m", "period", "6")
            + _SHUFFLED
        ),
    )
    yield told(
        "requeue_live",
        "requeue: a key that another live task has",
        [
            lambda c: requeue(c, [1]),
            lambda c: requeue(c, [2]),
            lambda c: requeue(c, [3]),
            lambda c: requeue(c, [4]),
            lambda c: requeue(c, [5]),
            lambda c: requeue(c, [6]),
            lambda c: requeue(c, [7]),
            lambda c: requeue(c, [8]),
            lambda c: requeue(c, [9]),
        ],
        tasks=19,
        rows=(
            _over("dead", "1, 2, 3, 4, 5, 6, 7, 8, 9")
            + "".join(_keyed(f"k{n}", "finished", str(n)) for n in range(1, 10))
            + _keyed("k1", "started", "11")
            + _keyed("k2", "started", "12")
            + _held("12")
            + _keyed("k3", "started", "13")
            + "update scheduler.tasks set lease_token = 1 where id = 13;"
            + _keyed("k4", "finished", "14")
            + _keyed("k5", "finished", "15")
            + _held("15")
            + _keyed("k6", "finished", "16")
            + _over("completed", "16")
            + _keyed("k7", "period", "17")
            + _over("completed", "17")
            + _keyed("k9", "started", "18")
            + "update scheduler.tasks set status = 'cancelled', "
            "finished_at = next_run_at where id = 18;"
            + _keyed("k8", "finished", "10")
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
            _over("dead", "1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12")
            + _over("completed", "6")
            + _keyed("k1", "finished", "1, 2")
            + _keyed("k2", "finished", "3, 4")
            + _keyed("k3", "finished", "5, 6")
            + _keyed("k4", "finished", "7")
            + _keyed("k4", "started", "8")
            + _keyed("k5", "finished", "9, 10")
            + "update scheduler.tasks set kind = 'other' where id = 10;"
            + _keyed("k6", "finished", "11")
            + _keyed("k7", "finished", "12")
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
        "limits",
        "declare_limits: what differs is set",
        [
            lambda c: declare_limits(c, {"b": 2, "a": 1, "none": None}),
            lambda c: declare_limits(c, {"a": 1, "b": 3}),
            lambda c: declare_limits(c, {"a": None}),
            lambda c: declare_limits(c, {"a": None}),
            sql("select scheduler.declare_limits('{a,a}', '{1,2}')"),
            sql("select scheduler.declare_limits('{a}', '{1,2}')"),
        ],
    )
    yield told(
        "sources",
        "limit_source: what differs is set",
        [
            lambda c: limit_source(c, "shop", 5),
            lambda c: limit_source(c, "shop", 5),
            lambda c: limit_source(c, "shop", 0),
            lambda c: limit_source(c, "mall", 7),
            lambda c: limit_source(c, "shop", None),
            lambda c: limit_source(c, "shop", None),
            sql("select scheduler.limit_source(null, 1)"),
            sql("select scheduler.limit_source('', 1)"),
            sql("select scheduler.limit_source('shop', -1)"),
            sql("select scheduler.limit_source(repeat('x', 201), 1)"),
            sql("select scheduler.limit_source(repeat('x', 200), 1)"),
        ],
    )
    yield told(
        "restrict",
        "restrict_kind: who may enqueue a kind, and whose schedules stop",
        [
            lambda c: restrict_kind(c, "other", ["shop"]),
            lambda c: restrict_kind(c, KIND, ["postgres", "shop", "shop"]),
            lambda c: restrict_kind(c, KIND, ["shop", "postgres"]),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            lambda c: restrict_kind(c, KIND, ["shop", "mall"]),
            lambda c: enqueue(c, WORK, 1),
            lambda c: enqueue(c, OTHER, 1),
            lambda c: enqueue(c, THIRD, 1),
            lambda c: restrict_kind(c, KIND, []),
            lambda c: restrict_kind(c, "many", list("fbedca")),
            sql("insert into scheduler.kind_sources values ('two', 'b'), ('two', 'a')"),
            lambda c: restrict_kind(c, "two", ["a", "b"]),
            sql("select scheduler.restrict_kind(null, '{a}')"),
            sql("select scheduler.restrict_kind('', '{a}')"),
            sql("select scheduler.restrict_kind('job', null)"),
            sql("select scheduler.restrict_kind('job', '{a,null}')"),
            sql("select scheduler.restrict_kind('job', array[''])"),
        ],
        rows=SCHEDULES,
    )
    yield told(
        "pause",
        "pause and resume: what is named and not so yet",
        [
            lambda c: pause_schedules(c, ["c", "a", "nothing"]),
            second,
            lambda c: pause_schedules(c, ["a", "b"]),
            lambda c: resume_schedules(c, ["c", "a"]),
            lambda c: resume_schedules(c, ["a"]),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            lambda c: resume_schedules(c, ["b"]),
            lambda c: resume_schedules(c, ["a", "d"]),
            lambda c: pause_schedules(c, ["d"]),
            lambda c: resume_schedules(c, ["d"]),
            lambda c: restrict_kind(c, "third", ["shop"]),
            lambda c: resume_schedules(c, ["b", "d"]),
            sql("update scheduler.schedules set paused = false where name = 'b'"),
            lambda c: resume_schedules(c, ["b"]),
        ],
        rows=SCHEDULES,
    )
    yield told(
        "plan",
        "plan_occurrences: once, and only as the schedule stands",
        [
            planned(("a", {}), ("b", {"occurrences": None})),
            planned(("a", {})),
            planned(("c", {"rules": "every 61s"})),
            planned(("c", {"timezones": "CET"})),
            planned(("c", {"read": AT})),
            planned(("e", {})),
            lambda c: pause_schedules(c, ["d"]),
            planned(("d", {})),
            planned(("nothing", {})),
            planned(("d", {}), ("c", {})),
            now_next("a"),
            planned(("a", {})),
            planned(("a", {}), ("a", {})),
            now_next("a", "b", "c"),
            planned(
                ("c", {"occurrences": AT}), ("b", {"occurrences": AT}), ("a", {"occurrences": AT})
            ),
        ],
        rows=SCHEDULES,
    )
    yield told(
        "run",
        "run_schedule: one more, unless something is in its way",
        [
            lambda c: run_schedule(c, "nothing"),
            lambda c: run_schedule(c, "e"),
            lambda c: run_schedule(c, "a"),
            lambda c: run_schedule(c, "a"),
            lambda c: cancel(c, [101]),
            lambda c: run_schedule(c, "a"),
            second,
            lambda c: run_schedule(c, "a"),
            lambda c: run_schedule(c, "b"),
            die(101),
            lambda c: run_schedule(c, "a"),
            lambda c: discard(c, [101]),
            lambda c: cancel(c, [103]),
            lambda c: run_schedule(c, "a"),
            die(103),
            lambda c: run_schedule(c, "a"),
            die(104),
            lambda c: run_schedule(c, "b"),
            second,
            lambda c: run_schedule(c, "b"),
            lambda c: run_schedule(c, "d"),
            lambda c: restrict_kind(c, KIND, ["postgres"]),
            lambda c: run_schedule(c, "c"),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            lambda c: run_schedule(c, "c"),
        ],
        rows=SCHEDULES,
    )
    yield told(
        "declare",
        "declare_schedules: what differs is set, what is left out ends",
        [
            declared("app", a={}, b={}),
            second,
            declared("app", b={}, a={}),
            declared("app", b={}, a=dict(list(_OTHER.items())[:1])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:2])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:3])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:4])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:5])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:6])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:7])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:8])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:9])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:10])),
            second,
            declared("app", b={}, a=dict(list(_OTHER.items())[:11])),
            second,
            declared("app", b={}, a=dict(list(_OTHER.items())[:12])),
            declared("app", b={}, a=dict(list(_OTHER.items())[:13])),
            lambda c: pause_schedules(c, ["a"]),
            declared("app", b={}),
            second,
            declared("app", a=_OTHER, b={}),
            declared("other", c={}),
            declared("other", a={}, b={}),
            declared("app", a=_OTHER),
            declared("other", b={}, c={}),
            second,
            sql("update scheduler.schedules set source = 'shop' where name = 'a'"),
            declared("app", a=_OTHER),
            declared("app"),
            declared("app"),
            declared(None, a={}),
            declared("app", a={}, b={}, names=["a", "a"]),
            declared("app", a={"payloads": '{"password": 1}'}),
            lambda c: restrict_kind(c, KIND, ["shop"]),
            declared("app", a={}),
            sql("update scheduler.schedules set application = 'twice' where name = 'c'"),
            declared("app", d={"kinds": "third"}, c={"kinds": "third"}, b={"kinds": "third"}),
            declared("new", g={"kinds": "third"}, f={"kinds": "third"}),
            declared("new", g={"kinds": "other"}),
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
        "due",
        "due_schedules: those that are due and wait for nothing",
        [
            found("", 10),
            found("a", 10),
            found("a", 2),
            now_next("a", after=7),
            lambda c: pause_schedules(c, ["d"]),
            found("", 10),
            now_next("a"),
            lambda c: resume_schedules(c, ["d"]),
            second,
            now_next("a"),
            found("", 2),
            found("", 10),
            now_next("a", after=-1),
            lambda c: plan_due(c, 1),
            second,
            lambda c: plan_due(c, 10),
            lambda c: clock.advance(c, timedelta(seconds=60)),
            lambda c: plan_due(c, 10),
            now_next("b"),
            found("", 10),
            now_next("b", after=58),
            die(101),
            die(102),
            lambda c: cancel(c, [103]),
            lambda c: plan_due(c, 10),
            lambda c: cancel(c, [105, 106]),
            lambda c: pause_schedules(c, ["b"]),
            lambda c: clock.advance(c, timedelta(seconds=60)),
            lambda c: plan_due(c, 10),
            now_next("d", "e"),
            lambda c: plan_due(c, 10),
            lambda c: pause_schedules(c, ["a"]),
            lambda c: plan_due(c, 10),
            lambda c: discard(c, [101]),
            lambda c: resume_schedules(c, ["a", "b"]),
            lambda c: plan_due(c, 1),
            lambda c: pause_schedules(c, ["a"]),
            now_next("a", after=5),
            lambda c: plan_due(c, 10),
            now_next("e", after=4),
            lambda c: plan_due(c, 10),
            lambda c: cancel(c, [105]),
            now_next("c", after=6),
            lambda c: plan_due(c, 10),
        ],
        rows=SCHEDULES,
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
