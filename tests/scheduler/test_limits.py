"""Limits per kind: never more leases than the limit, whoever claims, and also when holders die."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Lock, Thread

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import Attempt, Registry, enqueue, enqueue_many
from scheduler.dispatch import at_limit, claim, declare_limits, new_owner, next_due
from scheduler.finish import complete
from scheduler.lease import reclaim
from tests.scheduler.working import over, running, statuses, worker

REGISTRY = Registry()
LEASE = timedelta(seconds=60)
KINDS = {"few": LEASE, "many": LEASE}


@REGISTRY.kind("few", int, lease=LEASE, limit=3)
def few(attempt: Attempt, payload: int) -> None:
    """Only enqueued."""


@REGISTRY.kind("many", int, lease=LEASE)
def many(attempt: Attempt, payload: int) -> None:
    """Only enqueued."""


@pytest.fixture
def limited(db: Connection) -> Connection:
    """A database whose kind `few` has a limit of three."""
    declare_limits(db, {"few": 3, "many": None})
    return db


def take(db: Connection, limit: int = 10) -> list[Attempt]:
    """One claim of both kinds."""
    return claim(db, new_owner("w"), KINDS, limit, 0.0, ["few"])


def test_a_claim_takes_what_the_limit_leaves(limited: Connection) -> None:
    enqueue_many(limited, few, range(10))
    assert len(take(limited, 2)) == 2
    assert len(take(limited)) == 1
    assert take(limited) == []


def test_an_attempt_that_ends_makes_room_for_one(limited: Connection) -> None:
    enqueue_many(limited, few, range(10))
    complete(limited, [take(limited)[0].lease])
    assert len(take(limited)) == 1


def test_one_kind_at_its_limit_does_not_hold_up_another(limited: Connection) -> None:
    enqueue_many(limited, few, range(10))
    later = enqueue_many(limited, many, range(4))
    got = take(limited, 5)
    assert [a.kind for a in got].count("few") == 3
    assert [a.task for a in take(limited, 5)] == later[2:]


def test_a_dead_holders_lease_counts_until_it_is_reclaimed_and_then_no_more(
    limited: Connection, clock: Clock
) -> None:
    enqueue_many(limited, few, range(6))
    take(limited)
    clock.advance(2 * LEASE)
    assert take(limited) == []  # the holders may still run
    assert len(reclaim(limited, 10)) == 3
    assert len(take(limited)) == 3


def test_a_claim_that_does_not_know_of_the_limit_leaves_the_kind_alone(
    limited: Connection,
) -> None:
    enqueue(limited, few, 0)
    other = enqueue(limited, many, 0)
    assert [a.task for a in claim(limited, new_owner("old"), KINDS, 10, 0.0)] == [other]


def test_while_one_claim_holds_a_limit_others_pass_the_kind_by(
    limited: Connection, dsn: str
) -> None:
    enqueue(limited, few, 0)
    with psycopg.connect(dsn) as holder:
        holder.execute("select from scheduler.kind_limits for update")
        assert take(limited) == []
    assert len(take(limited)) == 1


def test_an_idle_worker_is_not_kept_awake_by_a_kind_at_its_limit(limited: Connection) -> None:
    enqueue_many(limited, few, range(10))
    assert next_due(limited, KINDS, ["few"]) is not None
    take(limited)
    assert next_due(limited, KINDS, ["few"]) is None


def test_an_idle_worker_is_not_kept_awake_by_a_kind_whose_limit_it_does_not_know(
    limited: Connection,
) -> None:
    enqueue_many(limited, few, range(10))
    assert next_due(limited, KINDS) is None
    enqueue(limited, many, 1)
    assert next_due(limited, KINDS) is not None


def test_many_claims_at_once_never_exceed_the_limit(limited: Connection, dsn: str) -> None:
    enqueue_many(limited, few, range(300))
    counts: list[int] = []

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while statuses(connection).get("completed", 0) < 300:
                got = take(connection, 2)
                counts.append(statuses(connection).get("running", 0))
                complete(connection, [a.lease for a in got])

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses(limited) == {"completed": 300}
    assert max(counts) <= 3


def test_workers_declare_their_limits_once_and_keep_them(db: Connection, dsn: str) -> None:
    registry = Registry()
    lock, at_once, most, ended = Lock(), 0, 0, Event()

    @registry.kind("few", int, limit=2)
    def handler(attempt: Attempt, payload: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        ended.wait(0.005)
        with lock:
            at_once -= 1

    tasks = enqueue_many(db, handler, range(40))
    with running(*(worker(registry, dsn) for _ in range(3))):
        for task in tasks:
            over(db, task)
    assert most == 2
    rows = db.execute("select action, kind from scheduler.audit where action = 'limit'").fetchall()
    assert rows == [("limit", "few")]


def test_a_limit_that_the_code_drops_is_dropped(limited: Connection) -> None:
    declare_limits(limited, {"few": None})
    enqueue_many(limited, few, range(10))
    assert len(claim(limited, new_owner("w"), KINDS, 10, 0.0)) == 10


@pytest.mark.parametrize("limit", [0, -1, 1_000_001])
def test_a_limit_that_cannot_be_meant_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="a limit must be from 1 to 1000000 tasks"):
        Registry().kind("work", int, limit=limit)(lambda attempt, payload: None)


def test_a_limit_holds_up_the_kinds_that_have_tasks_due_and_no_room(
    db: Connection, clock: Clock
) -> None:
    declare_limits(db, {"many": 1})
    declare_limits(db, {"few": 1})
    both = ["many", "few"]

    def claimed() -> list[str]:
        attempts = claim(db, new_owner("w"), KINDS, 10, 0.0, both)
        return sorted(attempt.kind for attempt in attempts)

    enqueue_many(db, few, range(2))
    assert claimed() == ["few"]
    enqueue(db, many, 1)
    assert at_limit(db, both) == ["few"]  # and of `many` none runs
    assert at_limit(db, ["many"]) == []
    assert claimed() == ["many"]
    assert at_limit(db, both) == ["few"]  # and of `many` none waits
    enqueue(db, many, 1, run_at=clock.now + LEASE)
    assert at_limit(db, both) == ["few"]  # nor is any due
    clock.advance(LEASE)
    assert at_limit(db, both) == ["few", "many"]
