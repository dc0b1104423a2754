"""The network fails as ordered, heals as told, and the server behind it leaves nothing."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psycopg
import pytest

from chaos.cluster import ClusterError
from chaos.cluster.postgres import Postgres, postgres
from chaos.cluster.processes import gone, wait_for
from chaos.cluster.toxiproxy import Proxy, Toxiproxy, find_server, toxiproxy
from tests.chaos.cluster.children import HOLD_A_TOXIPROXY, child, end, said
from tests.chaos.cluster.looking import left_below, servers_below

pytestmark = pytest.mark.slow

SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"  # a server answers it with one byte, N or S


needs_toxiproxy = pytest.mark.usefixtures("real_toxiproxy")


@pytest.fixture(scope="module")
def server(real_toxiproxy: Path) -> Iterator[Toxiproxy]:
    with toxiproxy() as running:
        yield running


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def proxy(server: Toxiproxy, database: Postgres, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    proxy = server.proxy(request.node.name, f"127.0.0.1:{database.port}")
    yield proxy
    proxy.remove()


def connect(proxy: Proxy, seconds: int = 30) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host=proxy.host,
        port=proxy.port,
        user="postgres",
        dbname="postgres",
        connect_timeout=seconds,
        autocommit=True,
    )


def round_trip(connection: psycopg.Connection[tuple[object, ...]]) -> float:
    before = time.monotonic()
    connection.execute("select 1", prepare=False)  # preparing is a round trip of its own
    return time.monotonic() - before


def silent(client: socket.socket, seconds: float = 0.3) -> bool:
    """Whether the connection is open and nothing arrives on it for so long."""
    client.settimeout(seconds)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    return False


def test_a_query_passes_through_a_healthy_proxy(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_black_hole_swallows_a_query_and_a_healed_proxy_lets_a_new_connection_through(
    proxy: Proxy, database: Postgres
) -> None:
    failures: list[psycopg.Error] = []

    def ask(connection: psycopg.Connection[tuple[object, ...]]) -> None:
        try:
            connection.execute("create table swallowed ()")
        except psycopg.OperationalError as error:
            failures.append(error)

    with connect(proxy) as connection:
        proxy.black_hole()
        asking = threading.Thread(target=ask, args=[connection])
        asking.start()
        asking.join(0.5)
        assert asking.is_alive()
        with psycopg.connect(database.dsn()) as beside:
            assert beside.execute("select to_regclass('swallowed')").fetchone() == (None,)
        proxy.heal()
        # The docstring of `heal`: the connection that lost bytes is closed.
        asking.join(30)
        assert not asking.is_alive()
        assert len(failures) == 1
    with connect(proxy) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_black_hole_accepts_a_new_connection_and_stays_silent(proxy: Proxy) -> None:
    proxy.black_hole()
    with socket.create_connection((proxy.host, proxy.port), timeout=30) as client:
        client.sendall(SSL_REQUEST)
        assert silent(client)
    proxy.heal()
    with socket.create_connection((proxy.host, proxy.port), timeout=30) as client:
        client.sendall(SSL_REQUEST)
        assert client.recv(1) in b"NS"


def test_a_black_hole_swallows_what_the_server_sends(proxy: Proxy, database: Postgres) -> None:
    with (
        psycopg.connect(database.dsn(), autocommit=True) as beside,
        contextlib.closing(connect(proxy)) as listening,
    ):
        listening.execute("listen news")
        beside.execute("notify news, 'heard'")
        assert [news.payload for news in listening.notifies(timeout=30, stop_after=1)] == ["heard"]
        proxy.black_hole()
        beside.execute("notify news, 'swallowed'")
        assert list(listening.notifies(timeout=0.3)) == []


def test_an_idle_connection_of_a_black_hole_is_closed_by_healing(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.black_hole()
        proxy.heal()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


def test_a_proxy_that_is_down_refuses_and_is_back_on_its_port_when_healed(proxy: Proxy) -> None:
    port = proxy.port
    with connect(proxy) as connection:
        proxy.down()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy)
    if sys.platform == "linux":
        with socket.socket() as thief, pytest.raises(OSError, match="Address already in use"):
            thief.bind((proxy.host, port))
    proxy.heal()
    assert proxy.port == port
    with connect(proxy) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_latency_delays_each_reply_and_ends_with_healing(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        usual = min(round_trip(connection) for _ in range(5))
        proxy.latency(400)
        assert round_trip(connection) >= 0.4
        proxy.heal()
        assert min(round_trip(connection) for _ in range(5)) < (usual + 0.4) / 2


def test_jitter_makes_some_delays_shorter_than_the_latency(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.latency(200, jitter_ms=200)
        assert any(round_trip(connection) < 0.2 for _ in range(60))


def test_reset_peer_resets_new_connections_and_ends_old_ones(proxy: Proxy) -> None:
    address = (proxy.host, proxy.port)
    with socket.create_connection(address) as idle, connect(proxy) as session:
        proxy.reset_peer()
        with pytest.raises(psycopg.OperationalError):
            session.execute("select 1")
        with socket.create_connection(address, timeout=30) as new:
            new.sendall(SSL_REQUEST)
            with pytest.raises(ConnectionResetError):
                new.recv(1)
        assert silent(idle)
    proxy.heal()
    with connect(proxy) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("latency_first", [True, False])
def test_faults_heal_together_with_bytes_on_their_way(proxy: Proxy, latency_first: bool) -> None:
    with contextlib.closing(connect(proxy)) as connection:
        if latency_first:
            proxy.latency(60_000)
        else:
            proxy.black_hole()
        connection.pgconn.send_query(b"select 1")  # and do not wait for the reply
        connection.pgconn.flush()
        if latency_first:
            proxy.black_hole()
        else:
            proxy.latency(60_000)
        proxy.heal()
    proxy.down()
    proxy.black_hole()
    proxy.heal()
    with connect(proxy, seconds=30) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_black_hole_lets_the_end_of_a_connection_through(
    proxy: Proxy, database: Postgres
) -> None:
    with connect(proxy) as connection:
        backend = connection.info.backend_pid
        proxy.black_hole()
    with psycopg.connect(database.dsn(), autocommit=True) as beside:

        def left() -> bool:
            query = "select from pg_stat_activity where pid = %s"
            return beside.execute(query, [backend]).fetchone() is None

        assert wait_for(left, 30)


def test_the_same_fault_twice_is_refused(proxy: Proxy) -> None:
    proxy.latency(1)
    with pytest.raises(ClusterError, match="toxic already exists"):
        proxy.latency(2)


def test_an_unknown_toxic_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ClusterError, match="invalid toxic type"):
        proxy._add("poltergeist", "upstream", {})


def test_a_name_is_used_once(server: Toxiproxy, database: Postgres) -> None:
    first = server.proxy("twice, so it is?", f"127.0.0.1:{database.port}")
    with pytest.raises(ClusterError, match="proxy already exists"):
        server.proxy("twice, so it is?", f"127.0.0.1:{database.port}")
    first.remove()
    second = server.proxy("twice, so it is?", f"127.0.0.1:{database.port}")
    second.remove()


def test_a_name_with_a_slash_is_refused(server: Toxiproxy) -> None:
    with pytest.raises(ClusterError, match="'a/b' cannot name a proxy"):
        server.proxy("a/b", "127.0.0.1:1")


def test_a_removed_proxy_is_not_found_by_any_method(server: Toxiproxy, database: Postgres) -> None:
    proxy = server.proxy("removed", f"127.0.0.1:{database.port}")
    proxy.remove()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))
    for act in (proxy.black_hole, proxy.down, proxy.reset_peer, proxy.heal, proxy.remove):
        with pytest.raises(ClusterError, match="proxy not found"):
            act()
    with pytest.raises(ClusterError, match="proxy not found"):
        proxy.latency(1)


def test_a_status_that_the_package_lets_pass_is_an_error() -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"on fire")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Broken) as broken:
        thread = threading.Thread(target=broken.handle_request)
        thread.start()
        with pytest.raises(ClusterError, match=r"status 500: on fire"):
            Toxiproxy("127.0.0.1", broken.server_port)._call("get", "/version")
        thread.join()


def test_a_server_that_is_gone_is_an_error() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone_server = Toxiproxy("127.0.0.1", nobody.getsockname()[1])
        with pytest.raises(ClusterError, match="does not answer POST /proxies"):
            gone_server.proxy("any", "127.0.0.1:1")


def test_two_servers_in_one_process_do_not_mix(
    server: Toxiproxy, database: Postgres, private_root: Path
) -> None:
    with toxiproxy() as other:
        assert other.port != server.port
        here = server.proxy("same name", f"127.0.0.1:{database.port}")
        there = other.proxy("same name", f"127.0.0.1:{database.port}")
        there.down()
        with connect(here) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        here.remove()
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


def test_a_proxy_of_the_environment_does_not_come_between(
    server: Toxiproxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server._call("get", "/version")


def test_a_given_server_is_used_and_only_our_proxies_are_removed(
    server: Toxiproxy, database: Postgres, monkeypatch: pytest.MonkeyPatch, private_root: Path
) -> None:
    theirs = server.proxy("same name", f"127.0.0.1:{database.port}")
    monkeypatch.setenv("TOXIPROXY_URL", f"http://127.0.0.1:{server.port}")
    with toxiproxy() as given:
        assert left_below(private_root) == []
        ours = given.proxy("same name", f"127.0.0.1:{database.port}")
        with connect(ours) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ours.host, ours.port))
    with connect(theirs) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    theirs.remove()


@pytest.mark.parametrize("url", ["http://example.org:8474", "https://127.0.0.1:8474", "http://"])
def test_a_given_server_must_be_on_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOXIPROXY_URL", url)
    with pytest.raises(ClusterError, match=r"must be http://127.0.0.1:PORT"), toxiproxy():
        pass


def test_a_server_that_cannot_start_is_an_error_with_its_reason(
    tmp_path: Path, private_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "toxiproxy-server"
    program.write_text("#!/bin/sh\necho no network today\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_server() == program
    reason = r"status 3 at its start(.|\n)*no network today"
    with pytest.raises(ClusterError, match=reason), toxiproxy():
        pass
    assert left_below(private_root) == []


@needs_toxiproxy
def test_nothing_is_left_after_an_interrupt_at_the_terminal(private_root: Path) -> None:
    with child(HOLD_A_TOXIPROXY) as owner:
        said(owner)
        (server,) = servers_below(private_root)
        # Ctrl-C goes to the owner's whole group: the server must hear it from its owner only.
        assert os.getpgid(server.pid) != owner.pid
        assert end(owner, signal.SIGINT) == -signal.SIGINT
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@needs_toxiproxy
def test_the_server_that_a_killed_run_left_goes_at_the_next_start(private_root: Path) -> None:
    with child(HOLD_A_TOXIPROXY) as owner:
        said(owner)
        assert end(owner, signal.SIGKILL) == -signal.SIGKILL
    (left,) = servers_below(private_root)
    with toxiproxy():
        assert gone(left)
        assert len(left_below(private_root)) == 2  # one directory and its owner file
    assert left_below(private_root) == []


def fake_go(directory: Path, script: str) -> None:
    directory.mkdir()
    (directory / "go").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "go").chmod(0o755)


def test_the_server_is_built_once_even_when_two_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    fake_go(
        tmp_path / "bin",
        f'echo "$@" >> {calls}; sleep 0.2; mkdir -p "$GOBIN"; echo built > "$GOBIN/server"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = "from chaos.cluster.toxiproxy import find_server; print(find_server())"
    builders = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = {builder.communicate()[0].strip() for builder in builders}
    server = tmp_path / "cache" / "leaseproof" / "toxiproxy-2.12.0" / "toxiproxy-server"
    assert found == {str(server)}
    assert server.read_text() == "built\n"
    assert calls.read_text() == "install github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0\n"
    assert not (server.parent / "building").exists()


def test_a_failed_build_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "bin", "echo the compiler is unhappy >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ClusterError, match=r"failed; run it by hand(.|\n)*compiler is unhappy"):
        find_server()


def test_without_a_server_and_without_go_the_error_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ClusterError, match=r"install toxiproxy 2.12.0 or Go .*TOXIPROXY_URL"):
        find_server()


def test_a_cache_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME"):
        find_server()
