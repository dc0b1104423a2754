"""How attempts end, and the fence: what a former holder still writes changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler.dead_letter import discard, requeue
from scheduler.dispatch import complete_and_claim
from scheduler.finish import (
    begin_attempt,
    complete,
    complete_and_commit,
    fail,
    release,
    snooze,
)
from scheduler.lease import Lease, reclaim, renew
from scheduler.tasks import cancel, runs
from tests.scheduler.working import (
    LEASE,
    MICROSECOND,
    Row,
    outcomes,
    put,
    row,
    take,
    take_one,
    task,
)

LOST = "LP001"

# Each changes what it is told to, by name.
ENDS: dict[str, Callable[[Connection, Lease], object]] = {
    "complete": lambda db, lease: complete(db, [lease]),
    "complete and claim": lambda db, lease: complete_and_claim(
        db, [lease], "next/1", {"other": LEASE}, 1, 0.0
    )[0],
    "fail": lambda db, lease: fail(db, [lease], ["no"]),
    "release": lambda db, lease: release(db, [lease]),
    "snooze": lambda db, lease: snooze(db, [lease], [LEASE]),
    "renew": lambda db, lease: renew(db, [lease], [2 * LEASE]),
}


def test_a_completion_ends_the_lease_and_is_logged(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    claimed_at = clock.now
    attempt = take_one(db)
    clock.advance(timedelta(seconds=7))
    assert complete(db, [attempt.lease]) == {number}
    found = task(db, number)
    assert (found.status, found.finished_at, found.attempts) == ("completed", clock.now, 1)
    assert (found.lease_owner, found.lease_expires_at) == (None, None)
    (run,) = runs(db, number)
    assert (run.attempt, run.lease_token, run.lease_owner) == (1, 1, attempt.owner)
    assert (run.claimed_at, run.finished_at) == (claimed_at, clock.now)
    assert (run.outcome, run.error) == ("completed", None)


def test_many_completions_share_one_statement(db: Connection) -> None:
    ids = put(db, 50)
    assert complete(db, [attempt.lease for attempt in take(db, 50)]) == set(ids)


def test_a_release_gives_the_attempt_back_and_keeps_the_token(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    lease = take_one(db).lease
    due = task(db, number).next_run_at
    assert release(db, [lease]) == {number}
    found = task(db, number)
    assert (found.status, found.attempts, found.lease_token) == ("pending", 0, 1)
    assert found.next_run_at == due
    assert outcomes(db, number) == ["released"]
    assert take_one(db).token == 2


def test_a_snooze_gives_the_attempt_back_and_waits(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    lease = take_one(db).lease
    clock.advance(timedelta(seconds=3))
    assert snooze(db, [lease], [timedelta(hours=1)]) == {number}
    found = task(db, number)
    assert (found.status, found.attempts, found.lease_token) == ("pending", 0, 1)
    assert found.next_run_at == clock.now + timedelta(hours=1)
    assert (found.last_error, outcomes(db, number)) == (None, ["snoozed"])


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_of_one_claims_tasks_only_the_named_one_is_changed(
    db: Connection, end: Callable[[Connection, Lease], object]
) -> None:
    """They have the same owner, and as first attempts the same token."""
    put(db, 2)
    first, second = take(db)
    was = row(db, second.task)
    assert end(db, first.lease)
    assert row(db, second.task) == was
    assert outcomes(db, second.task) == []


def test_a_completion_in_a_transaction_commits_with_the_effect(db: Connection) -> None:
    (number,) = put(db)
    lease = take_one(db).lease
    db.execute("create table effects (task bigint)")
    begin_attempt(db, lease, LEASE)
    db.execute("insert into effects values (%s)", [number])
    complete_and_commit(db, lease)
    assert task(db, number).status == "completed"
    assert outcomes(db, number) == ["completed"]
    assert db.execute("select task from effects").fetchall() == [(number,)]


def test_a_completion_is_refused_outside_the_transaction_that_the_attempt_began(
    db: Connection,
) -> None:
    (number,) = put(db)
    lease = take_one(db).lease

    begin_attempt(db, lease, LEASE)
    db.execute("commit")
    db.execute("begin")
    with pytest.raises(psycopg.DatabaseError, match="ended its transaction by itself") as refused:
        complete_and_commit(db, lease)
    db.execute("rollback")
    assert refused.value.sqlstate == "LP008"
    assert task(db, number).status == "running"


def test_a_transaction_completes_the_attempt_that_began_it_and_no_other_of_its_claim(
    db: Connection,
) -> None:
    put(db, 2)
    first, second = take(db)
    assert (first.lease.owner, first.lease.token) == (second.lease.owner, second.lease.token)
    begin_attempt(db, first.lease, LEASE)
    with pytest.raises(psycopg.DatabaseError, match="ended its transaction by itself"):
        complete_and_commit(db, second.lease)
    db.execute("rollback")
    assert task(db, second.task).status == "running"


# The zombie: an attempt whose lease is gone, in each way it can be, writes in each way it can.


def gone_reclaimed(db: Connection, clock: Clock, lease: Lease) -> None:
    clock.advance(LEASE + MICROSECOND)
    assert len(reclaim(db, 10)) == 1


def gone_claimed_by_another(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_reclaimed(db, clock, lease)
    assert take_one(db, "another").task == lease.task


def gone_completed_by_another(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_reclaimed(db, clock, lease)
    assert complete(db, [take_one(db, "another").lease])


def gone_failed_by_another(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_reclaimed(db, clock, lease)
    assert fail(db, [take_one(db, "another").lease], ["no"]) == {lease.task: "pending"}


def gone_cancelled(db: Connection, clock: Clock, lease: Lease) -> None:
    assert cancel(db, [lease.task]) == {lease.task: "running"}


def gone_dead(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_reclaimed(db, clock, lease)
    db.execute("update scheduler.tasks set max_attempts = 2")
    assert fail(db, [take_one(db, "another").lease], ["no"]) == {lease.task: "dead"}


def gone_requeued(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_dead(db, clock, lease)
    assert requeue(db, [lease.task]) == [lease.task]


def gone_requeued_and_claimed(db: Connection, clock: Clock, lease: Lease) -> None:
    """The attempt count is the zombie's own again."""
    gone_requeued(db, clock, lease)
    assert take_one(db, "another").number == 1


