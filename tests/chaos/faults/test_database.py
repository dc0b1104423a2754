"""Database faults do to a real server what they say, undo it, and see whether anybody felt it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

import scheduler
from chaos.cluster.postgres import Postgres, postgres
from chaos.faults import SERVER, Fault
from chaos.faults.database import (
    REFUSED,
    Crash,
    DdlLock,
    ExhaustConnections,
    OldTransaction,
    Restart,
    StaleStatistics,
    TerminateBackends,
)
from chaos.patience import harness_dsn
from tests.chaos.faults.arena import arena, bit, struck
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

CRASH = Crash(kind="crash", count=1, lasts=1)
RESTART = Restart(kind="restart", count=1, lasts=1)
TERMINATE = TerminateBackends(kind="terminate-backends", count=1)
EXHAUST = ExhaustConnections(kind="exhaust-connections", count=1, lasts=1)
OLD = OldTransaction(kind="old-transaction", count=1, lasts=1)
STALE = StaleStatistics(kind="stale-statistics", count=1, lasts=1)
LOCK = DdlLock(kind="ddl-lock", count=1, lasts=1)
ALL = [CRASH, RESTART, TERMINATE, EXHAUST, OLD, STALE, LOCK]


def kind(fault: Fault) -> str:
    """The name of a parameter."""
    return fault.kind


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    """A server of this module's own, to be broken, with few sessions to give."""
    with postgres(durable=True, settings={"max_connections": "15"}) as server:
        server.create_database("template")
        scheduler.migrate(server.dsn("template"))
        yield server


@pytest.fixture
def database(own: Postgres) -> Iterator[str]:
    """A database with the table of tasks."""
    name = f"test_{uuid4().hex}"
    own.create_database(name, template="template")
    yield name
    own.drop_database(name)


def add_tasks(dsn: str, count: int) -> None:
    """Put rows into the table of tasks, and let the planner know."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into scheduler.tasks (kind, payload, next_run_at, max_attempts, backoff_base,"
            " backoff_factor, backoff_cap, backoff_jitter, enqueued_at)"
            " select 'quick', '{}', now(), 1, 1, 1, 1, 0, now() from generate_series(1, %s)",
            [count],
        )
        connection.execute("analyze scheduler.tasks")


def number(connection: Connection, query: str) -> int:
    """The only number that a query gives."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("fault", [CRASH, RESTART], ids=kind)
def test_an_outage_ends_every_session_and_healing_brings_back_what_was_committed(
    fault: Fault, own: Postgres, database: str
) -> None:
    dsn = own.dsn(database)
    add_tasks(dsn, 3)
    with psycopg.connect(dsn) as session:
        strike = struck(fault, arena(own, database))
        with pytest.raises(psycopg.OperationalError):
            session.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    strike.heal()
    with psycopg.connect(dsn) as session:
        assert number(session, "select count(*) from scheduler.tasks") == 3


def test_nothing_is_injected_into_a_server_that_is_down(own: Postgres) -> None:
    where = arena(own)
    strike = struck(CRASH, where)
    try:
        assert [fault.inject(where) for fault in ALL] == [None] * len(ALL)
    finally:
        strike.heal()


def test_a_server_does_not_go_down_under_another_fault_or_without_a_lease(own: Postgres) -> None:
    where = arena(own)
    where.busy.append(SERVER)
    assert [CRASH.inject(where), RESTART.inject(where)] == [None, None]
    where.busy.clear()
    where.leases = dict
    assert [CRASH.inject(where), RESTART.inject(where)] == [None, None]
    assert own.running


def test_terminated_backends_are_gone_and_the_harness_s_own_alone_are_left_alone(
    own: Postgres, database: str
) -> None:
    dsn = own.dsn(database)
    with psycopg.connect(dsn) as theirs, psycopg.connect(harness_dsn(dsn, "test")) as ours:
        assert bit(TERMINATE, struck(TERMINATE, arena(own, database)))
        for session in (theirs, ours):
            with pytest.raises(psycopg.OperationalError):
                session.execute("select 1")
    with psycopg.connect(harness_dsn(dsn, "test")) as ours:
        assert TERMINATE.inject(arena(own, database)) is None
        ours.execute("select 1")


