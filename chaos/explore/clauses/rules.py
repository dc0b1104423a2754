"""What the functions for schedules, limits and rights answer and change, call by call.

For the clauses that a life of tasks would meet too seldom: a schedule that is declared with one
thing changed, a client that a restriction leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from chaos.explore import clock
from chaos.explore.clauses.calls import (
    AT,
    OTHER,
    SCHEDULES,
    THIRD,
    declared,
    die,
    found,
    now_next,
    otherwise,
    planned,
    second,
)
from chaos.explore.clauses.setting import sql
from chaos.explore.clauses.told import told
from chaos.explore.crash_actors import WORK
from chaos.explore.scheduler_actors import KIND
from chaos.explore.scheduler_programs import Known
from scheduler import (
    cancel,
    discard,
    enqueue,
)
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import declare_limits
from scheduler.schedules import pause_schedules, plan_due, resume_schedules, run_schedule


def programs() -> Iterator[tuple[str, Known]]:
    """All of them, by name."""
    yield told(
        "limits",
        "declare_limits: what differs is set",
        [
            lambda c: declare_limits(c, {"b": 2, "a": 1, "none": None}),
            lambda c: declare_limits(c, {"a": 1, "b": 3}),
            lambda c: declare_limits(c, {"a": 3}),
            lambda c: declare_limits(c, {"a": 1}),
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
            declared("app", b={}, a=otherwise(1)),
            declared("app", b={}, a=otherwise(2)),
            declared("app", b={}, a=otherwise(3)),
            declared("app", b={}, a=otherwise(4)),
            declared("app", b={}, a=otherwise(5)),
            declared("app", b={}, a=otherwise(6)),
            declared("app", b={}, a=otherwise(7)),
            declared("app", b={}, a=otherwise(8)),
            declared("app", b={}, a=otherwise(9)),
            declared("app", b={}, a=otherwise(10)),
            second,
            declared("app", b={}, a=otherwise(11)),
            second,
            declared("app", b={}, a=otherwise(12)),
            declared("app", b={}, a=otherwise(13)),
            lambda c: pause_schedules(c, ["a"]),
            declared("app", b={}),
            second,
            declared("app", a=otherwise(), b={}),
            declared("other", c={}),
            declared("other", a={}, b={}),
            declared("app", a=otherwise()),
            declared("other", b={}, c={}),
            second,
            sql("update scheduler.schedules set source = 'shop' where name = 'a'"),
            declared("app", a=otherwise()),
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
    # The rows lie there from the last to the first, and none has moved: so whether an order that is
    # missing shows does not depend on when the server tidies up.
    yield told(
        "foreign",
        "declare_schedules: the first of several that are another's is told",
        [declared("other", d={}, b={}, a={}, c={})],
        rows=SCHEDULES,
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
