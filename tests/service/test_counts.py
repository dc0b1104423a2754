"""What is counted for people and metrics: each kind for itself, exactly or up to a bound."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler.service.snapshot import live_counts
from scheduler.statements import fetch
from scheduler.tasks import Count, counts
from tests.service.conftest import without_empty_pages

DAY = timedelta(days=1)
NOW = timedelta(0)


def stand(
    db: Connection,
    kind: str,
    status: str,
    due: timedelta = NOW,
    *,
    claimed: timedelta = NOW,
    expires: timedelta = NOW,
    count: int = 1,
    priority: int | None = None,
) -> None:
    """Tasks that stand so, with these times from now; of all priorities, or of one."""
    db.execute(
        "insert into scheduler.tasks (kind, priority, payload, status, next_run_at, attempts,"
        " max_attempts, lease_token, lease_owner, lease_expires_at, claimed_at, last_error,"
        " finished_at, enqueued_at, backoff_base, backoff_factor, backoff_cap, backoff_jitter)"
        " select %(kind)s, coalesce(%(priority)s::integer, n %% 4), '1', status,"
        " scheduler.now() + %(due)s, case status when 'pending' then 0 else 1 end, 1, 1,"
        " case status when 'running' then 'w' end,"
        " case status when 'running' then scheduler.now() + %(expires)s end,"
        " case status when 'running' then scheduler.now() + %(claimed)s end,"
        " case status when 'dead' then 'no' end,"
        " case when status in ('dead', 'completed') then scheduler.now() end, scheduler.now(),"
        " 1, 1, 1, 0"
        " from generate_series(1, %(count)s) as n, (values (%(status)s)) as as_it_is (status)",
        {
            "kind": kind,
            "status": status,
            "due": due,
            "claimed": claimed,
            "expires": expires,
            "count": count,
            "priority": priority,
        },
    )


MANY = [f"z{number}" for number in range(8)]  # which no hash puts in order by chance


@pytest.fixture(params=["indexscan indexonlyscan bitmapscan", "sort"], ids=["no index", "no sort"])
def plans(request: pytest.FixtureRequest, db: Connection) -> None:
    """What order rows have is to be asked for: none comes from an index, or from what they are
    grouped by."""
    for method in request.param.split():
        db.execute(f"set enable_{method} = off".encode())


@pytest.mark.usefixtures("plans")
def test_tasks_are_counted_by_kind_and_status_with_the_wait_of_the_oldest_due(
    db: Connection, clock: Clock
) -> None:
    stand(db, "late", "pending", -1 * DAY)
    stand(db, "late", "pending", -3 * DAY)
    stand(db, "late", "pending", DAY)
    stand(db, "later", "running", -2 * DAY)
    stand(db, "later", "pending", DAY)
    stand(db, "just", "pending")
    for kind in MANY:
        stand(db, kind, "pending")
    assert counts(db) == [
        Count("just", "pending", 1, 0),
        Count("late", "pending", 3, 3 * 86_400),
        Count("later", "pending", 1, None),
        Count("later", "running", 1, None),
        *(Count(kind, "pending", 1, 0) for kind in MANY),
    ]


@pytest.mark.usefixtures("plans")
def test_live_tasks_are_counted_by_kind_with_the_oldest_of_each(
    db: Connection, clock: Clock
) -> None:
    stand(db, "just", "pending", priority=3)
    stand(db, "b", "pending", -3 * DAY, priority=0)
    stand(db, "b", "pending", -6 * DAY, priority=0)
    stand(db, "b", "pending", -5 * DAY, priority=2)
    stand(db, "b", "pending", DAY, priority=1)
    stand(db, "a", "pending", DAY)
    stand(db, "a", "completed")
    stand(db, "over", "completed")
    stand(db, "runs", "running", claimed=-2 * DAY, expires=-1 * DAY)
    stand(db, "runs", "running", claimed=-4 * DAY)
    stand(db, "b", "running", claimed=-1 * DAY, expires=DAY)
    stand(db, "just", "dead")
    stand(db, "dies", "dead", count=2)
    stand(db, "b", "dead")
    found = [
        (it.kind, it.pending, it.due, it.running, it.expired, it.dead) for it in live_counts(db)
    ]
    assert found == [
        ("a", 1, 0, 0, 0, 0),
        ("b", 4, 3, 1, 0, 1),
        ("dies", 0, 0, 0, 0, 2),
        ("just", 1, 1, 0, 0, 1),
        ("runs", 0, 0, 2, 1, 0),
    ]
    ages = {
        it.kind: (it.oldest_due_seconds, it.oldest_running_seconds)
        for it in live_counts(db)
        if it.oldest_due_seconds is not None or it.oldest_running_seconds is not None
    }
    assert ages == {
        "b": (6 * 86_400, 86_400),
        "just": (0, None),
        "runs": (None, 4 * 86_400),
    }


@pytest.mark.parametrize(
    ("counted", "share"),
    [
        (1_000, 1_000),  # so many of each kind at least
        (2_000, 1_000),  # which is for three kinds
        (3_003, 1_001),
    ],
)
def test_of_each_kind_its_share_is_counted_and_more_is_an_estimate(
    db: Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch, counted: int, share: int
) -> None:
    monkeypatch.setattr("scheduler.service.snapshot.COUNTED", counted)
    monkeypatch.setattr("scheduler.service.snapshot.SAMPLED", 1e-9)  # finds none
    for kind, status in (("waits", "pending"), ("dies", "dead")):
        stand(db, f"{kind} 1", status, count=share)
        stand(db, f"{kind} 2", status, count=share + 1)
        stand(db, f"{kind} 3", status, count=share + 1, priority=1)
    exact = {it.kind: (it.pending, it.due, it.dead) for it in live_counts(db)}
    assert exact == {
        "waits 1": (share, share, 0),
        "waits 2": (share, share, 0),
        "waits 3": (share, share, 0),
        "dies 1": (0, 0, share),
        "dies 2": (0, 0, share),
        "dies 3": (0, 0, share),
    }
    counted_so_far = fetch(db, "live_counts", {"most": counted})
    assert {row[0]: (row[1], row[3], row[7]) for row in counted_so_far} == exact
    estimated = {
        it.kind: (it.pending_estimated, it.due_estimated, it.dead_estimated)
        for it in live_counts(db)
    }
    assert estimated == {
        "waits 1": (False, False, False),
        "waits 2": (True, True, False),
        "waits 3": (True, True, False),
        "dies 1": (False, False, False),
        "dies 2": (False, False, True),
        "dies 3": (False, False, True),
    }


def test_a_sample_of_all_pages_is_exact_and_of_some_is_scaled(db: Connection, clock: Clock) -> None:
    without_empty_pages(db)
    stand(db, "waits", "pending", count=1_500)
    stand(db, "waits", "pending", -1 * DAY, count=1_000)
    stand(db, "waits", "pending", DAY, count=500)
    stand(db, "waits", "running", count=100)
    stand(db, "dies", "dead", count=3_000)
    stand(db, "runs", "running")
    whole = fetch(db, "sampled_counts", {"pages": 1_000_000})
    assert sorted(whole) == [("dies", 0, 0, 3_000), ("waits", 3_000, 2_500, 0)]
    # Which pages are drawn is no chance, so neither are these numbers.
    some = {kind: numbers for kind, *numbers in fetch(db, "sampled_counts", {"pages": 40})}
    assert 1_500 < some["waits"][0] < 6_000
    assert 1_500 < some["dies"][2] < 6_000


def test_an_empty_queue_has_no_counts(db: Connection) -> None:
    assert (counts(db), live_counts(db)) == ([], [])