def test_exhausted_connections_refuse_newcomers_even_when_a_session_ends(
    own: Postgres, database: str, tmp_path: Path
) -> None:
    dsn = own.dsn(database)
    early = psycopg.connect(dsn, autocommit=True)  # or it would see one moment for ever
    where = arena(own, database)
    where.fleet.directory = tmp_path
    log = tmp_path / "workers" / "w1.1.log"
    log.parent.mkdir()
    log.write_text("worker-started\n")
    strike = struck(EXHAUST, where)
    # Sessions of earlier tests may still have been on their way out.
    sessions = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
    with early:
        wait_for(lambda: number(early, sessions) == 15, "all sessions to be taken")
    # What was given back is taken again.
    wait_for(lambda: refused(dsn), "the server to be full again")
    log.write_text(f"worker-started\nFATAL:  {REFUSED}\n")  # as a worker's log has it
    assert bit(EXHAUST, strike)
    wait_for(lambda: not refused(dsn), "the sessions to be given back")


def refused(dsn: str) -> bool:
    """Whether the server has no session left."""
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError as error:
        if "too many clients" not in str(error):
            raise
        return True
    return False


def test_exhausted_connections_that_no_worker_missed_did_not_bite(own: Postgres) -> None:
    strike = struck(EXHAUST, arena(own))
    wait_for(lambda: refused(own.dsn()), "somebody else to be refused")
    assert not bit(EXHAUST, strike)


def unremovable(dsn: str) -> int:
    """How many dead rows of the table of tasks a VACUUM has to leave."""
    said: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
        connection.execute("vacuum (verbose) scheduler.tasks")
    found = re.search(r"(\d+) are dead but not yet removable", "".join(said))
    assert found is not None
    return int(found[1])


def test_an_old_transaction_keeps_dead_rows_until_it_is_healed(
    own: Postgres, database: str
) -> None:
    dsn = own.dsn(database)
    add_tasks(dsn, 50)
    strike = struck(OLD, arena(own, database))
    with psycopg.connect(dsn) as connection:
        connection.execute("update scheduler.tasks set attempts = 0")
    assert unremovable(dsn) == 50
    assert bit(OLD, strike)
    assert unremovable(dsn) == 0


def test_an_old_transaction_behind_which_nothing_happened_did_not_bite(
    own: Postgres, database: str
) -> None:
    strike = struck(OLD, arena(own, database))
    assert not bit(OLD, strike)


def estimate(dsn: str) -> int:
    """How many tasks the planner expects."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "explain (format json) select from scheduler.tasks where status = 'pending'"
        ).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Plan Rows"])


def test_stale_statistics_hide_the_rows_from_the_planner_until_healed(
    own: Postgres, database: str
) -> None:
    dsn = own.dsn(database)
    add_tasks(dsn, 1000)
    assert estimate(dsn) == 1000
    strike = struck(STALE, arena(own, database))
    assert estimate(dsn) == 1
    assert bit(STALE, strike)
    assert estimate(dsn) == 1000


def test_stale_statistics_of_an_empty_table_did_not_bite(own: Postgres, database: str) -> None:
    assert not bit(STALE, struck(STALE, arena(own, database)))


def test_stale_statistics_that_were_put_right_meanwhile_did_not_bite(
    own: Postgres, database: str
) -> None:
    add_tasks(own.dsn(database), 10)
    strike = struck(STALE, arena(own, database))
    with psycopg.connect(own.dsn(database)) as connection:
        connection.execute("analyze scheduler.tasks")
    assert not bit(STALE, strike)


def test_a_ddl_lock_keeps_others_waiting_until_it_is_healed(own: Postgres, database: str) -> None:
    dsn = own.dsn(database)
    strike = struck(LOCK, arena(own, database))

    def read() -> None:
        with psycopg.connect(dsn) as waiting:
            waiting.execute("select from scheduler.tasks")

    reader = Thread(target=read)
    reader.start()
    # In a transaction pg_stat_activity would show the same moment again and again.
    with psycopg.connect(own.dsn(), autocommit=True) as watching:
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        wait_for(lambda: number(watching, waits), "the reader to wait")
    assert bit(LOCK, strike)
    reader.join(30)
    assert not reader.is_alive()


def test_a_ddl_lock_for_which_a_statement_waited_in_vain_bit(own: Postgres, database: str) -> None:
    strike = struck(LOCK, arena(own, database))
    with (
        pytest.raises(psycopg.errors.LockNotAvailable),
        psycopg.connect(harness_dsn(own.dsn(database), "test")) as connection,
    ):
        connection.execute("select from scheduler.tasks")
    assert bit(LOCK, strike)


def test_a_ddl_lock_in_nobodys_way_did_not_bite(own: Postgres, database: str) -> None:
    assert not bit(LOCK, struck(LOCK, arena(own, database)))


@pytest.mark.parametrize("fault", [OLD, LOCK], ids=kind)
def test_a_session_that_was_lost_meanwhile_is_healed_and_did_not_bite(
    fault: Fault, own: Postgres, database: str
) -> None:
    strike = struck(fault, arena(own, database))
    struck(TERMINATE, arena(own, database))
    assert not bit(fault, strike)
