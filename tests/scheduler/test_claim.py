"""Claiming: each due task to one worker, never early, never more than asked for."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import enqueue
from scheduler.dispatch import claim, complete_and_claim, new_owner, release_claims
from scheduler.finish import complete
from tests.scheduler.working import (
    LEASE,
    MICROSECOND,
    WORK,
    kind,
    outcomes,
    put,
    row,
    statuses,
    take,
    take_one,
    task,
)


def test_a_claim_takes_the_lease_and_counts_the_attempt(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    attempt = take_one(db, "somebody")
    found = task(db, number)
    assert (found.status, found.attempts, found.lease_token) == ("running", 1, 1)
    assert found.lease_owner == attempt.owner
    assert attempt.owner.startswith("somebody/")
    assert found.lease_expires_at == clock.now + LEASE
    assert (attempt.task, attempt.token, attempt.number) == (number, 1, 1)
    assert (attempt.kind, attempt.payload, attempt.due) == ("work", "0", found.next_run_at)


def test_a_claim_along_with_a_completion_takes_the_lease_in_the_same_transaction(
    db: Connection, clock: Clock
) -> None:
    first, second, third = put(db, 3)
    lease = take_one(db).lease
    clock.advance(timedelta(seconds=7))
    completed, [attempt] = complete_and_claim(db, [lease], "one/2", {"work": LEASE}, 1, sent=9.0)
    assert completed == {first}
    assert (row(db, first)["status"], outcomes(db, first)) == ("completed", ["completed"])
    found = task(db, second)
    assert (found.status, found.lease_owner, found.attempts) == ("running", "one/2", 1)
    assert found.lease_expires_at == clock.now + LEASE
    assert (attempt.task, attempt.token, attempt.number) == (second, 1, 1)
    assert (attempt.kind, attempt.payload, attempt.due) == ("work", "1", found.next_run_at)
    assert (attempt.late, attempt.believed_until) == (7.0, 9.0 + LEASE.total_seconds())
    assert task(db, third).status == "pending"
    both = "select count(distinct xmin::text) from scheduler.tasks where id = any(%s)"
    assert db.execute(both, [[first, second]]).fetchone() == (1,)


def test_a_claim_along_with_a_completion_that_is_refused_takes_what_is_due(db: Connection) -> None:
    first, second = put(db, 2)
    lease = take_one(db).lease
    late = lease._replace(token=lease.token + 1)
    completed, [attempt] = complete_and_claim(db, [late], "one/2", {"work": LEASE}, 9, 0.0)
    assert (completed, attempt.task) == (set(), second)
    assert task(db, first).status == "running"


def test_every_claim_call_has_an_owner_of_its_own() -> None:
    assert new_owner("same") != new_owner("same")


def test_a_belief_ends_before_the_lease_by_the_time_the_claim_took(db: Connection) -> None:
    put(db)
    (attempt,) = claim(db, "one/1", {"work": LEASE}, 1, sent=1000.0)
    assert attempt.believed_until == 1000.0 + LEASE.total_seconds()


def test_a_task_is_claimed_at_its_due_time_and_not_a_microsecond_before(
    db: Connection, clock: Clock
) -> None:
    number = enqueue(db, WORK, 1, delay=timedelta(hours=1))
    clock.advance(timedelta(hours=1) - MICROSECOND)
    assert take(db) == []
    clock.advance(MICROSECOND)
    assert [attempt.task for attempt in take(db)] == [number]


def test_a_claimed_task_is_not_claimed_again(db: Connection) -> None:
    put(db)
    assert len(take(db)) == 1
    assert take(db, worker="two") == []


def test_tasks_are_claimed_in_the_order_of_their_due_times(db: Connection, clock: Clock) -> None:
    ids = [enqueue(db, WORK, 1, delay=timedelta(seconds=wait)) for wait in (3, 1, 2, 1)]
    clock.advance(timedelta(seconds=3))
    order = [take_one(db).task for _ in ids]
    assert order == [ids[1], ids[3], ids[2], ids[0]]


def test_a_claim_leaves_kinds_it_does_not_know(db: Connection) -> None:
    put(db, 3, kind("other"))
    (known,) = put(db)
    assert [attempt.task for attempt in take(db)] == [known]
    assert statuses(db) == {"pending": 3, "running": 1}


def test_each_kind_gets_its_own_lease(db: Connection, clock: Clock) -> None:
    (short,) = put(db, 1, kind("short"))
    (long,) = put(db, 1, kind("long"))
    leases = {"long": timedelta(hours=2), "short": timedelta(seconds=2)}
    attempts = {attempt.task: attempt for attempt in claim(db, "one/1", leases, 9, 0.0)}
    assert attempts[short].lease_length == timedelta(seconds=2)
    assert row(db, short)["lease_expires_at"] == clock.now + timedelta(seconds=2)
    assert row(db, long)["lease_expires_at"] == clock.now + timedelta(hours=2)


def test_a_claim_passes_over_locked_rows_instead_of_waiting(db: Connection, dsn: str) -> None:
    first, second = put(db, 2)
    with psycopg.connect(dsn) as other:
        other.execute("select from scheduler.tasks where id = %s for update", [first])
        assert [attempt.task for attempt in take(db)] == [second]


STALE = """
    update scheduler.tasks
    set status = 'running', attempts = attempts + 1, lease_token = lease_token + 1,
        lease_owner = 'naive', claimed_at = now(), lease_expires_at = now() + interval '1 hour'
    where id in (
        select id from scheduler.tasks where status = 'pending' and next_run_at <= now()
        order by next_run_at, id limit 2 for update skip locked)
    returning id