def gone_discarded(db: Connection, clock: Clock, lease: Lease) -> None:
    gone_dead(db, clock, lease)
    assert discard(db, [lease.task]) == [lease.task]


def gone_released_and_claimed(db: Connection, clock: Clock, lease: Lease) -> None:
    """The attempt count is the zombie's own again."""
    assert release(db, [lease])
    assert take_one(db, "another").number == 1


def gone_snoozed_and_claimed(db: Connection, clock: Clock, lease: Lease) -> None:
    """The attempt count is the zombie's own again."""
    assert snooze(db, [lease], [timedelta(0)])
    assert take_one(db, "another").number == 1


def gone_by_its_own_completion(db: Connection, clock: Clock, lease: Lease) -> None:
    assert complete(db, [lease])


def gone_by_its_own_failure(db: Connection, clock: Clock, lease: Lease) -> None:
    assert fail(db, [lease], ["no"])


def gone_with_the_same_token_issued_twice(db: Connection, clock: Clock, lease: Lease) -> None:
    """A failover that lost the commit of our claim: another owner has the token we have."""
    db.execute("update scheduler.tasks set lease_owner = 'another/0'")


def gone_with_the_same_owner_and_another_token(db: Connection, clock: Clock, lease: Lease) -> None:
    """Cannot happen, as owners carry a nonce; the fence does not depend on it."""
    db.execute("update scheduler.tasks set lease_token = lease_token + 1")


SITUATIONS = [
    gone_reclaimed,
    gone_claimed_by_another,
    gone_completed_by_another,
    gone_failed_by_another,
    gone_cancelled,
    gone_dead,
    gone_requeued,
    gone_requeued_and_claimed,
    gone_discarded,
    gone_released_and_claimed,
    gone_snoozed_and_claimed,
    gone_by_its_own_completion,
    gone_by_its_own_failure,
    gone_with_the_same_token_issued_twice,
    gone_with_the_same_owner_and_another_token,
]


def write_complete(db: Connection, lease: Lease) -> None:
    assert complete(db, [lease]) == set()


def write_complete_and_commit(db: Connection, lease: Lease) -> None:
    db.execute("create table if not exists effects (task bigint)")

    begin_attempt(db, lease, LEASE)
    db.execute("insert into effects values (1)")
    with pytest.raises(psycopg.DatabaseError) as refused:
        complete_and_commit(db, lease)
    db.execute("rollback")
    assert refused.value.sqlstate == LOST
    assert f"task {lease.task} is no longer held under token {lease.token}" in str(refused.value)
    assert db.execute("select from effects").fetchall() == []


def write_fail(db: Connection, lease: Lease) -> None:
    assert fail(db, [lease], ["late"]) == {}


def write_renew(db: Connection, lease: Lease) -> None:
    assert renew(db, [lease], [LEASE]) == {}


def write_release(db: Connection, lease: Lease) -> None:
    assert release(db, [lease]) == set()


def write_snooze(db: Connection, lease: Lease) -> None:
    assert snooze(db, [lease], [timedelta(hours=1)]) == set()


WRITES = [
    write_complete,
    write_complete_and_commit,
    write_fail,
    write_renew,
    write_release,
    write_snooze,
]


def everything(db: Connection, number: int) -> tuple[Row, list[tuple[object, ...]]]:
    """The task's row and its log, whole."""
    log = db.execute("select * from scheduler.run_log order by lease_token, outcome").fetchall()
    return row(db, number), log


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_zombies_late_writes_change_nothing(
    db: Connection, clock: Clock, situation: Callable[[Connection, Clock, Lease], None]
) -> None:
    (number,) = put(db)
    lease = take_one(db, "zombie").lease
    situation(db, clock, lease)
    clock.advance(timedelta(seconds=1))
    before = everything(db, number)
    for write in WRITES:
        write(db, lease)
        assert everything(db, number) == before, write.__name__


@pytest.mark.parametrize("write", WRITES)
def test_every_refusal_above_can_fail(
    db: Connection, clock: Clock, write: Callable[[Connection, Lease], None]
) -> None:
    """With the lease still held each write goes through, so its check for refusal complains."""
    (number,) = put(db)
    lease = take_one(db).lease
    clock.advance(timedelta(seconds=1))
    before = row(db, number)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        write(db, lease)
    assert row(db, number) != before


def test_a_batch_with_a_zombie_in_it_writes_the_others(db: Connection, clock: Clock) -> None:
    put(db, 3)
    first, second, third = (attempt.lease for attempt in take(db))
    cancel(db, [second.task])
    assert complete(db, [first, second, third]) == {first.task, third.task}
    assert task(db, second.task).status == "cancelled"


def test_a_completion_in_a_transaction_waits_for_a_renewal_of_its_own_worker(
    db: Connection, dsn: str
) -> None:
    """Under READ COMMITTED it then succeeds, although the row has changed since its snapshot."""
    (number,) = put(db)
    lease = take_one(db).lease
    with psycopg.connect(dsn, autocommit=True) as handler:
        begin_attempt(handler, lease, LEASE)
        assert renew(db, [lease], [LEASE])
        complete_and_commit(handler, lease)
    assert task(db, number).status == "completed"
