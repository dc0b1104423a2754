"""Calls of operators that wait for rows: each must find them as they are then, and lock them in the
one order that all of them have, or two of them would deadlock.

Tables are read in the order in which their rows lie, which is not that of their names here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import psycopg
from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clauses.actors import plainly
from chaos.explore.clauses.calls import SCHEDULES, declared, planned
from chaos.explore.clauses.setting import Act, hour, known, sql, take
from chaos.explore.crash_actors import WORK
from chaos.explore.program import Endings
from chaos.explore.run import Bounds
from chaos.explore.scheduler_actors import KIND
from chaos.explore.scheduler_programs import Known, ended_well
from scheduler import AccessError, Unique, cancel, discard, enqueue_unique, requeue
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import declare_limits
from scheduler.finish import fail
from scheduler.lease import Lease
from scheduler.schedules import pause_schedules, resume_schedules, run_schedule

# Tasks 1 and 2 are the most urgent, and die.
_URGENT = "update scheduler.tasks set priority = 3 where id < 3;"
_DEAD: tuple[Act, ...] = (
    take("z/1", 2),
    partial(fail, leases=[Lease(1, 1, "z/1"), Lease(2, 1, "z/1")], errors=["no"] * 2),
    hour,
    take("z/2", 2),
    partial(fail, leases=[Lease(1, 2, "z/2"), Lease(2, 2, "z/2")], errors=["no"] * 2),
)
# The first of two rows is written anew until it lies behind the second. A new version mostly goes
# to the end, but also to where an old one was.
_LIES_BEHIND = """
do $$ begin
    for n in 1..1000 loop
        exit when (select ctid from scheduler.{table} where {column} = {first})
            > (select ctid from scheduler.{table} where {column} = {second});
        update scheduler.{table} set queue = queue where {column} = {first};
    end loop;
