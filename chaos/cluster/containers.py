"""The cluster whose parts are containers: for machines with an engine for them, as a CI has.

Containers use the network of the machine (`--network host`), so that their servers are on 127.0.0.1
like any other's: workers, Toxiproxy, primary and standby find each other by a port that is the same
before and after a crash, which a port published anew at each start is not, and nobody outside the
machine sees a server that lets everybody in. It takes an engine on this very machine, on Linux.

testcontainers has its reaper remove what a killed harness leaves behind. Where that is disabled, or
its image cannot be had, the next start does: each container says in a label whose it is.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import docker
import psycopg
import requests
from docker.errors import DockerException, ImageNotFound, NotFound
from docker.types import Mount
from psycopg.pq import PGconn, Ping
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.exceptions import ContainerStartException

from chaos.cluster import ClusterError, leftovers
from chaos.cluster.ports import Reservation
from chaos.cluster.processes import wait_for
from chaos.cluster.server import NO_SETTINGS, Server, parameters
from chaos.cluster.standby import COPYING, SETTINGS, Standby
from chaos.cluster.toxiproxy import VERSION, Toxiproxy, given

__all__ = ["postgres", "standby", "toxiproxy"]

_OWNER, _HOST = "leaseproof.owner", "leaseproof.host"
_DATA = "/var/lib/leaseproof"  # a volume: what a server has written outlives its container's death
_ALIVE = ("running", "paused")
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_FREEZE_SECONDS = 30.0
# Copies the primary at the first start only. As root, since the image's entry point gives what is
# in PGDATA to the server's user anyway.
_COPY_ONCE = """
if ! test -s "$PGDATA/PG_VERSION"; then
    pg_basebackup --pgdata "$PGDATA" --dbname "$SOURCE" --slot "$SLOT" {copying} || exit
fi
exec docker-entrypoint.sh "$@"
"""


def postgres_image() -> str:
    """The image of PostgreSQL: LEASEPROOF_POSTGRES_IMAGE, or the official one."""
    return os.environ.get("LEASEPROOF_POSTGRES_IMAGE") or "postgres:17"


def toxiproxy_image() -> str:
    """The image of Toxiproxy: LEASEPROOF_TOXIPROXY_IMAGE, or the official one."""
    return os.environ.get("LEASEPROOF_TOXIPROXY_IMAGE") or f"ghcr.io/shopify/toxiproxy:{VERSION}"


class Container:
    """One container, from its creation to its removal. Every method raises ClusterError."""

    def __init__(
        self,
        kind: str,
        image: str,
        command: Sequence[str],
        environment: Mapping[str, str] = NO_SETTINGS,
        **options: Any,
    ) -> None:
        # Known before it is made: it is found again even if we are interrupted in between.
        self.name = f"leaseproof-{kind}-{secrets.token_hex(6)}"
        with _engine_errors():
            self._made = (
                DockerContainer(image)
                .with_name(self.name)
                .with_command(list(command))
                .with_envs(**environment)
                .with_kwargs(
                    network="host",
                    labels={_OWNER: leftovers.owner(), _HOST: socket.gethostname()},
                    log_config={"type": "json-file"},  # whatever the engine's default: we read it
                    **options,
                )
            )

        self.image = self._made.image  # with the prefix that testcontainers is configured to add

    def create(self) -> None:
        """Make it, pulling the image if need be, and start it."""
        with _engine_errors():
            self._have_image(self._made.get_docker_client().client)
            self._made.start()

    def _have_image(self, client: docker.DockerClient) -> None:
        try:
            client.images.get(self.image)
        except ImageNotFound:
            try:
                client.images.pull(self.image)
            except DockerException as error:
                raise ClusterError(
                    f"the image {self.image} could not be had: {error}; name another in "
                    "LEASEPROOF_POSTGRES_IMAGE or LEASEPROOF_TOXIPROXY_IMAGE."
                ) from error

    def state(self) -> str:
        """What the engine calls it: "running", "paused", "exited"…; "" if it is not made yet."""
        with _engine_errors():
            self._made.reload()
            return "" if self._made._container is None else self._made.status

    def do(self, action: str, **arguments: Any) -> Any:
        """Call a method of the engine's container: start, kill, wait, pause, unpause, logs."""
        with _engine_errors():
            return getattr(self._made.get_wrapped_container(), action)(**arguments)

    def remove(self) -> None:
        """End it and remove it with its volumes, however far it has come."""
        with _engine_errors():
            _remove(self._made.get_docker_client().client, self.name)
            self._made.get_docker_client().client.close()


