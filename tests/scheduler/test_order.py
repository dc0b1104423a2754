"""Which due task goes first: priorities with a bound on starvation, and queues of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from threading import Thread

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import Attempt, Priority, Registry, Worker, enqueue, enqueue_many
from scheduler.dispatch import claim, new_owner
from scheduler.priority import CREDIT
from tests.scheduler.working import over, running, task, worker

REGISTRY = Registry()
KINDS = {"work": timedelta(seconds=60), "other": timedelta(seconds=60)}
SECOND = timedelta(seconds=1)


@REGISTRY.kind("work", int)
def work(attempt: Attempt, payload: int) -> None:
    """Only enqueued."""


@REGISTRY.kind("other", int, queue="other")
def other(attempt: Attempt, payload: int) -> None:
    """Only enqueued, in a queue of its own."""


def claimed(db: Connection, limit: int, kinds: Mapping[str, timedelta] = KINDS) -> list[int]:
    """The ids that one claim takes."""
    return [a.task for a in claim(db, new_owner("w"), kinds, limit, 0.0)]


def entries_read(db: Connection) -> int:
    """How many entries of the index of due tasks were read so far."""
    db.execute("select pg_stat_force_next_flush()")
    db.execute("select pg_stat_clear_snapshot()")
    query = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'tasks_due'"
    row = db.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_of_tasks_due_together_the_more_urgent_goes_first(db: Connection, clock: Clock) -> None:
    ids = {level: enqueue(db, work, 0, priority=level) for level in Priority}
    order = [claimed(db, 1)[0] for _ in ids]
    assert order == [ids[level] for level in sorted(Priority, reverse=True)]


def test_a_level_is_worth_one_minute_and_no_more(db: Connection, clock: Clock) -> None:
    old = enqueue(db, work, 0, priority=Priority.LOW)
    clock.advance(CREDIT - timedelta(microseconds=1))
    inside = enqueue(db, work, 0, priority=Priority.NORMAL)
    clock.advance(timedelta(microseconds=2))
    outside = enqueue(db, work, 0, priority=Priority.NORMAL)
    assert [claimed(db, 1) for _ in range(3)] == [[inside], [old], [outside]]


def test_one_claim_takes_the_best_of_all_levels(db: Connection, clock: Clock) -> None:
    low = enqueue_many(db, work, range(3), priority=Priority.LOW)
    clock.advance(2 * CREDIT)
    high = enqueue_many(db, work, range(3), priority=Priority.HIGH)
    # Both groups are worth the same now; the older ids decide.
    assert sorted(claimed(db, 4)) == sorted([*low, high[0]])


def test_urgent_tasks_that_are_not_due_do_not_go_before_one_that_is(
    db: Connection, clock: Clock
) -> None:
    enqueue_many(db, work, range(50), priority=Priority.URGENT, delay=SECOND)
    due = enqueue(db, work, 0, priority=Priority.LOW)
    assert claimed(db, 10) == [due]


def test_a_million_urgent_future_tasks_would_cost_a_claim_nothing(db: Connection) -> None:
    enqueue_many(db, work, range(20_000), priority=Priority.URGENT, delay=timedelta(hours=1))
    due = enqueue_many(db, work, range(10), priority=Priority.LOW)
    db.execute("analyze scheduler.tasks")
    before = entries_read(db)
    assert claimed(db, 10) == due
    assert entries_read(db) - before < 200  # index entries, of 20,010


def test_under_contention_claims_share_the_rows_out_and_exceed_no_limit(
    db: Connection, dsn: str
) -> None:
    ids = [enqueue(db, work, n, priority=Priority(n % 4)) for n in range(200)]
    takes: list[list[int]] = []

    def take() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while got := claimed(connection, 7):
                takes.append(got)

    threads = [Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(len(got) for got in takes) <= 7
    while got := claimed(db, 7):  # what a claim passed over while another had it locked
        takes.append(got)
    assert sorted(task for got in takes for task in got) == ids


def test_a_claim_serves_only_the_kinds_it_names(db: Connection) -> None:
    here, there = enqueue(db, work, 0), enqueue(db, other, 0)
    assert claimed(db, 10, {"other": SECOND}) == [there]
    assert claimed(db, 10, {"other": SECOND, "work": SECOND}) == [here]


def test_tasks_of_kinds_that_a_claim_does_not_serve_cost_it_nothing(db: Connection) -> None:
    enqueue_many(db, other, range(20_000))
    due = enqueue_many(db, work, range(10))
    db.execute("analyze scheduler.tasks")
    before = entries_read(db)
    assert claimed(db, 10, {"work": SECOND}) == due
    assert entries_read(db) - before < 200  # index entries, of 20,010


def test_a_worker_serves_the_queues_it_was_given_and_leaves_others(
    db: Connection, dsn: str
) -> None:
    here, there = enqueue(db, work, 0), enqueue(db, other, 0)
    with running(worker(REGISTRY, dsn, queues=["other"])):
        over(db, there)
        assert task(db, here).status == "pending"
    with running(worker(REGISTRY, dsn)):
        over(db, here)


def test_a_worker_with_nothing_to_serve_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="no kinds in the queues nowhere"):
        Worker(REGISTRY, dsn, queues=["nowhere"])


@pytest.mark.parametrize("queue", ["", "a b", "x" * 101])
def test_a_queue_that_cannot_be_named_is_refused(queue: str) -> None:
    with pytest.raises(ValueError, match="cannot name a queue"):
        Registry().kind("work", int, queue=queue)(lambda attempt, payload: None)


def test_a_level_is_worth_the_same_to_workers_and_to_the_database(db: Connection) -> None:
    assert db.execute("select scheduler.priority_credit()").fetchone() == (CREDIT,)


def test_what_is_claimed_at_once_runs_in_the_order_in_which_a_claim_would_choose_it(
    db: Connection, dsn: str, clock: Clock
) -> None:
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int)
    def run(attempt: Attempt, payload: int) -> None:
        ran.append(payload)

    due = {1: Priority.NORMAL, 2: Priority.LOW, 3: Priority.URGENT, 4: Priority.NORMAL}
    for payload, priority in due.items():
        enqueue(db, run, payload, priority=priority)
    enqueue(db, run, 5, run_at=clock.now - 2 * CREDIT - SECOND)
    with running(worker(registry, dsn, slots=1, prefetch=9)):
        for number in range(1, 6):
            over(db, number)
    assert ran == [5, 3, 1, 4, 2]
