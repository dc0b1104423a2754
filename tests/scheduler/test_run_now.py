"""A schedule's task run now, by hand: one occurrence more, never two at once, and nothing lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from chaos.explore.clock import START
from chaos.life.clock import Clock
from scheduler import (
    AccessError,
    Attempt,
    Every,
    Registry,
    RetryPolicy,
    ScheduleError,
    cancel,
    declare_schedules,
    list_schedules,
    pause_schedules,
    requeue,
    run_schedule,
)
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail
from scheduler.recurring import OnDead, parse, plan
from scheduler.roles import create_roles
from scheduler.schedules import plan_due
from scheduler.statements import fetch
from tests.scheduler.roles import logged_in
from tests.scheduler.working import LEASE, row, statuses

MINUTE = timedelta(minutes=1)
ONCE = RetryPolicy(max_attempts=1)


def declared(db: Connection, on_dead: OnDead = "stop") -> None:
    """A schedule `one`, for each minute."""
    registry = Registry()

    @registry.kind("work", object, retry=ONCE, queue="slow")
    def work(attempt: Attempt, payload: object) -> None:
        """Does nothing."""

    registry.schedule("one", work, {"a": 1}, Every(MINUTE), missed="all", on_dead=on_dead)
    declare_schedules(db, registry)


def finish(db: Connection, error: str | None = None) -> datetime | None:
    """Run the one task that is due; its occurrence."""
    [attempt] = claim(db, new_owner("w"), {"work": LEASE}, 1, 0.0)
    if error is None:
        assert complete(db, [attempt.lease])
    else:
        fail(db, [attempt.lease], [error])
    return attempt.occurrence


def occurrences(db: Connection) -> list[datetime]:
    """Those that were planned, in order."""
    rows = db.execute("select occurrence from scheduler.tasks order by occurrence").fetchall()
    return [at for (at,) in rows]


def test_it_is_an_occurrence_of_this_moment_that_is_due_at_once(
    db: Connection, clock: Clock
) -> None:
    declared(db)
    clock.advance(timedelta(seconds=7))
    task, created = run_schedule(db, "one") or (0, False)
    assert created
    found = row(db, task)
    assert (found["schedule"], found["occurrence"], found["next_run_at"]) == (
        "one",
        clock.now,
        clock.now,
    )
    assert (found["queue"], found["payload"], found["max_attempts"]) == ("slow", {"a": 1}, 1)
    assert (found["source"], found["counted"]) == ("postgres", False)
    assert finish(db) == clock.now
    with db.cursor(row_factory=dict_row) as cursor:
        audit = cursor.execute("select * from scheduler.audit where action = 'run-now'").fetchone()
    assert audit is not None
    assert (audit["source"], audit["schedule"], audit["kind"]) == ("postgres", "one", "work")
    assert (audit["tasks"], audit["first_task"], audit["last_task"]) == (1, task, task)


def test_there_is_no_schedule_of_that_name(db: Connection) -> None:
    assert run_schedule(db, "none") is None
    with pytest.raises(ValueError, match="a schedule has a name of 1 to 100"):
        run_schedule(db, "a\0b")


def test_to_ask_again_while_it_waits_or_runs_is_to_ask_once(db: Connection, clock: Clock) -> None:
    declared(db)
    clock.advance(timedelta(seconds=7))
    first = run_schedule(db, "one")
    assert first is not None
    assert run_schedule(db, "one") == (first.task, False)
    claim(db, new_owner("w"), {"work": LEASE}, 1, 0.0)
    assert run_schedule(db, "one") == (first.task, False)
    cancel(db, [first.task])
    assert run_schedule(db, "one") == (first.task, False)  # of this very microsecond
    clock.advance(timedelta(microseconds=1))
    second = run_schedule(db, "one")
    assert second is not None
    assert second.created
    asked = "select first_task from scheduler.audit where action = 'run-now' order by id"
    assert db.execute(asked).fetchall() == [(first.task,), (second.task,)]


def test_the_due_times_stay_as_they_are(db: Connection, clock: Clock) -> None:
    declared(db)
    plan_due(db, 50)
    finish(db)
    for seconds in (7, 8, 60):
        clock.advance(timedelta(seconds=seconds))
        assert run_schedule(db, "one") is not None
        finish(db)
    clock.advance(2 * MINUTE)
    while plan_due(db, 50) == 0.0 or statuses(db).get("pending"):
        if statuses(db).get("pending"):
            finish(db)
    by_hand = [START + timedelta(seconds=7), START + timedelta(seconds=15)]
    late = START + timedelta(seconds=75)
    grid = [START + n * MINUTE for n in range(4)]
    assert occurrences(db) == sorted([*grid, *by_hand, late])


def test_the_next_is_not_planned_while_it_waits(db: Connection, clock: Clock) -> None:
    declared(db)
    plan_due(db, 50)
    finish(db)
    clock.advance(timedelta(seconds=30))
    run_schedule(db, "one")
    clock.advance(MINUTE)
    plan_due(db, 50)
    assert statuses(db) == {"completed": 1, "pending": 1}


def test_a_planner_that_read_the_schedule_before_plans_no_second_one(
    db: Connection, clock: Clock
) -> None:
    declared(db)
    plan_due(db, 50)
    finish(db)
    clock.advance(MINUTE + timedelta(seconds=1))
    page = {"after_time": datetime(1, 1, 1, tzinfo=UTC), "after_name": "", "limit": 50}
    [(_, name, next_at, text, zone, missed, now)] = fetch(db, "due_schedules", page)
    occurrence, following = plan(parse(text, zone), missed, next_at, now)
    assert occurrence is not None
    run_schedule(db, "one")
    late = {"names": [name], "rules": [text], "timezones": [zone], "read": [next_at]}
    assert not fetch(
        db, "plan_occurrences", {**late, "occurrences": [occurrence], "next": [following]}
    )
    assert statuses(db) == {"completed": 1, "pending": 1}
    finish(db)
    plan_due(db, 50)
    assert finish(db) == START + MINUTE  # which the planner was about to plan


def test_of_many_who_ask_at_once_one_creates_it(db: Connection, dsn: str) -> None:
    declared(db)
    barrier = Barrier(4)

    def ask(_: int) -> tuple[int, bool]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            barrier.wait(20)
            found = run_schedule(connection, "one")
        assert found is not None
        return found

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert len({task for task, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


def test_a_paused_schedule_runs_and_stays_paused(db: Connection) -> None:
    declared(db)
    pause_schedules(db, ["one"])
    assert run_schedule(db, "one") is not None
    [standing] = list_schedules(db)
    assert (standing.state, standing.live_task) == ("paused", 1)


def test_one_that_a_dead_letter_stops_says_which(db: Connection) -> None:
    declared(db)
    run_schedule(db, "one")
    finish(db, "no")
    with pytest.raises(ScheduleError, match="stopped by the dead letter 1: requeue or discard"):
        run_schedule(db, "one")
    requeue(db, [1])
    assert run_schedule(db, "one") == (1, False)


def test_one_that_goes_on_past_dead_letters_runs(db: Connection) -> None:
    declared(db, on_dead="continue")
    run_schedule(db, "one")
    finish(db, "no")
    assert run_schedule(db, "one") == (2, True)


def test_what_is_gone_from_the_code_does_not_run(db: Connection) -> None:
    declared(db)
    declare_schedules(db, Registry())
    with pytest.raises(ScheduleError, match="no application declares the schedule one any more"):
        run_schedule(db, "one")


def test_a_restricted_kind_runs_for_neither_a_stranger_nor_a_source_that_lost_it(
    db: Connection, dsn: str
) -> None:
    declared(db)
    create_roles(dsn)
    with logged_in(db, dsn, "scheduler_operator") as operator:
        me = operator.info.user
        restrict_kind(db, "work", ["postgres"])
        with pytest.raises(AccessError, match=f"source {me} may not enqueue tasks of kind work"):
            run_schedule(operator, "one")
        restrict_kind(db, "work", [me])
        with pytest.raises(AccessError, match="source postgres may not enqueue tasks of kind"):
            run_schedule(operator, "one")
        assert statuses(db) == {}
        restrict_kind(db, "work", ["postgres", me])
        limit_source(db, "postgres", 0)  # a cap is for what it enqueues, no schedule stops for it
        assert run_schedule(operator, "one") == (1, True)
        asked = db.execute("select source from scheduler.audit where action = 'run-now'")
        assert asked.fetchall() == [(me,)]
    assert row(db, 1)["source"] == "postgres"
