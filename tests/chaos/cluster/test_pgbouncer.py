"""The pooler shares few sessions among many clients, by transaction, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from chaos.cluster import ClusterError
from chaos.cluster import pgbouncer as module
from chaos.cluster.pgbouncer import PgBouncer, find_pgbouncer, pgbouncer
from chaos.cluster.postgres import Postgres
from chaos.cluster.processes import gone
from tests.chaos.cluster.children import HOLD_A_PGBOUNCER, child, end, said
from tests.chaos.cluster.looking import left_below, servers_below
from tests.waiting import wait_for

needs_pgbouncer = pytest.mark.usefixtures("real_pgbouncer")
BACKEND = "select pg_backend_pid()"


@pytest.fixture
def pooler(server: Postgres, real_pgbouncer: Path) -> Iterator[PgBouncer]:
    """A pooler with one session a database."""
    with pgbouncer(server, pool_size=1) as running:
        yield running


def waits(console: Connection) -> bool:
    """Whether a client waits for a session of the server."""
    with console.cursor(row_factory=dict_row) as cursor:
        return any(pool["cl_waiting"] for pool in cursor.execute("show pools"))


def test_many_clients_share_one_session_by_transaction(pooler: PgBouncer) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(psycopg.connect(pooler.dsn(), autocommit=True)) for _ in range(5)
        ]
        assert len({str(client.execute(BACKEND).fetchall()) for client in clients}) == 1
        # In a transaction a client has the session to itself, and the others wait.
        console = stack.enter_context(psycopg.connect(pooler.dsn("pgbouncer"), autocommit=True))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        with clients[0].transaction():
            clients[0].execute(BACKEND)
            waiting = threads.submit(clients[1].execute, BACKEND)
            wait_for(lambda: waits(console), "the other client to wait")
            assert not waiting.done()
        waiting.result(30)


def test_it_refuses_options_and_what_a_client_sets_is_the_next_one_s(pooler: PgBouncer) -> None:
    """Why a worker must be told of it."""
    with psycopg.connect(pooler.dsn(), autocommit=True) as first:
        first.execute("set work_mem = '7MB'")
        with psycopg.connect(pooler.dsn()) as second:
            assert second.execute("show work_mem").fetchall() == [("7MB",)]
        first.execute("discard all")
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(pooler.dsn(), options="-c work_mem=7MB")


def test_it_crashes_and_comes_back_on_its_port(pooler: PgBouncer) -> None:
    port = pooler.port
    with psycopg.connect(pooler.dsn(), autocommit=True) as connection:
        with pytest.raises(ClusterError, match="is running already; crash it first"):
            pooler.start()
        pooler.crash()
        assert not pooler.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(pooler.dsn())
    with pytest.raises(ClusterError, match="is not running; start it first"):
        pooler.crash()
    pooler.start()
    assert pooler.port == port
    with psycopg.connect(pooler.dsn()) as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]


@needs_pgbouncer
def test_a_setting_that_it_refuses_is_an_error_with_its_reason(
    server: Postgres, private_root: Path
) -> None:
    with (
        pytest.raises(ClusterError, match=r"at its start; its log says:(.|\n)*pool_mode"),
        pgbouncer(server, settings={"pool_mode": "loud"}),
    ):
        pass
    assert left_below(private_root) == []


@needs_pgbouncer
def test_nothing_is_left_of_it(server: Postgres, private_root: Path) -> None:
    with pgbouncer(server) as pooler:
        assert len(servers_below(private_root)) == 1
        psycopg.connect(pooler.dsn()).close()
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@needs_pgbouncer
@pytest.mark.chaos_long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_one_whose_run_is_ended(
    server: Postgres, private_root: Path, how: signal.Signals
) -> None:
    with child(HOLD_A_PGBOUNCER) as owner:
        said(owner)
        left = servers_below(private_root)
        assert "pgbouncer" in {process.name() for process in left}
        assert end(owner, how) == -how
    if how == signal.SIGKILL:
        with pgbouncer(server):
            assert all(gone(process) for process in left)
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


def test_without_it_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "_PLACES", (str(tmp_path),))
    with pytest.raises(ClusterError, match="install it from your distribution"):
        find_pgbouncer()