end $$
"""
_TASKS_BACKWARDS = sql(_LIES_BEHIND.format(table="tasks", column="id", first=1, second=2))
_SCHEDULES_BACKWARDS = sql(
    _LIES_BEHIND.format(table="schedules", column="name", first="'a'", second="'b'")
)
_TWO_SOURCES = (
    "insert into scheduler.sources (name, max_outstanding, outstanding)"
    " values ('shop', 9, 2), ('mall', 9, 2);"
    " update scheduler.tasks set counted = true,"
    " source = case when id in (1, 3) then 'mall' else 'shop' end;"
)


def _holder(connection: Connection, row: str) -> None:
    """Hold a row for a while, as a transaction may that has more to do."""
    connection.execute("begin")
    connection.execute(f"select from scheduler.{row} for update".encode())
    connection.execute("commit")


def _by_index(connection: Connection) -> None:
    connection.execute(
        "select set_config('enable_seqscan', 'off', false),"
        " set_config('enable_bitmapscan', 'off', false)"
    )


def _after(how: Act, call: Act) -> Act:
    def both(connection: Connection) -> object:
        how(connection)
        return call(connection)

    return both


def _in_line(
    name: str,
    about: str,
    one: Act,
    other: Act,
    row: str,
    *,
    tasks: int = 0,
    rows: str = "",
    before: Sequence[Act] = (),
) -> tuple[str, Known]:
    """Two that want the same rows, while somebody holds one of these."""
    name, made = known(
        f"order_{name}",
        about,
        {"a": one, "b": other, "c": partial(_holder, row=row)},
        tasks=tasks,
        rows=rows,
        before=before,
    )
    # Who waits is no preemption; that the holder does not end at once is one.
    return name, replace(made, bounds=Bounds(preemptions=1))


_PAPER = (
    "select name, outstanding, truth from (select name, outstanding, (select count(*) from"
    " scheduler.tasks where source = name and counted) as truth from scheduler.sources) as source"
    " where outstanding <> truth + (name = 'mall')::int"
)


def _for_a_key(name: str, about: str, most: int | None) -> tuple[str, Known]:
    """Three clients; `most`: how many tasks their source may have."""

    def asks(connection: Connection) -> int:
        answer = enqueue_unique(connection, WORK, 1, Unique("k", "finished"))
        return answer.task

    def gives_up(connection: Connection) -> None:
        connection.execute("begin")
        asks(connection)
        connection.execute("rollback")

    def ended(connection: Connection, endings: Endings) -> None:
        ended_well(connection, endings)
        found = connection.execute("select array_agg(id) from scheduler.tasks").fetchone()
        assert found == ([endings["a"].returned],), f"key-once: {found} for {endings['a']}"
        assert endings["b"].returned == endings["a"].returned, f"key-once: two tasks: {endings}"
        wrong = connection.execute(_PAPER).fetchone()
        assert wrong is None, "limit-held: {} has {} tasks on paper, {} in truth".format(
            *(wrong or ())
        )

    name, made = known(
        name,
        f"two clients enqueue under one key while a third does, and gives up; {about}",
        {"a": asks, "b": asks, "c": gives_up},
        tasks=0,
        # The other source has a place taken by a task that is not there.
        rows="insert into scheduler.sources (name, outstanding) values ('mall', 1);",
        before=[partial(limit_source, source="postgres", most=most)],
    )
    return name, replace(made, program=replace(made.program, at_end=ended))


_UNLAWFUL = (
    "select name from scheduler.schedules where declared and not paused and kind = 'job'"
    " and source <> 'shop'"
)


def _restricted(name: str, call: Act, rows: str) -> tuple[str, Known]:
    """A kind is restricted while its schedules are being started."""

    def starts(connection: Connection) -> None:
        try:
            call(connection)
        except (AccessError, psycopg.DatabaseError) as error:
            if getattr(error, "sqlstate", "LP003") != "LP003":
                raise

    def ended(connection: Connection, endings: Endings) -> None:
        ended_well(connection, endings)
        found = connection.execute(_UNLAWFUL).fetchall()
        assert not found, f"schedules {found} plan what their source may not enqueue"

    name, made = known(
        f"restrict_{name}",
        f"{name}: a kind is restricted meanwhile",
        {"a": starts, "b": partial(restrict_kind, kind=KIND, sources=["shop"])},
        tasks=0,
        rows=rows,
    )
    return name, replace(made, program=replace(made.program, at_end=ended))


def _restricted_twice() -> tuple[str, Known]:
    """Two restrictions of a kind: one of them holds, not the sum of both."""

    def ended(connection: Connection, endings: Endings) -> None:
        ended_well(connection, endings)
        found = connection.execute("select source from scheduler.kind_sources").fetchall()
        assert len(found) == 1, f"two restrictions came to {found}"

    name, made = known(
        "restrict_twice",
        "two operators restrict a kind",
        {
            source: partial(restrict_kind, kind=KIND, sources=[source])
            for source in ("shop", "mall")
        },
        tasks=0,
    )
    return name, replace(made, program=replace(made.program, at_end=ended))


def _run_twice() -> tuple[str, Known]:
    """What a planner or an operator has just made is found by the next one, and not made again."""

    def ended(connection: Connection, endings: Endings) -> None:
        ended_well(connection, endings)
        found = connection.execute("select id from scheduler.tasks").fetchall()
        assert len(found) == 1, f"two runs at once made tasks {found}"

    run: Act = partial(run_schedule, name="a")
    name, made = known(
        "run_twice",
        "two operators run a schedule at once",
        {"a": run, "b": _after(partial(clock.advance, by=timedelta(seconds=1)), run)},
        tasks=0,
        rows=SCHEDULES,
    )
    return name, replace(made, program=replace(made.program, at_end=ended))


# The audit is never cleared: this is where it ended before.
_AUDITED = (
    "create sequence if not exists explorer_audited minvalue 0;"
    " select setval('explorer_audited', coalesce(max(id), 0)) from scheduler.audit"
)


def _done_once(name: str, about: str, call: Act, audited: str, rows: str) -> tuple[str, Known]:
    """Of two that want the same the second finds it done: the audit has it once."""

    def ended(connection: Connection, endings: Endings) -> None:
        ended_well(connection, endings)
        found = connection.execute(
            "select string_agg(coalesce(schedule, kind), ' ' order by schedule)"
            " from scheduler.audit"
            " where id > (select last_value from explorer_audited)"
        ).fetchone()
        assert found == (audited,), f"the audit of what was done once has {found}"

    name, made = known(name, about, {"a": call, "b": call}, tasks=0, rows=f"{rows}; {_AUDITED}")
    return name, replace(made, program=replace(made.program, at_end=ended))


def _limited_as_it_is() -> tuple[str, Known]:
    """Whoever declares what is so already waits for nobody who has the limit's record."""
    call: Act = partial(declare_limits, limits={"a": 1})
    return known(
        "limit_stands",
        "a worker declares a limit as it is while somebody else has it locked",
        {"a": call, "b": partial(_holder, row="kind_limits where kind = 'a'")},
        tasks=0,
        rows="insert into scheduler.kind_limits (kind, max_running) values ('a', 1)",
    )


