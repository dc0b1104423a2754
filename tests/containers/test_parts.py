"""Servers in containers crash, stand still, fail over and vanish as those in processes do."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import docker
import psycopg
import pytest

from chaos.cluster import ClusterError
from chaos.cluster.containers import ContainerPostgres, postgres, standby, toxiproxy
from chaos.cluster.server import Server
from tests.chaos.cluster.children import child, end, said

pytestmark = [pytest.mark.slow, pytest.mark.chaos_long]

HOLD_A_PAIR = """
import time
from chaos.cluster.containers import postgres, standby
with postgres() as primary, standby(primary, synchronous=True) as second:
    second.pause()
    print(primary.container.name, second.container.name, flush=True)
    time.sleep(600)
"""


def do(server: Server, *statements: str) -> list[Any]:
    """What the last statement returns."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


@pytest.fixture(scope="module")
def server() -> Iterator[ContainerPostgres]:
    """A server that tests may crash and leave running."""
    with postgres(durable=True, settings={"work_mem": "5MB"}) as running:
        yield running


def volumes(*containers: str) -> set[str]:
    """The volumes of containers that exist."""
    client = docker.from_env()
    try:
        mounts = [
            mount for name in containers for mount in client.containers.get(name).attrs["Mounts"]
        ]
        return {mount["Name"] for mount in mounts}
    finally:
        client.close()


def left(containers: Iterable[str], volumes: Iterable[str]) -> list[str]:
    """Which of these containers and volumes exist still."""
    client = docker.from_env()
    try:
        existing = {one.name for one in client.containers.list(all=True, ignore_removed=True)}
        existing |= {one.id for one in client.volumes.list()}
        return sorted(existing & {*containers, *volumes})
    finally:
        client.close()


def test_a_server_comes_up_with_its_settings_and_says_its_version(
    server: ContainerPostgres,
) -> None:
    assert do(server, "show work_mem") == [("5MB",)]
    assert do(server, "show wal_level") == [("logical",)]
    assert do(server, "show server_encoding") == [("UTF8",)]
    [(number,)] = do(server, "show server_version_num")
    assert server.major == int(number) // 10_000
    with pytest.raises(ClusterError, match="is running already"):
        server.start()


def test_what_was_committed_survives_a_crash_on_the_same_port(server: ContainerPostgres) -> None:
    do(server, "create table marks as select generate_series(1, 1000) as id")
    with psycopg.connect(server.dsn(), autocommit=True) as open_session:
        log_before = server.log_size()
        server.crash()
        assert not server.running
        with pytest.raises(psycopg.OperationalError):
            open_session.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(server.dsn(), connect_timeout=5)
    with pytest.raises(ClusterError, match="is not running"):
        server.crash()
    server.start()
    assert do(server, "select count(*) from marks") == [(1000,)]
    # It was no shutdown: the server says itself that it had to recover.
    assert "was not properly shut down" in server.log_since(log_before)
    log_before = server.log_size()
    server.restart()
    assert do(server, "drop table marks", "select 1") == [(1,)]
    assert "was not properly shut down" not in server.log_since(log_before)
    assert "received fast shutdown request" in server.log_since(log_before)


def test_a_server_that_stands_still_answers_nobody_and_goes_on_where_it_was(
    server: ContainerPostgres,
) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute("set statement_timeout = 12345")
        server.pause()
        assert server.running
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.dsn(), connect_timeout=2)
        server.resume()
        assert session.execute("show statement_timeout").fetchone() == ("12345ms",)


def test_a_failover_keeps_what_is_acknowledged_and_the_old_primary_can_be_read_in_private() -> None:
    with postgres() as primary, standby(primary, synchronous=True) as second:
        assert isinstance(second, ContainerPostgres)
        names = [primary.container.name, second.container.name]
        data = volumes(*names)
        do(primary, "create table marks (id int)", "insert into marks values (1)")
        assert do(second, "select pg_is_in_recovery()") == [(True,)]
        second.keep_out()
        primary.crash()
        second.promote()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(second.pair_dsn())
        second.let_in()
        with psycopg.connect(second.pair_dsn(), autocommit=True) as connection:
            assert connection.info.port == second.port
            connection.execute("insert into marks values (2)")
        assert do(second, "select id from marks order by id") == [(1,), (2,)]
        with primary.in_private("postgres") as dsn, psycopg.connect(dsn) as connection:
            assert connection.info.port not in (primary.port, second.port)
            assert connection.execute("select id from marks").fetchall() == [(1,)]
            with pytest.raises(psycopg.OperationalError, match="refused"):
                psycopg.connect(primary.dsn(), connect_timeout=5)
        second.crash()
        second.start()
        # Its data were not copied a second time.
        assert do(second, "select count(*), pg_is_in_recovery() from marks group by 2") == [
            (2, False)
        ]
    assert len(data) >= 2
    assert not left(names, data)


def test_toxiproxy_in_a_container_swallows_what_both_sides_send(server: ContainerPostgres) -> None:
    with toxiproxy() as toxi:
        proxy = toxi.proxy("one", f"127.0.0.1:{server.port}")
        dsn = psycopg.conninfo.make_conninfo(server.dsn(), host=proxy.host, port=proxy.port)
        with psycopg.connect(dsn, connect_timeout=5):
            pass
        proxy.black_hole()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=2)
        proxy.heal()
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_nothing_is_left_after_ctrl_c() -> None:
    with child(HOLD_A_PAIR) as process:
        names = said(process).split()
        data = volumes(*names)
        end(process, signal.SIGINT)
    assert not left(names, data)


def test_what_a_killed_harness_left_is_gone_after_the_next_start(
    server: ContainerPostgres,
) -> None:
    with child(HOLD_A_PAIR) as process:
        names = said(process).split()
        data = volumes(*names)
        end(process, signal.SIGKILL)
    with toxiproxy():
        # Ours live: they are not taken for leftovers.
        assert server.running
    assert not left(names, data)


def test_a_setting_that_the_server_refuses_is_told_in_its_own_words() -> None:
    with (
        pytest.raises(ClusterError, match=r"(?s)ended at its start.*unrecognized configuration"),
        postgres(settings={"no_such_setting": "1"}),
    ):
        pass


def test_an_image_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEPROOF_TOXIPROXY_IMAGE", "localhost:9/nothing:here")
    with (
        pytest.raises(ClusterError, match=r"localhost:9/nothing:here.*LEASEPROOF_TOXI"),
        toxiproxy(),
    ):
        pass
