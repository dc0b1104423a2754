"""Leases: renewal by the holder, reclaim after expiry and not before, the second look."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import LeaseLostError
from scheduler.finish import complete
from scheduler.lease import Lease, Look, Reclaimed, reclaim, renew, second_look
from scheduler.tasks import cancel, runs
from tests.scheduler.working import (
    LEASE,
    MICROSECOND,
    outcomes,
    put,
    row,
    statuses,
    take,
    take_one,
    task,
)


def test_a_lease_is_not_reclaimed_until_it_is_over(db: Connection, clock: Clock) -> None:
    put(db)
    take(db)
    clock.advance(LEASE)
    assert reclaim(db, 10) == []
    clock.advance(MICROSECOND)
    assert len(reclaim(db, 10)) == 1


def test_an_expired_lease_is_taken_back_and_its_owner_logged(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    claimed_at = clock.now
    attempt = take_one(db, "gone")
    clock.advance(LEASE + MICROSECOND)
    assert reclaim(db, 10) == [Reclaimed(attempt.lease, "work", "pending", 1)]
    found = task(db, number)
    assert (found.status, found.attempts, found.lease_owner) == ("pending", 1, None)
    assert found.last_error == (
        f"lease expired: worker {attempt.owner} did not finish attempt 1 in time"
    )
    (run,) = runs(db, number)
    assert (run.outcome, run.lease_owner, run.lease_token) == ("reclaimed", attempt.owner, 1)
    assert (run.claimed_at, run.finished_at) == (claimed_at, clock.now)
    assert run.error == found.last_error


def test_a_reclaimed_task_is_due_at_once_under_a_larger_token(db: Connection, clock: Clock) -> None:
    put(db)
    first = take_one(db, "one")
    clock.advance(LEASE + MICROSECOND)
    reclaim(db, 10)
    second = take_one(db, "two")
    assert (second.task, second.number) == (first.task, 2)
    assert second.token > first.token


def test_the_last_attempt_of_a_crashed_task_is_dead_lettered_by_the_reclaim(
    db: Connection, clock: Clock
) -> None:
    (number,) = put(db)
    db.execute("update scheduler.tasks set max_attempts = 1")
    attempt = take_one(db)
    clock.advance(LEASE + MICROSECOND)
    assert reclaim(db, 10) == [Reclaimed(attempt.lease, "work", "dead", 1)]
    found = task(db, number)
    assert (found.status, found.payload, found.finished_at) == ("dead", "0", clock.now)
    assert found.last_error is not None
    assert attempt.owner in found.last_error


def test_a_renewal_moves_the_expiry_from_now(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    lease = take_one(db).lease
    clock.advance(timedelta(minutes=4))
    assert renew(db, [lease], [LEASE]) == {lease: clock.now + LEASE}
    assert task(db, number).lease_expires_at == clock.now + LEASE
    clock.advance(LEASE)
    assert reclaim(db, 10) == []


def test_an_expired_lease_that_nobody_reclaimed_can_still_be_renewed(
    db: Connection, clock: Clock
) -> None:
    put(db)
    lease = take_one(db).lease
    clock.advance(LEASE * 3)
    assert renew(db, [lease], [LEASE]) == {lease: clock.now + LEASE}
    assert reclaim(db, 10) == []


def test_a_renewal_tells_leases_of_the_same_task_and_token_apart(db: Connection) -> None:
    """After a failover that lost a commit one worker can hold the same token twice."""
    put(db)
    lease = take_one(db).lease
    double = lease._replace(owner="one/other")
    for leases in ([lease, double], [double, lease]):
        assert renew(db, leases, [LEASE, LEASE]).keys() == {lease}
        assert second_look(db, leases) == {lease: Look(True, None), double: Look(False, None)}


def test_a_locked_row_is_skipped_and_the_second_look_says_it_is_held(
    db: Connection, dsn: str
) -> None:
    first, second = (attempt.lease for attempt in take(db, put(db, 2)[-1]))
    with psycopg.connect(dsn) as other:
        other.execute("select from scheduler.tasks where id = %s for update", [first.task])
        assert renew(db, [first, second], [LEASE, LEASE]).keys() == {second}
        assert second_look(db, [first]) == {first: Look(True, None)}
        assert complete(db, [first, second]) == {second.task}


def test_the_second_look_says_how_an_attempt_ended(db: Connection, clock: Clock) -> None:
    put(db, 3)
    done, gone, stopped = (attempt.lease for attempt in take(db))
    complete(db, [done])
    cancel(db, [stopped.task])
    clock.advance(LEASE + MICROSECOND)
    reclaim(db, 10)
    nobody = Lease(gone.task, 99, "nobody/0")
    assert second_look(db, [done, gone, stopped, nobody]) == {
        done: Look(False, "completed"),
        gone: Look(False, "reclaimed"),
        stopped: Look(False, "cancelled"),
        nobody: Look(False, None),
    }


def test_a_reclaim_is_bounded_and_takes_the_longest_expired_first(
    db: Connection, clock: Clock
) -> None:
    expired: list[int] = []
    for _ in range(3):
        put(db)
        expired.append(take_one(db).task)
        clock.advance(timedelta(seconds=1))
    clock.advance(LEASE)
    assert [taken.lease.task for taken in reclaim(db, 2)] == expired[:2]
    assert statuses(db) == {"pending": 2, "running": 1}


def test_a_locked_row_does_not_stop_the_reclaim_of_others(
    db: Connection, dsn: str, clock: Clock
) -> None:
    first, second = (attempt.task for attempt in take(db, put(db, 2)[-1]))
    clock.advance(LEASE + MICROSECOND)
    with psycopg.connect(dsn) as other:
        other.execute("select from scheduler.tasks where id = %s for update", [first])
        assert [taken.lease.task for taken in reclaim(db, 10)] == [second]
    assert [taken.lease.task for taken in reclaim(db, 10)] == [first]


def test_a_five_minute_lease_expires_when_the_clock_is_moved(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    take(db, worker="gone")
    clock.advance(LEASE + MICROSECOND)
    reclaim(db, 10)
    attempt = take_one(db, "next")
    assert complete(db, [attempt.lease]) == {number}
    assert outcomes(db, number) == ["reclaimed", "completed"]
    assert row(db, number)["status"] == "completed"


def test_a_lost_attempt_says_so(db: Connection) -> None:
    put(db)
    attempt = take_one(db)
    attempt.raise_if_lost()
    assert [attempt.lose(), attempt.lose()] == [True, False]
    with pytest.raises(LeaseLostError, match=f"task {attempt.task} is no longer held"):
        attempt.raise_if_lost()