class ContainerPostgres(Server):
    """One server, made by `postgres()`: a container."""

    def __init__(
        self, port: int, settings: Mapping[str, str], kind: str = "postgres", **options: Any
    ) -> None:
        self.port = port
        self.settings = settings
        self._major: int | None = None
        values = [f"--{name}={value}" for name, value in settings.items()]
        environment = {
            "PGDATA": f"{_DATA}/data",
            "POSTGRES_HOST_AUTH_METHOD": "trust",
            "POSTGRES_INITDB_ARGS": "--encoding=UTF8 --locale=C",
            **options.pop("environment", {}),
        }
        self.container = Container(
            kind,
            postgres_image(),
            ["postgres", f"--port={port}", *values],
            environment,
            **options,
        )

    @property
    def major(self) -> int:
        if self._major is None:
            raise ClusterError(f"{self} was not started yet, so nobody knows its version.")
        return self._major

    @property
    def running(self) -> bool:
        return self.container.state() in _ALIVE

    def start(self) -> None:
        state = self.container.state()
        if state in _ALIVE:
            raise ClusterError(f"{self} is running already; stop it first.")
        log_before = 0
        if state:
            log_before = self.log_size()
            self.container.do("start")
        else:
            self.container.create()
        # Nobody else can answer: the port is reserved.
        dsn = self.dsn().encode()

        def up() -> bool:
            return PGconn.ping(dsn) == Ping.OK

        # Not more often: each look is a session, which the server starts and logs.
        if wait_for(lambda: up() or not self.running, _START_SECONDS, every=0.1) and up():
            if self._major is None:
                with psycopg.connect(self.dsn()) as connection:
                    self._major = connection.info.server_version // 10_000
            return
        if self.running:
            self.crash()
            what = (
                f"was not ready within {_START_SECONDS:.0f} s. The engine must be on this machine, "
                "and this must be Linux"
            )
        else:
            what = "ended at its start"
        tail = "\n".join(self.log_since(log_before).splitlines()[-20:])
        raise ClusterError(f"{self} {what}. Its log ends with:\n{tail}")

    def stop(self) -> None:
        self._kill("SIGINT")

    def crash(self) -> None:
        # The main process is the first of its container: the kernel kills the others with it.
        self._kill("SIGKILL")

    def pause(self) -> None:
        self._need_running()
        deadline = time.monotonic() + _FREEZE_SECONDS
        while True:
            try:
                self.container.do("pause")
                return
            except ClusterError as error:
                # With cgroups of version 1 the engine gives up, and thaws all, if not everybody
                # got the processor within milliseconds to freeze on it: a matter of luck then.
                if "unable to freeze" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def resume(self) -> None:
        self._need_running()
        self.container.do("unpause")

    @contextmanager
    def in_private(self, database: str) -> Iterator[str]:
        with _hosted(
            lambda port: ContainerPostgres(port, self.settings, volumes_from=[self.container.name])
        ) as private:
            yield private.dsn(database)

    def log_size(self) -> int:
        return len(self.container.do("logs"))

    def log_since(self, position: int) -> str:
        log: bytes = self.container.do("logs")
        return log[position:].decode(errors="replace")

    def __str__(self) -> str:
        return f"container {self.container.name} of {self.container.image} on port {self.port}"

    def _kill(self, signal: str) -> None:
        self._need_running()
        self.container.do("kill", signal=signal)
        self.container.do("wait", timeout=_STOP_SECONDS)

    def _need_running(self) -> None:
        if not self.running:
            raise ClusterError(f"{self} is not running; start it first.")


