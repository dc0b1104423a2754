"""A worker's metrics: each moves with what it counts."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from psycopg import Connection

from scheduler import Attempt, Registry, RetryPolicy, enqueue
from scheduler.lease import Lease
from scheduler.service import worker_metrics
from scheduler.service.worker_metrics import WorkerMetrics
from tests.scheduler.working import over, running, task, worker
from tests.waiting import wait_for

REGISTRY = Registry()
GO = Event()


@REGISTRY.kind("good", int)
def good(attempt: Attempt, payload: int) -> None:
    """Does nothing."""


@REGISTRY.kind(
    "shaky", int, retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=1), jitter=0)
)
def shaky(attempt: Attempt, payload: int) -> None:
    """Fails always."""
    raise ValueError("no")


@REGISTRY.kind("slow", int, lease=timedelta(seconds=3))  # no machine is too busy to renew that
def slow(attempt: Attempt, payload: int) -> None:
    """Waits until it is let go."""
    GO.wait(30)


@REGISTRY.kind("few", int, limit=1)
def few(attempt: Attempt, payload: int) -> None:
    """Waits until it is let go, one at a time."""
    GO.wait(30)


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics(REGISTRY)


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float:
    """The value of a sample, 0 if there is none."""
    return metrics.registry.get_sample_value(f"leaseproof_{name}", labels) or 0.0


def test_runs_retries_and_claims_are_counted(
    db: Connection, dsn: str, metrics: WorkerMetrics
) -> None:
    done, dead = enqueue(db, good, 1), enqueue(db, shaky, 1)
    with running(worker(REGISTRY, dsn, **metrics.observers)):
        over(db, done)
        over(db, dead, "dead")
    assert value(metrics, "run_duration_seconds_count", kind="good", outcome="completed") == 1
    assert value(metrics, "run_duration_seconds_count", kind="shaky", outcome="failed") == 2
    assert value(metrics, "claimed_tasks_total", kind="shaky") == 2
    assert value(metrics, "retries_total", kind="shaky") == 1
    assert value(metrics, "retries_total", kind="good") == 0
    assert value(metrics, "settled_attempts_total", kind="good", outcome="completed") == 1
    assert value(metrics, "settled_attempts_total", kind="shaky", outcome="failed") == 1
    assert value(metrics, "settled_attempts_total", kind="shaky", outcome="dead") == 1
    assert value(metrics, "claim_lag_seconds_count", kind="shaky") == 2
    assert value(metrics, "completion_lag_seconds_count", kind="good") == 1
    assert value(metrics, "completion_lag_seconds_count", kind="shaky") == 0
    assert value(metrics, "lease_headroom_ratio_count", kind="good") == 1
    assert value(metrics, "claims_total", result="some") >= 1
    assert value(metrics, "claims_total", result="empty") >= 1
    assert value(metrics, "claim_duration_seconds_count") >= 2
    assert value(metrics, "worker_running_tasks", kind="good") == 0


def test_a_running_task_and_its_renewals_are_seen(
    db: Connection, dsn: str, metrics: WorkerMetrics
) -> None:
    GO.clear()
    number = enqueue(db, slow, 1)
    with running(worker(REGISTRY, dsn, observe=metrics.observe)):
        wait_for(lambda: value(metrics, "worker_running_tasks", kind="slow") == 1, "it to run")
        wait_for(lambda: value(metrics, "lease_headroom_ratio_count", kind="slow") >= 2, "renewals")
        GO.set()
        over(db, number)
    assert value(metrics, "worker_running_tasks", kind="slow") == 0


def test_a_cancelled_run_is_a_lost_lease_and_a_taken_one_a_reclaim(
    db: Connection, dsn: str, metrics: WorkerMetrics
) -> None:
    GO.clear()
    number = enqueue(db, slow, 1)
    with running(worker(REGISTRY, dsn, observe=metrics.observe)):
        wait_for(lambda: task(db, number).status == "running", "it to run")
        db.execute("select scheduler.cancel(%s)", [[number]])
        wait_for(lambda: value(metrics, "lost_leases_total", kind="slow", how="cancelled"), "it")
        GO.set()
        number = enqueue(db, good, 1)
        over(db, number)
        db.execute(
            "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 9,"
            " lease_owner = 'gone', claimed_at = now(), finished_at = null,"
            " lease_expires_at = now() - interval '1 s' where id = %s",
            [number],
        )
        wait_for(
            lambda: value(metrics, "reclaims_total", kind="good", became="pending"), "the reclaim"
        )
        over(db, number)
    assert value(metrics, "fenced_writes_total", kind="slow", write="renew") == 1


def test_a_claim_that_a_limit_refuses_is_counted(
    db: Connection, dsn: str, metrics: WorkerMetrics
) -> None:
    GO.clear()
    numbers = [enqueue(db, few, 1) for _ in range(2)]
    with running(worker(REGISTRY, dsn, **metrics.observers)):
        wait_for(lambda: value(metrics, "limited_claims_total", kind="few"), "a refused claim")
        assert value(metrics, "worker_running_tasks", kind="few") == 1
        GO.set()
        for number in numbers:
            over(db, number)
        refused = value(metrics, "limited_claims_total", kind="few")
        empty = value(metrics, "claims_total", result="empty")
        wait_for(lambda: value(metrics, "claims_total", result="empty") > empty + 3, "idle claims")
        assert value(metrics, "limited_claims_total", kind="few") == refused


def test_lags_count_from_the_due_time() -> None:
    now = 100.0
    metrics = WorkerMetrics(REGISTRY, lambda: now)
    lease = Lease(1, 1, "w/1")
    metrics.observe("claimed", lease, "good 1 2.5")
    assert value(metrics, "claim_lag_seconds_sum", kind="good") == 2.5
    now = 103.0
    metrics.observe("settled", lease, "completed")
    assert value(metrics, "completion_lag_seconds_sum", kind="good") == 5.5


def test_headroom_is_what_was_left_of_the_lease() -> None:
    now = 100.0
    metrics = WorkerMetrics(REGISTRY, lambda: now)
    lease = Lease(1, 1, "w/1")
    metrics.observe("claimed", lease, "good 1 0.5")
    metrics.observe("started", lease, "")
    now = 130.0  # half of the lease of a minute
    metrics.observe("renewed", lease, "0")
    assert value(metrics, "lease_headroom_ratio_sum", kind="good") == 0.5
    now = 190.0  # all of it
    metrics.observe("finished", lease, "completed")
    assert value(metrics, "lease_headroom_ratio_sum", kind="good") == 0.5
    assert value(metrics, "lease_headroom_ratio_bucket", kind="good", le="0.0") == 1
    assert value(metrics, "run_duration_seconds_sum", kind="good", outcome="completed") == 90


def test_what_is_over_is_forgotten_and_what_runs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_metrics, "REMEMBERED", 3)
    metrics = WorkerMetrics(REGISTRY)
    first = Lease(0, 1, "w/0")
    metrics.observe("claimed", first, "slow 1 0")
    metrics.observe("started", first, "")
    for number in range(1, 20):
        lease = Lease(number, 1, f"w/{number}")
        metrics.observe("claimed", lease, "good 1 0.5")  # and never heard of again
    metrics.observe("refused", Lease(1, 1, "w/1"), "complete")
    metrics.observe("finished", first, "completed")
    assert value(metrics, "run_duration_seconds_count", kind="slow", outcome="completed") == 1
    assert value(metrics, "fenced_writes_total", kind="good", write="complete") == 0