def programs() -> Iterator[tuple[str, Known]]:
    """All of them, by name."""
    two: Act = partial(cancel, tasks=[1, 2])
    yield _in_line(
        "cancel",
        "two operators cancel the same two tasks",
        _after(plainly, two),
        _after(_by_index, two),
        "tasks where id = 1",
        tasks=2,
        before=[_TASKS_BACKWARDS],
    )
    yield _in_line(
        "dead",
        "of two dead tasks that are put back others are given up",
        _after(plainly, partial(requeue, tasks=[1, 2])),
        _after(plainly, partial(discard, tasks=[1, 2])),
        "tasks where id = 1",
        tasks=2,
        rows=_URGENT,
        before=[*_DEAD, _TASKS_BACKWARDS],
    )
    yield _in_line(
        "sources",
        "tasks of two sources with caps are given up while others are cancelled",
        partial(discard, tasks=[1, 2]),
        partial(cancel, tasks=[3, 4]),
        "sources where name = 'mall'",
        tasks=4,
        rows=_URGENT + _TWO_SOURCES,
        before=_DEAD,
    )
    yield _in_line(
        "uncounted",
        "what frees no place waits for nobody who has its source's record",
        partial(cancel, tasks=[3, 4]),
        partial(discard, tasks=[1, 2]),
        "sources where name = 'mall'",
        tasks=4,
        rows=f"{_URGENT} update scheduler.tasks set counted = id in (1, 4),"
        " source = case id when 1 then 'store' when 4 then 'shop' else 'mall' end;"
        " insert into scheduler.sources (name, outstanding)"
        " values ('mall', 1), ('shop', 1), ('store', 1);",
        before=_DEAD,
    )
    schedules: dict[str, Act] = {
        "pause": partial(pause_schedules, names=["a", "b"]),
        "resume": partial(resume_schedules, names=["a", "b"]),
        "declare": declared("app"),  # ends them all
    }
    for name, other in (("pause", "resume"), ("resume", "pause"), ("declare", "pause")):
        yield _in_line(
            f"{name}_{other}",
            f"{name} and {other} of the same two schedules",
            _after(plainly, schedules[name]),
            _after(_by_index, schedules[other]),
            "schedules where name = 'a'",
            rows=SCHEDULES,
            before=[_SCHEDULES_BACKWARDS],
        )
    yield _in_line(
        "takeover",
        "an application takes a schedule over, while that is paused",
        declared("app", b={}, a={}),
        schedules["pause"],
        "schedules where name = 'a'",
        rows=f"{SCHEDULES}; update scheduler.schedules set application = 'other', declared = false"
        " where name = 'a'",
        before=[_SCHEDULES_BACKWARDS],
    )
    yield _restricted("declare", declared("app", a={}, b={}), "")
    yield _restricted(
        "resume", schedules["resume"], f"{SCHEDULES}; update scheduler.schedules set paused = true"
    )
    yield _restricted_twice()
    yield _done_once(
        "pause_twice",
        "two operators pause the same two schedules",
        partial(pause_schedules, names=["a", "b"]),
        "a b",
        SCHEDULES,
    )
    yield _done_once(
        "limit_twice",
        "two workers declare the same new limit",
        partial(declare_limits, limits={"a": 1}),
        "a",
        "",
    )
    yield _limited_as_it_is()
    yield known(
        "plan_twice",
        "two planners that have read the same pass over what the other has",
        {name: planned(("a", {})) for name in ("a", "b")},
        tasks=0,
        rows=SCHEDULES,
    )
    yield _for_a_key("keys_capped", "with a cap", 5)
    yield _for_a_key("keys_free", "without a cap", None)
    yield _run_twice()
    yield known(
        "requeue_key",
        "a dead task is put back while its key is being enqueued",
        {
            "a": partial(requeue, tasks=[1]),
            "b": lambda c: enqueue_unique(c, WORK, 1, Unique("k", "finished")).created,
        },
        tasks=2,
        rows=f"{_URGENT} update scheduler.tasks set unique_key = 'k', unique_until = 'finished'"
        " where id = 1;",
        before=_DEAD,
    )