"""


def make_stale(db: Connection, count: int) -> None:
    """Take statistics when the table has one row, then put in `count` more."""
    db.execute("alter table scheduler.tasks set (autovacuum_enabled = false)")
    put(db)
    db.execute("analyze scheduler.tasks")
    put(db, count)


@pytest.mark.parametrize("count", [40, 500])
def test_a_claim_of_two_takes_two_when_statistics_are_stale(db: Connection, count: int) -> None:
    make_stale(db, count)
    assert len(take(db, 2)) == 2
    assert statuses(db) == {"running": 2, "pending": count - 1}


def test_stale_statistics_make_a_plain_subquery_take_more(db: Connection) -> None:
    """The test above can fail: the usual form of the statement does, on the same rows."""
    make_stale(db, 40)
    assert len(db.execute(STALE).fetchall()) > 2


def test_two_claim_loops_share_all_tasks_and_no_task_twice(db: Connection, dsn: str) -> None:
    ids = put(db, 300)
    start = Barrier(2)

    def work(name: str) -> list[int]:
        taken: list[int] = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            start.wait()
            while attempts := take(connection, 3, name):
                taken += [attempt.task for attempt in attempts]
                held = {attempt.task: attempt.lease for attempt in attempts}
                # The other's claim may be looking at a row of ours, which is then skipped.
                while held:
                    for number in complete(connection, list(held.values())):
                        del held[number]
        return taken

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(work, ["one", "two"])
    assert Counter(one + two) == Counter(ids)
    assert statuses(db) == {"completed": 300}


def test_a_row_that_a_constraint_would_refuse_does_not_stop_the_others(db: Connection) -> None:
    bad, good = put(db, 2)
    db.execute("alter table scheduler.tasks drop constraint pending_has_an_attempt_left")
    db.execute("update scheduler.tasks set attempts = max_attempts where id = %s", [bad])
    assert [attempt.task for attempt in take(db)] == [good]


def test_a_claim_whose_reply_was_lost_is_given_back_and_not_counted(db: Connection) -> None:
    ids = put(db, 3)
    lost = take(db, 2, "lost")
    held = take_one(db, "held")
    assert release_claims(db, [lost[0].owner]) == [attempt.task for attempt in lost]
    for number in ids:
        expected = ("running", 1) if number == held.task else ("pending", 0)
        assert (task(db, number).status, task(db, number).attempts) == expected
    assert outcomes(db, lost[0].task) == ["released"]
    assert task(db, lost[0].task).lease_token == 1
