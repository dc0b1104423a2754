"""Recurring tasks in the database: each due time is planned once, whoever plans, whatever dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier, Lock, Thread
from typing import Any

import psycopg
import pytest
from psycopg import Connection

import scheduler.upkeep
from chaos.explore.clock import START
from chaos.life.clock import Clock
from scheduler import (
    AccessError,
    Attempt,
    Cron,
    Every,
    PayloadError,
    Priority,
    Registry,
    RetryPolicy,
    ScheduleError,
    cancel,
    declare_schedules,
    discard,
    enqueue_many,
    list_schedules,
    pause_schedules,
    requeue,
    resume_schedules,
)
from scheduler.access import restrict_kind
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail, release
from scheduler.lease import reclaim
from scheduler.recurring import Rule
from scheduler.schedules import Standing, page, plan_due
from scheduler.statements import fetch
from tests.scheduler.working import over, process, row, running, statuses, worker
from tests.waiting import wait_for

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=60)
LIMIT = 50
RETRY = RetryPolicy(max_attempts=2, base=timedelta(seconds=10))


def app(*schedules: str, application: str = "default", **settings: Any) -> Registry:
    """An application with a kind `tick` and, for each name, a schedule of it: each minute, unless
    its rule is given."""
    registry = Registry(application=application)

    @registry.kind("tick", object, lease=LEASE, retry=RETRY)
    def tick(attempt: Attempt, payload: object) -> None:
        """Does nothing."""

    given = {"payload": {"n": 1}, "rule": Every(MINUTE), **settings}
    for name in schedules:
        registry.schedule(name, tick, **given)
    return registry


def planned(db: Connection) -> list[tuple[datetime, str]]:
    """The occurrences so far, oldest first, and how each stands."""
    return db.execute(
        "select occurrence, status from scheduler.tasks where schedule is not null"
        " order by occurrence"
    ).fetchall()


def times(db: Connection) -> list[datetime]:
    """The due times of the occurrences so far."""
    return [occurrence for occurrence, _ in planned(db)]


def take(db: Connection) -> Attempt:
    """Claim the one occurrence that is due."""
    [attempt] = claim(db, new_owner("w"), {"tick": LEASE}, 2, 0.0)
    return attempt


def run(db: Connection) -> None:
    """Claim and complete the one occurrence that is due."""
    complete(db, [take(db).lease])


def die(db: Connection, clock: Clock) -> int:
    """Let the occurrence that is due fail until it is dead."""
    for _ in range(RETRY.max_attempts):
        attempt = take(db)
        fail(db, [attempt.lease], ["no"])
        clock.advance(timedelta(seconds=10))
    return attempt.task


def standing(db: Connection, name: str = "one") -> Standing:
    """The schedule of this name as it stands."""
    [found] = [it for it in list_schedules(db) if it.name == name]
    return found


def audited(db: Connection) -> list[tuple[str, str]]:
    """What was done to which schedule."""
    return db.execute(
        "select action, schedule from scheduler.audit where schedule is not null order by id"
    ).fetchall()


# How they stand.


def test_a_schedule_stands_as_its_own_tasks_do(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("two", on_dead="continue"))
    db.execute("update scheduler.schedules set source = 'shop', kind = 'tock' where name = 'two'")
    declare_schedules(db, app("one", application="another"))
    made: list[int] = []
    for name, minutes, status in (
        ("two", 0, "completed"),
        ("two", 1, "dead"),
        ("two", 9, "pending"),
        ("one", 0, "completed"),
        ("one", 1, "dead"),
        ("one", 3, "completed"),
        ("one", 2, "dead"),
    ):
        [(task,)] = db.execute(
            "insert into scheduler.tasks (kind, payload, next_run_at, max_attempts, attempts,"
            " lease_token, backoff_base, backoff_factor, backoff_cap, backoff_jitter, schedule,"
            " occurrence, status, last_error, enqueued_at, finished_at)"
            " select 'tick', '1', at, 2, case status when 'pending' then 0 else 2 end, 2, 1, 1, 1,"
            " 0, name, at, status, case status when 'dead' then 'no' end, at,"
            " case when status <> 'pending' then at end"
            " from (values (%s, %s::timestamptz, %s)) as run (name, at, status) returning id",
            [name, START + minutes * MINUTE, status],
        ).fetchall()
        made.append(task)
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    assert [(it.name, it.last_occurrence, it.live_task, it.dead_task) for it in page(db)] == [
        ("one", START + 3 * MINUTE, None, made[4]),
        ("two", START + 9 * MINUTE, made[2], None),
    ]

    def names(**asked: Any) -> list[str]:
        return [it.name for it in page(db, **asked)]

    assert names(limit=1) == names(name="one") == names(source="postgres") == ["one"]
    assert names(after="one") == names(kinds=["tock", "tack"]) == ["two"]
    assert names(kinds=["tick"], source="shop") == []


# Planning.


def test_an_occurrence_is_a_task_of_the_schedules_kind_and_payload(
    db: Connection, clock: Clock
) -> None:
    db.execute("insert into scheduler.sources values (session_user, 0)")  # no room for any other
    declare_schedules(db, app("one", priority=Priority.HIGH, payload=[1, "x"]))
    clock.advance(timedelta(seconds=90))
    assert plan_due(db, LIMIT) == 30.0
    [(task,)] = db.execute("select id from scheduler.tasks").fetchall()
    made = row(db, task)
    expected = {
        "kind": "tick",
        "queue": "default",
        "priority": 2,
        "payload": [1, "x"],
        "status": "pending",
        "schedule": "one",
        "occurrence": START + MINUTE,
        "next_run_at": START + MINUTE,
        "max_attempts": 2,
        "backoff_base": 10.0,
        "source": "postgres",
        "counted": False,
        "enqueued_at": clock.now,
    }
    assert {name: made[name] for name in expected} == expected
    attempt = take(db)
    assert (attempt.schedule, attempt.occurrence) == ("one", START + MINUTE)


def test_a_due_time_is_planned_when_it_has_come_and_not_before(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one", rule=Cron("30 12 * * *")))
    assert plan_due(db, LIMIT) == 1800.0
    clock.advance(30 * MINUTE - timedelta(microseconds=1))
    assert plan_due(db, LIMIT) == pytest.approx(0.000001)
    assert times(db) == []
    clock.advance(timedelta(microseconds=1))
    assert plan_due(db, LIMIT) == 86_400.0
    assert times(db) == [START + 30 * MINUTE]


def test_nothing_is_planned_while_an_occurrence_waits_or_runs(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("one"))
    plan_due(db, LIMIT)
    clock.advance(5 * MINUTE)
    assert plan_due(db, LIMIT) is None
    attempt = take(db)
    plan_due(db, LIMIT)
    assert times(db) == [START]
    complete(db, [attempt.lease])
    plan_due(db, LIMIT)
    assert times(db) == [START, START + 5 * MINUTE]


@pytest.mark.parametrize(
    ("missed", "rule", "expected"),
    [
        ("once", Every(HOUR), [3]),
        ("skip", Every(HOUR), []),
        ("skip", Every(30 * MINUTE), [3.5]),
        ("all", Every(HOUR), [1, 2, 3]),
    ],
)
def test_what_was_missed_is_made_up_for_as_the_schedule_says(
    db: Connection, clock: Clock, missed: str, rule: Rule, expected: Sequence[float]
) -> None:
    clock.advance(MINUTE)
    declare_schedules(db, app("one", rule=rule, missed=missed))
    clock.advance(210 * MINUTE - MINUTE)
    for _ in range(6):
        plan_due(db, LIMIT)
        if statuses(db).get("pending"):
            run(db)
    assert times(db) == [START + hours * HOUR for hours in expected]
    clock.advance(30 * MINUTE)
    plan_due(db, LIMIT)
    assert times(db)[-1] == START + 4 * HOUR


def test_a_clock_that_goes_back_plans_nothing_again(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("one"))
    for step in (0, 1, 1, -2, 1, 1, 1):
        clock.advance(step * MINUTE)
        plan_due(db, LIMIT)
        if statuses(db).get("pending"):
            run(db)
    assert times(db) == [START + n * MINUTE for n in range(4)]


def test_a_due_time_that_comes_up_again_after_the_clock_went_back_is_planned_once(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one"))
    plan_due(db, LIMIT)
    run(db)
    clock.advance(-MINUTE)
    pause_schedules(db, ["one"])
    resume_schedules(db, ["one"])  # which begins at the time that the clock shows now
    plan_due(db, LIMIT)
    run(db)
    clock.advance(MINUTE)
    plan_due(db, LIMIT)
    assert planned(db) == [(START - MINUTE, "completed"), (START, "completed")]
    assert standing(db).next_at == START + MINUTE


def test_after_a_leap_of_the_clock_by_mistake_the_schedule_can_be_set_going_again(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one"))
    clock.advance(timedelta(days=3000))
    plan_due(db, LIMIT)
    clock.advance(-timedelta(days=3000))
    plan_due(db, LIMIT)
    live = standing(db).live_task
    assert live is not None
    cancel(db, [live])
    pause_schedules(db, ["one"])
    resume_schedules(db, ["one"])
    plan_due(db, LIMIT)
    assert (START, "pending") in planned(db)


# How occurrences end.


@pytest.mark.parametrize("settle", [requeue, discard])
def test_a_dead_occurrence_stops_its_schedule_until_it_is_requeued_or_discarded(
    db: Connection, clock: Clock, settle: Callable[[Connection, list[int]], list[int]]
) -> None:
    declare_schedules(db, app("one"))
    plan_due(db, LIMIT)
    dead = die(db, clock)
    clock.advance(5 * MINUTE)
    assert plan_due(db, LIMIT) is None
    assert planned(db) == [(START, "dead")]
    assert standing(db).state == f"stopped by dead letter {dead}"
    settle(db, [dead])
    assert standing(db).state == "active"
    if settle is requeue:
        again = take(db)
        assert (again.task, again.occurrence) == (dead, START)
        complete(db, [again.lease])
    plan_due(db, LIMIT)
    assert times(db) == [START, START + 5 * MINUTE]


def test_a_schedule_may_go_on_past_a_dead_occurrence_which_may_be_requeued_beside_the_next(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one", on_dead="continue"))
    plan_due(db, LIMIT)
    dead = die(db, clock)
    clock.advance(MINUTE)
    plan_due(db, LIMIT)
    assert planned(db) == [(START, "dead"), (START + MINUTE, "pending")]
    assert standing(db).state == "active"
    requeue(db, [dead])
    both = claim(db, new_owner("w"), {"tick": LEASE}, 5, 0.0)
    assert {attempt.occurrence for attempt in both} == {START, START + MINUTE}


def test_each_attempt_of_an_occurrence_knows_its_due_time_until_the_occurrence_is_over(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one"))
    plan_due(db, LIMIT)
    release(db, [take(db).lease])
    fail(db, [take(db).lease], ["no"])
    clock.advance(2 * MINUTE)
    attempt = take(db)
    assert (attempt.number, attempt.schedule, attempt.occurrence) == (2, "one", START)
    plan_due(db, LIMIT)
    assert times(db) == [START]
    clock.advance(2 * LEASE)
    [reclaimed] = reclaim(db, 10)
    assert reclaimed.status == "dead"  # its last attempt


def test_a_cancelled_occurrence_is_over_and_the_next_is_planned(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one"))
    plan_due(db, LIMIT)
    cancel(db, [take(db).task])
    clock.advance(MINUTE)
    plan_due(db, LIMIT)
    assert planned(db) == [(START, "cancelled"), (START + MINUTE, "pending")]


# Many planners, and planners that die.


def test_two_planners_at_once_plan_each_due_time_once(
    db: Connection, dsn: str, clock: Clock
) -> None:
    names = [f"s{n}" for n in range(20)]
    declare_schedules(db, app(*names))
    rounds, meet = 8, Barrier(3)

    def planner() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(rounds):
                meet.wait(30)
                while plan_due(connection, 7) == 0.0:
                    pass
                meet.wait(30)

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(planner) for _ in range(2)]
        for _ in range(rounds):
            meet.wait(30)
            meet.wait(30)
            attempts = claim(db, new_owner("w"), {"tick": LEASE}, 100, 0.0)
            assert sorted(str(attempt.schedule) for attempt in attempts) == sorted(names)
            assert {attempt.occurrence for attempt in attempts} == {clock.now}
            complete(db, [attempt.lease for attempt in attempts])
            clock.advance(MINUTE)
        for end in ends:
            end.result(30)
    assert len(times(db)) == rounds * len(names)


def stale(db: Connection) -> Callable[[], list[Any]]:
    """A planner that has computed what to plan for the one due schedule; it does so when called."""
    page = {"after_time": datetime(1, 1, 1, tzinfo=UTC), "after_name": "", "limit": 5}
    [(_, name, next_at, rule, zone, _, now)] = fetch(db, "due_schedules", page)
    values = {
        "names": [name],
        "rules": [rule],
        "timezones": [zone],
        "read": [next_at],
        "occurrences": [now],
        "next": [now + MINUTE],
    }
    return lambda: fetch(db, "plan_occurrences", values)


def overtaken(db: Connection, clock: Clock) -> None:
    """Another planner plans; the occurrence runs, and the next one too."""
    for _ in range(2):
        plan_due(db, LIMIT)
        run(db)
        clock.advance(MINUTE)


@pytest.mark.parametrize(
    "meanwhile",
    [
        overtaken,
        lambda db, clock: pause_schedules(db, ["one"]),
        lambda db, clock: declare_schedules(db, app()),
        lambda db, clock: declare_schedules(db, app("one", rule=Cron("0 0 1 1 *"))),
        lambda db, clock: declare_schedules(db, app("one", rule=Cron("* * * * *", "Asia/Tokyo"))),
    ],
    ids=["overtaken", "paused", "undeclared", "rule", "zone"],
)
def test_a_planner_whose_reading_is_out_of_date_plans_nothing(
    db: Connection, clock: Clock, meanwhile: Callable[[Connection, Clock], object]
) -> None:
    declare_schedules(db, app("one", rule=Cron("* * * * *")))
    late = stale(db)
    meanwhile(db, clock)
    before = (planned(db), standing(db))
    assert late() == []
    assert (planned(db), standing(db)) == before


def test_a_planner_passes_by_what_another_is_planning(
    db: Connection, dsn: str, clock: Clock
) -> None:
    declare_schedules(db, app("one", "two"))
    db.execute("set lock_timeout = '2s'")
    with psycopg.connect(dsn) as other:
        other.execute("select from scheduler.schedules where name = 'one' for update")
        plan_due(db, LIMIT)
        assert db.execute("select schedule from scheduler.tasks").fetchall() == [("two",)]
    plan_due(db, LIMIT)
    assert len(times(db)) == 2


KILLED = """
import os, sys
import psycopg
from scheduler.schedules import plan_due
connection = psycopg.connect(sys.argv[1], autocommit=sys.argv[2] == "after")
plan_due(connection, 50)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_planner_killed_before_or_after_its_commit_leaves_each_due_time_to_run_once(
    db: Connection, dsn: str, clock: Clock, when: str
) -> None:
    registry = app("one")
    declare_schedules(db, registry)
    with process(KILLED, dsn, when) as child:
        assert child.wait(60) == -9
    assert len(times(db)) == (1 if when == "after" else 0)
    with running(worker(registry, dsn)):
        wait_for(lambda: planned(db) == [(START, "completed")], "the occurrence to be run")
    assert standing(db).next_at == START + MINUTE


