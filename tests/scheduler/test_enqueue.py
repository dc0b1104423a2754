"""Enqueueing: part of the caller's transaction, all or none, due when it says."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row
from pydantic import BaseModel

from chaos.life.clock import Clock
from scheduler import (
    PayloadError,
    Registry,
    ScheduleError,
    Unique,
    cancel,
    enqueue,
    enqueue_many,
    enqueue_unique,
)
from scheduler.dead_letter import discard, requeue
from tests.scheduler.working import MICROSECOND, RETRY, WORK, ignore, put, row, statuses, take, task


class Order(BaseModel):
    """A payload with a model."""

    amount: int


ORDER = Registry().kind("order", Order)(ignore)


def test_a_task_is_pending_and_due_now(db: Connection, clock: Clock) -> None:
    number = enqueue(db, WORK, {"a": 1})
    found = task(db, number)
    assert (found.status, found.kind, found.payload) == ("pending", "work", '{"a": 1}')
    assert found.next_run_at == found.enqueued_at == clock.now
    assert (found.attempts, found.lease_token, found.max_attempts) == (0, 0, RETRY.max_attempts)
    stored = row(db, number)
    assert [stored[f"backoff_{name}"] for name in ("base", "factor", "cap", "jitter")] == [
        RETRY.base.total_seconds(),
        RETRY.factor,
        RETRY.cap.total_seconds(),
        RETRY.jitter,
    ]


def test_ids_are_in_the_order_of_the_payloads(db: Connection) -> None:
    ids = put(db, 12_000)
    assert ids == sorted(ids)
    stored = db.execute("select payload from scheduler.tasks order by id").fetchall()
    assert stored == [(number,) for number in range(12_000)]


@pytest.mark.slow
def test_a_hundred_thousand_tasks_are_enqueued_by_one_call(db: Connection) -> None:
    ids = put(db, 100_000)
    assert len(set(ids)) == 100_000
    assert statuses(db) == {"pending": 100_000}


def test_nothing_is_enqueued_for_no_payloads(db: Connection) -> None:
    assert put(db, 0) == []


def test_a_rollback_of_the_caller_takes_the_task_back(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        put(db)
    assert statuses(db) == {}


def test_a_task_is_invisible_until_its_transaction_commits(db: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        put(caller)
        assert take(db) == []
        caller.commit()
    assert len(take(db)) == 1


def test_the_transaction_that_an_enqueue_begins_is_still_the_callers(dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        put(caller)
        caller.rollback()
        assert statuses(caller) == {}


def test_one_refused_payload_enqueues_nothing(db: Connection) -> None:
    orders = [Order(amount=1), Order.model_construct(amount="much"), Order(amount=3)]
    with pytest.raises(PayloadError, match="kind 'order' is refused by its model: amount: "):
        enqueue_many(db, ORDER, orders)
    assert statuses(db) == {}


def test_a_failure_in_a_later_chunk_enqueues_nothing(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.client.CHUNK", 2)
    db.execute("alter table scheduler.tasks add check (payload <> '4')")
    with pytest.raises(psycopg.errors.CheckViolation):
        put(db, 5)
    assert statuses(db) == {}


def test_a_refused_enqueue_leaves_the_callers_transaction_as_it_was(db: Connection) -> None:
    db.execute("alter table scheduler.tasks add check (payload <> '1')")
    with db.transaction():
        put(db)
        with pytest.raises(psycopg.errors.CheckViolation):
            put(db, 2)
        put(db)
    assert statuses(db) == {"pending": 2}


def test_one_enqueue_by_itself_is_one_statement(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, wait = list[str](), db.wait

    def waiting(step: Any, *others: Any) -> Any:
        sent.append(step.__name__)
        return wait(step, *others)

    monkeypatch.setattr(db, "wait", waiting)
    put(db, 3)
    assert len(sent) == 1
    with db.transaction():  # here a refusal shall undo this call alone: a savepoint is set, too
        sent.clear()
        put(db, 3)
        assert len(sent) > 1


@pytest.mark.parametrize("unique", [False, True])
def test_an_enqueue_in_a_pipeline_is_committed_on_return(
    db: Connection, dsn: str, unique: bool
) -> None:
    with (
        psycopg.connect(dsn, autocommit=True) as caller,
        suppress(psycopg.errors.UndefinedTable),
        caller.pipeline(),
    ):
        if unique:
            enqueue_unique(caller, WORK, 1, Unique("key"))
        else:
            enqueue(caller, WORK, 1)
        assert statuses(db) == {"pending": 1}
        caller.execute("select from nowhere")
    assert statuses(db) == {"pending": 1}


def test_a_delay_counts_from_the_databases_clock(db: Connection, clock: Clock) -> None:
    number = enqueue(db, WORK, 1, delay=timedelta(hours=3))
    assert task(db, number).next_run_at == clock.now + timedelta(hours=3)


def test_a_run_at_is_kept_to_the_microsecond_in_any_zone(db: Connection, clock: Clock) -> None:
    at = clock.now + timedelta(days=1, microseconds=1)
    number = enqueue(db, WORK, 1, run_at=at.astimezone(timezone(timedelta(hours=-7, minutes=30))))
    assert task(db, number).next_run_at == at


def test_a_run_at_in_the_past_is_due_at_once(db: Connection, clock: Clock) -> None:
    number = enqueue(db, WORK, 1, run_at=clock.now - timedelta(days=9))
    assert [attempt.task for attempt in take(db)] == [number]


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"run_at": datetime(2026, 1, 1)}, "has no time zone"),
        (
            {"run_at": datetime(2026, 1, 1, tzinfo=UTC), "delay": timedelta(1)},
            "either run_at or delay",
        ),
        ({"delay": -MICROSECOND}, "a delay must be from 0"),
        ({"delay": timedelta(days=36_526)}, "a delay must be from 0"),
        ({"run_at": datetime(9999, 12, 31, tzinfo=UTC)}, "days away"),
        ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "is before 1970"),
        # Year 0 in UTC, which PostgreSQL can store and Python cannot read.
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "is before 1970"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(
    db: Connection, when: dict[str, datetime | timedelta], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        enqueue(db, WORK, 1, **when)  # type: ignore[arg-type] # the cases mix both arguments
    assert statuses(db) == {}


def test_the_callers_row_factory_does_not_matter(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        number = enqueue(connection, WORK, 1)  # type: ignore[arg-type] # rows are not tuples here
        assert isinstance(number, int)
        assert cancel(connection, [number]) == {number: "pending"}  # type: ignore[arg-type]
        connection.execute(
            "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = ''"
        )
        assert requeue(connection, [number]) == [number]  # type: ignore[arg-type]
        connection.execute(
            "update scheduler.tasks set status = 'dead', attempts = max_attempts,"
            " finished_at = now()"
        )
        assert discard(connection, [number]) == [number]  # type: ignore[arg-type]
