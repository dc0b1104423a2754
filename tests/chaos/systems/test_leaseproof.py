"""The adapter reads off the log what the scheduler writes."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from chaos.history.events import Key, Occurrence, Row
from chaos.history.watched import micros
from chaos.history.witness import Witness
from chaos.systems import Order, Until, WorkerSettings
from chaos.systems.leaseproof import Leaseproof
from chaos.workload import Job

DAILY = """
    insert into scheduler.tasks (
        kind, payload, next_run_at, max_attempts, backoff_base, backoff_factor, backoff_cap,
        backoff_jitter, schedule, occurrence, enqueued_at)
    values ('quick', '{}', '2026-03-01', 1, 1, 2, 60, 0, 'daily', '2026-03-01 12:00+00', now())
"""


@pytest.mark.parametrize(
    ("until", "key"),
    [("started", Key("k", "started")), ("finished", Key("k", "finished")), (5.0, None)],
    ids=["started", "finished", "period"],
)
def test_rows_say_source_key_occurrence_and_priority(
    empty_dsn: str, until: Until, key: Key | None
) -> None:
    system, source = Leaseproof(), f"shop_{uuid4().hex[:8]}"
    system.install(empty_dsn)
    system.cap(empty_dsn, source, 5)
    witness = Witness(empty_dsn, system.watched(), f"witness_{uuid4().hex}")
    witness.open()
    try:
        plain = Order(Job(0, "quick", 0, 0), delay=0, max_attempts=1)
        keyed = Order(Job(1, "quick", 0, 0), 0, 1, "k", until, source=source, priority=3)
        system.enqueue(empty_dsn, [plain])
        system.enqueue_under_key(empty_dsn, keyed, keep=True)
        with psycopg.connect(empty_dsn) as connection:
            connection.execute(DAILY)
        rows = [change.row for commit in witness.drain() for change in commit.changes]
    finally:
        witness.close()
        with psycopg.connect(empty_dsn) as connection:
            connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(source)))
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(source)))
    first, second, third = (row for row in rows if isinstance(row, Row))
    assert (first.priority, second.priority) == (1, 3)
    assert (first.source, first.counted, first.key, first.occurrence) == (
        ("postgres", False, None, None)
    )
    assert (second.source, second.counted, second.occurrence) == (source, True, None)
    if key is not None:
        assert second.key == key
    else:
        assert second.key is not None
        assert second.key.text.startswith("k@5")
        assert second.key.until == "period"
    noon = micros("2026-03-01 12:00:00+00")
    assert third.occurrence == Occurrence("daily", noon or 0)


def test_what_is_enqueued_has_its_orders_priority(empty_dsn: str) -> None:
    system = Leaseproof()
    system.install(empty_dsn)
    for priority in range(4):
        order = Order(Job(priority, "quick", 0, 0), delay=0, max_attempts=1, priority=priority)
        system.enqueue(empty_dsn, [order])
        system.enqueue_under_key(empty_dsn, replace(order, key=f"k{priority}"), keep=True)
    with psycopg.connect(empty_dsn) as connection:
        found = connection.execute("select priority from scheduler.tasks order by id").fetchall()
    assert [priority for (priority,) in found] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_worker_whose_handler_is_in_a_transaction_is_told_from_others(empty_dsn: str) -> None:
    system = Leaseproof()
    with (
        psycopg.connect(empty_dsn, application_name="scheduler w1.1") as within,
        psycopg.connect(empty_dsn, application_name="scheduler w2.1"),
        psycopg.connect(empty_dsn, application_name="leaseproof look") as other,
    ):
        within.execute("select")
        other.execute("select")
        assert system.in_transaction(empty_dsn) == ["w1.1"]


@pytest.mark.parametrize(
    ("poll", "limits", "seconds"),
    [(0.2, {}, 0.7), (30, {}, 1.5), (0.2, {"quick": 2}, 3.7)],
    ids=["poll", "a second at most", "a lease more with limits"],
)
def test_tasks_may_be_passed_over_for_as_long_as_the_docs_say(
    poll: float, limits: dict[str, int], seconds: float
) -> None:
    settings = WorkerSettings(2, None, 3, poll, reclaim_every=1, grace=1, limits=limits)
    assert Leaseproof().rules(settings).passed_over == seconds * 1_000_000