def test_what_cannot_be_read_here_is_said_and_does_not_hold_up_the_others(
    db: Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    declare_schedules(db, app(*(f"a{n}" for n in range(4)), "last"))
    db.execute("update scheduler.schedules set rule = 'hourly' where name in ('a0', 'a1')")
    db.execute("update scheduler.schedules set rule = 'cron * * * *' where name = 'a2'")
    db.execute(
        "update scheduler.schedules set rule = 'cron * * * * *', timezone = 'Mars/Base'"
        " where name = 'a3'"
    )
    with caplog.at_level(logging.ERROR, logger="scheduler"):
        assert plan_due(db, 2) == 60.0
    assert db.execute("select schedule from scheduler.tasks").fetchall() == [("last",)]
    assert [record.message.split(" error")[0] for record in caplog.records] == [
        f"schedule-unreadable schedule=a{n}" for n in range(4)
    ]
    assert "there is no time zone 'Mars/Base'" in caplog.text


def test_a_page_at_a_time_is_planned_and_more_is_announced(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("a", "b", "c"))
    assert plan_due(db, 2) == 0.0
    assert len(times(db)) == 2
    assert plan_due(db, 2) == 60.0
    assert len(times(db)) == 3


# Declaring.


def test_many_that_declare_at_once_declare_once(db: Connection, dsn: str) -> None:
    meet = Barrier(8)

    def declare(_: int) -> dict[str, str]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            meet.wait(30)
            return declare_schedules(connection, app("one", "two"))

    with ThreadPoolExecutor(8) as pool:
        changes = [*pool.map(declare, range(8))]
    assert [change for change in changes if change] == [{"one": "declare", "two": "declare"}]
    assert audited(db) == [("declare", "one"), ("declare", "two")]


def test_many_that_declare_differently_at_once_do_not_deadlock(db: Connection, dsn: str) -> None:
    def declare(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for turn in range(5):
                declare_schedules(connection, app(*"abcdef"[(number + turn) % 4 :]))
                pause_schedules(connection, list("fedcba"))
                resume_schedules(connection, list("cdefab"))

    with ThreadPoolExecutor(6) as pool:
        [*pool.map(declare, range(6))]


def test_what_is_declared_unchanged_is_not_written(db: Connection, clock: Clock) -> None:
    registry = app("one", payload={"b": 1, "a": 2.5})
    declare_schedules(db, registry)
    before = db.execute("select xmin from scheduler.schedules").fetchall()
    clock.advance(HOUR)
    assert declare_schedules(db, registry) == {}
    assert db.execute("select xmin from scheduler.schedules").fetchall() == before


def test_a_schedule_no_longer_declared_is_kept_plans_nothing_and_goes_on_from_its_return(
    db: Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    declare_schedules(db, app("one", "two", missed="all"))
    plan_due(db, LIMIT)
    with caplog.at_level(logging.WARNING, logger="scheduler"):
        assert declare_schedules(db, app("two", missed="all")) == {"one": "undeclare"}
    assert "schedules-undeclared application=default schedules=one " in caplog.text
    assert standing(db).state == "not declared"
    assert standing(db).last_occurrence == START
    for attempt in claim(db, new_owner("w"), {"tick": LEASE}, 2, 0.0):
        complete(db, [attempt.lease])
    clock.advance(3 * MINUTE)
    plan_due(db, LIMIT)
    assert len(times(db)) == 3  # two at the start, and one of the other
    assert declare_schedules(db, app("one", "two", missed="all")) == {"one": "declare"}
    plan_due(db, LIMIT)
    assert times(db).count(START + 3 * MINUTE) == 1  # not the minutes in between
    assert declare_schedules(db, app()) == {"one": "undeclare", "two": "undeclare"}
    assert [action for action, _ in audited(db)].count("undeclare") == 3


def test_a_change_keeps_the_next_due_time_unless_rule_or_zone_is_changed(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one", rule=Cron("0 18 * * *")))
    plan_due(db, LIMIT)
    evening = START + 6 * HOUR
    clock.advance(HOUR)
    declare_schedules(db, app("one", rule=Cron("0 18 * * *"), payload=2, missed="skip"))
    assert (standing(db).next_at, standing(db).missed) == (evening, "skip")
    declare_schedules(db, app("one", rule=Cron("0 18 * * *", "Asia/Tokyo"), payload=2))
    plan_due(db, LIMIT)
    assert standing(db).next_at == START + 21 * HOUR
    declare_schedules(db, app("one", rule=Cron("0 14 * * *"), payload=2))
    plan_due(db, LIMIT)
    assert standing(db).next_at == START + 2 * HOUR
    assert times(db) == []


def test_a_pause_outlasts_a_declaration_and_is_not_caught_up(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("one", missed="all"))
    assert pause_schedules(db, ["one", "none", "one"]) == ["one"]
    assert pause_schedules(db, ["one"]) == ["one"]
    declare_schedules(db, app("one", missed="all", payload=2))
    clock.advance(5 * MINUTE)
    assert plan_due(db, LIMIT) is None
    assert standing(db).state == "paused"
    assert resume_schedules(db, ["one"]) == ["one"]
    assert resume_schedules(db, ["one"]) == ["one"]
    plan_due(db, LIMIT)
    assert times(db) == [clock.now]
    assert [action for action, _ in audited(db)] == ["declare", "pause", "declare", "resume"]


def test_resuming_what_is_not_paused_skips_nothing(db: Connection, clock: Clock) -> None:
    declare_schedules(db, app("one"))
    clock.advance(90 * timedelta(seconds=1))
    resume_schedules(db, ["one"])
    plan_due(db, LIMIT)
    assert times(db) == [START + MINUTE]


def test_applications_keep_to_their_own_schedules(db: Connection) -> None:
    declare_schedules(db, app("one", application="shop"))
    assert declare_schedules(db, app(application="books")) == {}
    with pytest.raises(
        ScheduleError, match=r"schedule one belongs to application shop.*before books takes it"
    ):
        declare_schedules(db, app("one", application="books"))
    declare_schedules(db, app(application="shop"))
    declare_schedules(db, app("one", application="books"))
    assert (standing(db).application, standing(db).state) == ("books", "active")


def test_a_schedule_is_of_the_role_that_declared_it_last(db: Connection, dsn: str) -> None:
    declare_schedules(db, app("one"))
    db.execute("update scheduler.schedules set source = 'earlier'")
    assert declare_schedules(db, app("one")) == {"one": "declare"}
    assert standing(db).source == "postgres"
    assert declare_schedules(db, app("one")) == {}


def test_what_the_role_may_not_enqueue_it_may_not_schedule(db: Connection) -> None:
    with pytest.raises(PayloadError, match="looks like a secret"):
        declare_schedules(db, app("one", payload={"password": "x"}))
    db.execute("insert into scheduler.kind_sources values ('tick', 'billing')")
    with pytest.raises(AccessError, match="postgres may not enqueue tasks of kind tick"):
        declare_schedules(db, app("one"))
    assert list_schedules(db) == []


def test_a_restriction_of_a_kind_pauses_what_other_sources_have_scheduled(
    db: Connection, clock: Clock
) -> None:
    declare_schedules(db, app("one", "two"))
    assert restrict_kind(db, "tick", ["postgres", "billing"]) == []
    assert restrict_kind(db, "other", ["billing"]) == []
    assert restrict_kind(db, "tick", ["billing"]) == ["one", "two"]
    clock.advance(5 * MINUTE)
    assert plan_due(db, LIMIT) is None
    assert times(db) == []
    with pytest.raises(AccessError, match="postgres may not enqueue tasks of kind tick"):
        resume_schedules(db, ["two"])
    assert restrict_kind(db, "tick", []) == []
    assert [standing(db, name).state for name in ("one", "two")] == ["paused", "paused"]
    assert resume_schedules(db, ["two"]) == ["two"]
    assert audited(db)[2:] == [("pause", "one"), ("pause", "two"), ("resume", "two")]


@pytest.mark.parametrize("change", ["declare", "resume"])
def test_what_is_being_scheduled_while_its_kind_is_restricted_is_paused(
    db: Connection, dsn: str, change: str
) -> None:
    declare_schedules(db, app("one"))
    pause_schedules(db, ["one"])
    paused: list[str] = []

    def restrict() -> None:
        with psycopg.connect(dsn, autocommit=True, application_name="restrict") as beside:
            paused.extend(restrict_kind(beside, "tick", ["billing"]))

    thread = Thread(target=restrict)
    with psycopg.connect(dsn) as open_one:
        if change == "declare":
            declare_schedules(open_one, app("one", "two"))
        else:
            resume_schedules(open_one, ["one"])
        thread.start()
        waits = (
            "select true from pg_stat_activity"
            " where application_name = 'restrict' and wait_event_type = 'Lock'"
        )
        wait_for(
            lambda: not thread.is_alive() or db.execute(waits.encode()).fetchone(),
            "the restriction to wait",
        )
    thread.join()
    assert paused == ["two" if change == "declare" else "one"]
    assert {it.state for it in list_schedules(db)} == {"paused"}


def test_a_row_that_would_spoil_the_planning_of_others_cannot_exist(db: Connection) -> None:
    declare_schedules(db, app("one"))
    for change in (
        *("name = ''", "application = ''", "rule = ''", "timezone = ''", "missed = 'x'"),
        *("on_dead = 'x'", "next_at = 'infinity'", "kind = ''", "queue = ''", "priority = 4"),
        *("max_attempts = 0", "backoff_base = 0", "backoff_jitter = 1"),
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute(f"update scheduler.schedules set {change}".encode())


# Workers.


def test_workers_declare_and_run_each_occurrence_once(
    db: Connection, dsn: str, clock: Clock
) -> None:
    registry, lock = Registry(), Lock()
    ran: list[datetime | None] = []

    @registry.kind("tick", int)
    def tick(attempt: Attempt, payload: int) -> None:
        with lock:
            ran.append(attempt.occurrence)

    registry.schedule("one", tick, 1, Cron("* * * * *"))
    with running(*(worker(registry, dsn) for _ in range(3))):
        for n in range(10):
            wait_for(
                lambda n=n: planned(db)[n:] == [(START + n * MINUTE, "completed")],  # type: ignore[misc]
                f"occurrence {n}",
            )
            clock.advance(MINUTE)
    assert ran[:10] == [START + n * MINUTE for n in range(10)]
    assert len(set(ran)) == len(ran)
    assert audited(db) == [("declare", "one")]


def test_an_idle_worker_wakes_for_a_due_time_rather_than_for_its_poll(
    db: Connection, dsn: str
) -> None:
    never, registry = timedelta(hours=1), app("one", rule=Every(timedelta(seconds=1)))
    with running(worker(registry, dsn, poll=never, reclaim_every=never)):
        wait_for(lambda: statuses(db).get("completed", 0) >= 2, "two occurrences")


def test_a_busy_worker_does_not_look_at_each_turn(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def look(connection: Connection, limit: int) -> float | None:
        looks.append(limit)
        return plan_due(connection, limit)

    monkeypatch.setattr(scheduler.upkeep, "plan_due", look)
    registry = app()
    tasks = enqueue_many(db, registry["tick"], range(50))
    with running(worker(registry, dsn, poll=timedelta(hours=1), slots=1)):
        for task in tasks:
            over(db, task)
    assert len(looks) == 1
