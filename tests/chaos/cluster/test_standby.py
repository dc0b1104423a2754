"""A standby follows, is cut off, is promoted and leaves nothing behind; what it keeps and loses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster import ClusterError
from chaos.cluster.postgres import Postgres, available_majors, postgres
from chaos.cluster.processes import gone
from chaos.cluster.server import Server
from chaos.cluster.standby import Standby, standby
from tests.chaos.cluster.children import HOLD_A_PAIR, child, end, said
from tests.chaos.cluster.following import catch_up
from tests.chaos.cluster.looking import left_below, servers_below
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
long = pytest.mark.chaos_long

WAITS = "select from pg_stat_activity where wait_event = 'SyncRep'"


def ask(server: Server, query: str) -> list[Any]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def do(server: Server, *statements: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A server that no test stops."""
    with postgres() as server:
        yield server


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Standby]]:
    """A primary that a test may crash, with a table `marks`, and a standby that has caught up."""
    with postgres() as primary, standby(primary) as second:
        do(primary, "create table marks (id int)")
        catch_up(second)
        yield primary, second


@long
@pytest.mark.parametrize("major", available_majors())
def test_rows_reach_the_standby_and_survive_the_failover(major: int) -> None:
    with postgres(major=major) as primary, standby(primary) as second:
        do(primary, "create table marks as select generate_series(1, 1000) as id")
        catch_up(second)
        count = "select count(*), pg_is_in_recovery() from marks group by 2"
        assert ask(primary, count) == [(1000, False)]
        assert ask(second, count) == [(1000, True)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            do(second, "insert into marks values (0)")
        with psycopg.connect(second.pair_dsn()) as connection:
            assert connection.info.port == primary.port
        primary.crash()
        second.promote()
        assert ask(second, count) == [(1000, False)]
        with psycopg.connect(second.pair_dsn(), autocommit=True) as connection:
            assert connection.info.port == second.port
            connection.execute("insert into marks values (0)")
        # The old primary may be started again to be looked at: nobody is led to a standby of it.
        second.restart()
        assert ask(second, "select count(*), pg_is_in_recovery() from marks group by 2") == [
            (1001, False)
        ]


def test_what_the_standby_had_not_received_is_lost_and_can_be_counted(
    pair: tuple[Postgres, Standby],
) -> None:
    primary, second = pair
    do(primary, "insert into marks select generate_series(1, 10)")
    catch_up(second)
    second.cut()
    do(primary, *(f"insert into marks values ({number})" for number in range(11, 18)))
    assert ask(primary, "select count(*) from marks") == [(17,)]
    primary.crash()
    second.promote()
    assert ask(second, "select count(*), max(id) from marks") == [(10, 10)]


@long
def test_a_standby_that_was_cut_off_catches_up_when_it_rejoins(
    pair: tuple[Postgres, Standby],
) -> None:
    primary, second = pair
    second.cut()
    do(
        primary,
        "insert into marks values (1)",
        "checkpoint",
        "select pg_switch_wal()",
        "checkpoint",
    )
    with pytest.raises(AssertionError, match="catch up with its primary"):
        catch_up(second, seconds=0.3)
    assert ask(second, "select from marks") == []
    second.rejoin()
    catch_up(second)
    assert ask(second, "select id from marks") == [(1,)]


@long
def test_a_standby_that_crashed_follows_again(pair: tuple[Postgres, Standby]) -> None:
    primary, second = pair
    second.crash()
    do(primary, "insert into marks values (1)")
    second.start()
    catch_up(second)
    assert ask(second, "select id from marks") == [(1,)]


def test_nothing_acknowledged_is_lost_with_a_synchronous_standby() -> None:
    """Writers write as fast as they can while the primary is killed under them."""
    with (
        postgres() as primary,
        standby(primary, synchronous=True) as second,
        ThreadPoolExecutor(3) as pool,
    ):
        do(primary, "create table marks (id int)")
        acknowledged: list[int] = []

        def write(first: int) -> None:
            with psycopg.connect(primary.dsn(), autocommit=True) as connection:
                for number in range(first, 1_000_000, 3):
                    connection.execute("insert into marks values (%s)", [number])
                    acknowledged.append(number)

        writers = [pool.submit(write, first) for first in range(3)]
        wait_for(lambda: len(acknowledged) > 200, "some commits")
        primary.crash()
        second.promote()
        for writer in writers:
            assert isinstance(writer.exception(30), psycopg.OperationalError)
        kept = {number for (number,) in ask(second, "select id from marks")}
        assert set(acknowledged) <= kept
        # At most the one commit of each writer that was under way.
        assert len(kept) - len(acknowledged) <= 3


@long
def test_a_commit_waits_for_a_synchronous_standby_that_is_cut_off() -> None:
    with (
        postgres() as primary,
        standby(primary, synchronous=True) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        do(primary, "create table marks (id int)")
        second.cut()
        commit = pool.submit(do, primary, "insert into marks values (1)")
        wait_for(lambda: ask(primary, WAITS), "the commit to wait")
        # Committed in its own log, but no session may see it yet.
        assert ask(primary, "select from marks") == []
        second.rejoin()
        commit.result(30)
        second.cut()
        lost = pool.submit(do, primary, "insert into marks values (2)")
        wait_for(lambda: ask(primary, WAITS), "the commit to wait")
        primary.crash()
        assert isinstance(lost.exception(30), psycopg.OperationalError)
        second.promote()
        assert ask(second, "select id from marks") == [(1,)]
        # The new primary has no standby to wait for.
        do(second, "insert into marks values (3)")


@long
def test_a_primary_forgets_a_standby_that_ends(primary: Postgres) -> None:
    with standby(primary, synchronous=True):
        assert ask(primary, "show synchronous_standby_names") != [("",)]
        assert ask(primary, "select count(*) from pg_replication_slots") == [(1,)]
        with standby(primary) as third:
            do(primary, "create table seen ()")
            catch_up(third)
            assert ask(third, "show synchronous_standby_names") == [("",)]
    assert ask(primary, "show synchronous_standby_names") == [("",)]
    assert ask(primary, "show synchronous_commit") == [("off",)]
    assert ask(primary, "select from pg_replication_slots") == []


@long
def test_only_a_standby_is_promoted(pair: tuple[Postgres, Standby]) -> None:
    _, second = pair
    second.promote()
    with pytest.raises(ClusterError, match="is a primary already; promote a standby"):
        second.promote()


@long
def test_a_standby_of_a_primary_that_is_down_is_refused(private_root: Path) -> None:
    with postgres() as primary:
        primary.crash()
        with pytest.raises(ClusterError, match="is not running; start it first"), standby(primary):
            pass
    assert left_below(private_root) == []


@long
def test_a_copy_that_fails_is_an_error_with_its_reason(primary: Postgres) -> None:
    access = primary.directory / "data" / "pg_hba.conf"
    before = access.read_text()
    access.write_text(f"host replication all 127.0.0.1/32 reject\n{before}")
    do(primary, "select pg_reload_conf()")
    try:
        with (
            pytest.raises(ClusterError, match=r"`pg_basebackup` of (.|\n)*rejects replication"),
            standby(primary),
        ):
            pass
    finally:
        access.write_text(before)
        do(primary, "select pg_reload_conf()")


@pytest.mark.parametrize("ending", ["success", pytest.param("an error", marks=long)])
def test_a_pair_leaves_nothing(private_root: Path, ending: str) -> None:
    def fail(connection: Connection) -> None:
        connection.close()
        raise ZeroDivisionError

    try:
        with postgres() as primary, standby(primary) as second:
            assert len({server.pid for server in servers_below(private_root)}) > 10
            second.cut()  # the worst state to be left in
            if ending == "an error":
                primary.crash()
                fail(psycopg.connect(second.dsn()))
    except ZeroDivisionError:
        pass
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_pair_whose_run_is_ended_leaves_nothing(private_root: Path, how: signal.Signals) -> None:
    with child(HOLD_A_PAIR) as owner:
        said(owner)
        left = servers_below(private_root)
        assert end(owner, how) == -how
    if how == signal.SIGKILL:
        with postgres():
            assert all(gone(process) for process in left)
    assert servers_below(private_root) == []
    assert left_below(private_root) == []
