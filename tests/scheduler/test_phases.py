"""Each phase of the scheduler is useful alone: four small programs, each with the parts it needs.

They share only the first two lines of every such program: enqueue, and claim.
"""

from __future__ import annotations

from datetime import timedelta

from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import dead_letters, enqueue_many, requeue
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail
from scheduler.lease import reclaim, renew
from tests.scheduler.working import LEASE, MICROSECOND, WORK

KINDS = {"work": LEASE}


def test_claiming_alone_shares_work_out(db: Connection) -> None:
    enqueue_many(db, WORK, ["a", "b", "c"])
    one = claim(db, new_owner("one"), KINDS, 2, 0.0)
    two = claim(db, new_owner("two"), KINDS, 2, 0.0)
    assert [attempt.payload for attempt in one + two] == ['"a"', '"b"', '"c"']
    assert claim(db, new_owner("three"), KINDS, 2, 0.0) == []


def test_with_leases_a_crash_costs_one_lease(db: Connection, clock: Clock) -> None:
    enqueue_many(db, WORK, ["crashing", "long"])
    crashed, long = claim(db, new_owner("one"), KINDS, 2, 0.0)
    clock.advance(LEASE - MICROSECOND)
    renew(db, [long.lease], [LEASE])
    clock.advance(MICROSECOND * 2)
    assert [taken.lease for taken in reclaim(db, 10)] == [crashed.lease]
    (again,) = claim(db, new_owner("two"), KINDS, 2, 0.0)
    assert complete(db, [again.lease, long.lease]) == {again.task, long.task}


def test_with_retries_a_failure_comes_back_later(db: Connection, clock: Clock) -> None:
    enqueue_many(db, WORK, ["flaky"])
    (first,) = claim(db, new_owner("one"), KINDS, 1, 0.0)
    fail(db, [first.lease], ["not yet"])
    assert claim(db, new_owner("one"), KINDS, 1, 0.0) == []
    clock.advance(WORK.retry.delay(1, first.task, first.token))
    (second,) = claim(db, new_owner("one"), KINDS, 1, 0.0)
    assert complete(db, [second.lease]) == {first.task}


def test_with_dead_letters_a_hopeless_task_waits_for_a_person(db: Connection, clock: Clock) -> None:
    enqueue_many(db, WORK, ["hopeless"])
    for _ in range(WORK.retry.max_attempts):
        (attempt,) = claim(db, new_owner("one"), KINDS, 1, 0.0)
        fail(db, [attempt.lease], ["never"])
        clock.advance(timedelta(hours=1))
    assert [(letter.payload, letter.last_error) for letter in dead_letters(db)] == [
        ('"hopeless"', "never")
    ]
    requeue(db, [attempt.task])
    (attempt,) = claim(db, new_owner("one"), KINDS, 1, 0.0)
    assert attempt.number == 1
