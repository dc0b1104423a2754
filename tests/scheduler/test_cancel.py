"""Cancelling: of what waits or runs, and of nothing that is over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import cancel
from scheduler.finish import complete
from scheduler.tasks import runs
from tests.scheduler.working import outcomes, put, row, take, take_one, task
from tests.waiting import wait_for


def test_a_waiting_task_is_cancelled_and_never_runs(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    assert cancel(db, [number]) == {number: "pending"}
    found = task(db, number)
    assert (found.status, found.finished_at) == ("cancelled", clock.now)
    assert outcomes(db, number) == []
    assert take(db) == []


def test_a_running_task_loses_its_lease_and_the_log_says_whose(
    db: Connection, clock: Clock
) -> None:
    (number,) = put(db)
    attempt = take_one(db)
    assert cancel(db, [number]) == {number: "running"}
    found = task(db, number)
    assert (found.status, found.lease_owner, found.lease_token) == ("cancelled", None, 1)
    (run,) = runs(db, number)
    assert (run.outcome, run.lease_owner, run.lease_token) == ("cancelled", attempt.owner, 1)
    assert complete(db, [attempt.lease]) == set()


def test_what_is_over_or_does_not_exist_is_left_out(db: Connection) -> None:
    done, waiting = put(db, 2)
    complete(db, [attempt.lease for attempt in take(db, 1)])
    before = row(db, done)
    assert cancel(db, [done, waiting, 999_999]) == {waiting: "pending"}
    assert row(db, done) == before
    assert cancel(db, [waiting]) == {}


def test_a_cancel_that_waited_for_a_claim_cancels_the_running_task(
    db: Connection, dsn: str
) -> None:
    (number,) = put(db)
    with psycopg.connect(dsn) as claiming, ThreadPoolExecutor(1) as pool:
        attempt = take_one(claiming)
        answer = pool.submit(cancel, db, [number])
        with psycopg.connect(dsn, autocommit=True) as watching:
            wait_for(
                lambda: (
                    watching.execute(
                        "select from pg_stat_activity where datname = current_database()"
                        " and wait_event_type = 'Lock'"
                    ).fetchone()
                    is not None
                ),
                "the cancel to wait for the claim",
            )
        claiming.commit()
        assert answer.result() == {number: "running"}
    assert task(db, number).status == "cancelled"
    assert [run.lease_owner for run in runs(db, number)] == [attempt.owner]
