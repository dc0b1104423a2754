"""A worker goes on where writes are taken: after a failover, at a server turned read-only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Event

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import postgres
from chaos.cluster.standby import Standby, standby
from scheduler import Attempt, Registry, enqueue, migrate
from scheduler.session import connect_worker
from tests.chaos.cluster.following import catch_up
from tests.scheduler.working import (
    LEASE,
    WORKERS,
    listening,
    outcomes,
    over,
    running,
    task,
    worker,
)
from tests.waiting import wait_for

NEVER = timedelta(hours=1)


@pytest.fixture
def second() -> Iterator[Standby]:
    """The standby of a primary that has the schema and a table `effects` in database `postgres`."""
    with postgres() as primary, standby(primary) as follower:
        migrate(primary.dsn())
        with psycopg.connect(primary.dsn(), autocommit=True) as db:
            db.execute("create table effects (task bigint)")
        yield follower


def connect(dsn: str) -> Connection:
    """A session that commits each statement."""
    return psycopg.connect(dsn, autocommit=True)


@pytest.mark.slow
def test_a_worker_goes_on_at_the_promoted_standby_and_listens_there(second: Standby) -> None:
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        """Does nothing."""

    @registry.kind("long", int, lease=timedelta(minutes=10))  # no renewal meanwhile
    def long(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(60)

    with running(worker(registry, second.pair_dsn(), poll=NEVER, reclaim_every=NEVER)):
        with connect(second.primary.dsn()) as db:
            listening(db)
            across = enqueue(db, long, 1)
            assert started.wait(30)
            listening(db)
        catch_up(second)
        second.primary.crash()
        second.promote()
        with connect(second.dsn()) as db:
            listening(db)
            done.set()
            over(db, across)
            assert outcomes(db, across) == ["completed"]
            listening(db)
            # The worker does not look by itself: it hears of this one.
            over(db, enqueue(db, work, 1))


@pytest.mark.slow
@pytest.mark.chaos_long
def test_no_session_of_a_worker_stays_at_a_server_that_became_read_only(second: Standby) -> None:
    """The old primary lives on, and nothing breaks the sessions that are there."""
    registry = Registry()

    @registry.transactional("effect", int)
    def effect(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("insert into effects values (%s)", [attempt.task])

    old = second.primary
    with running(worker(registry, second.pair_dsn(), slots=1)), connect(old.dsn()) as before:
        over(before, enqueue(before, effect, 1))
        theirs = f"select from pg_stat_activity where {WORKERS}".encode()
        assert len(before.execute(theirs).fetchall()) == 3
        catch_up(second)
        second.promote()
        before.execute("alter system set default_transaction_read_only = on")
        before.execute("select pg_reload_conf()")
        # The dispatcher sees it at its next claim, and the keeper, who has nothing to renew, goes
        # with it. The slot's session waits for its next task.
        wait_for(lambda: len(before.execute(theirs).fetchall()) == 1, "the sessions to move")
        with connect(second.dsn()) as after:
            number = enqueue(after, effect, 2)
            over(after, number)
            assert outcomes(after, number) == ["completed"]
            assert len(after.execute(theirs).fetchall()) == 3
        assert before.execute(theirs).fetchall() == []


def test_an_attempt_does_not_fail_for_a_session_that_ended_before_it(
    db: Connection, dsn: str
) -> None:
    registry, ran = Registry(), list[int]()

    @registry.transactional("work", int)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        ran.append(connection.info.backend_pid)

    with running(worker(registry, dsn, slots=1)):
        over(db, enqueue(db, work, 1))
        assert db.execute("select pg_terminate_backend(%s)", [ran[0]]).fetchall() == [(True,)]
        number = enqueue(db, work, 2)
        over(db, number)
        assert outcomes(db, number) == ["completed"]
        assert task(db, number).attempts == 1
    assert ran[0] != ran[1]


def test_a_worker_does_not_connect_to_a_server_that_takes_no_writes(
    db: Connection, dsn: str
) -> None:
    db.execute(f"alter database {db.info.dbname} set default_transaction_read_only = on".encode())
    with pytest.raises(psycopg.OperationalError, match="read-only"):
        connect_worker(dsn, "name", LEASE)
    chosen = psycopg.conninfo.make_conninfo(dsn, target_session_attrs="any")
    with connect_worker(chosen, "name", LEASE) as connection:
        assert connection.execute("show transaction_read_only").fetchone() == ("on",)