class ContainerStandby(Standby, ContainerPostgres):
    """A standby in a container, which copies its primary when it is made."""

    def __init__(self, primary: ContainerPostgres, port: int, synchronous: bool) -> None:
        self.primary = primary
        self.synchronous = synchronous
        self.name = f"standby_{secrets.token_hex(6)}"
        super().__init__(
            port,
            {**primary.settings, **SETTINGS},
            "standby",
            entrypoint=["sh", "-c", _COPY_ONCE.format(copying=" ".join(COPYING)), "sh"],
            environment={"SOURCE": self.source, "SLOT": self.name},
            mounts=[Mount(_DATA, None)],
        )


@contextmanager
def postgres(
    *, settings: Mapping[str, str] = NO_SETTINGS, durable: bool = False
) -> Iterator[ContainerPostgres]:
    """Run a new, empty server. See `Cluster.postgres`. Raises ClusterError."""
    # Commits stay synchronous: what is said on the command line could not be changed for a standby.
    durability = {} if durable else {"fsync": "off", "full_page_writes": "off"}
    values = parameters({**durability, **settings})
    with _hosted(
        lambda port: ContainerPostgres(port, values, mounts=[Mount(_DATA, None)])
    ) as server:
        yield server


@contextmanager
def standby(primary: ContainerPostgres, *, synchronous: bool = False) -> Iterator[Standby]:
    """Run a standby of a running server, of the same image. See `Cluster.standby`."""
    made: list[ContainerStandby] = []

    def make(port: int) -> ContainerStandby:
        made.append(ContainerStandby(primary, port, synchronous))
        return made[0]

    try:
        with _hosted(make) as server:
            server.follow()
            yield server
    finally:
        if made and primary.running:
            made[0].leave()


@contextmanager
def toxiproxy() -> Iterator[Toxiproxy]:
    """Run a Toxiproxy.

    With TOXIPROXY_URL in the environment, use that server. Raises ClusterError.
    """
    if url := os.environ.get("TOXIPROXY_URL"):
        with given(url) as server:
            yield server
        return
    _sweep()
    reservation = Reservation()
    server = Toxiproxy("127.0.0.1", reservation.port)
    container = Container(
        "toxiproxy",
        toxiproxy_image(),
        [f"-host={server.host}", f"-port={server.port}"],
    )
    try:
        container.create()
        if (
            not wait_for(lambda: server.answers() or container.state() != "running", _START_SECONDS)
            or not server.answers()
        ):
            log = container.do("logs").decode(errors="replace")
            raise ClusterError(f"{container.image} does not come up; its log says:\n{log}")
        yield server
    finally:
        container.remove()
        server.free_ports()
        reservation.close()


P = TypeVar("P", bound=ContainerPostgres)


@contextmanager
def _hosted(make: Callable[[int], P]) -> Iterator[P]:
    """Make a server on a free port and run it; remove all of it at the end."""
    _sweep()
    reservation = Reservation()
    try:
        server = make(reservation.port)
        try:
            server.start()
            yield server
        finally:
            server.container.remove()
    finally:
        reservation.close()


def _sweep() -> None:
    """Remove the containers whose owners have died on this host."""
    with leftovers.locked(leftovers.root() / "containers.lock"), _engine_errors():
        client = DockerClient().client
        try:
            for found in client.containers.list(
                all=True, filters={"label": _OWNER}, ignore_removed=True
            ):
                # Of another host, or of another container than ours, we do not see the processes.
                mine = found.labels[_HOST] == socket.gethostname()
                if mine and not leftovers.lives(found.labels[_OWNER]):
                    _remove(client, found.id)
        finally:
            client.close()


def _remove(client: docker.DockerClient, name: str) -> None:
    with suppress(NotFound):
        client.containers.get(name).remove(force=True, v=True)


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Say what a failure of the engine means to the user."""
    try:
        yield
    except (DockerException, ContainerStartException, requests.RequestException) as error:
        raise ClusterError(
            f"the container engine did not do what it was asked to: {error}; see whether "
            "`docker info` works, or run without `--cluster container`."
        ) from error
