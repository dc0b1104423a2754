"""What the harness asks of the parts of a run, wherever they run: in processes or in containers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chaos.cluster import ClusterError

if TYPE_CHECKING:
    from chaos.cluster.standby import Standby
    from chaos.cluster.toxiproxy import Toxiproxy

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_connections": "300",
    "max_replication_slots": "32",
    "max_wal_senders": "32",
    "shared_buffers": "64MB",
    # In the data directory: goes away with it, and a container's small /dev/shm is no limit.
    "dynamic_shared_memory_type": "mmap",
    "autovacuum": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

ClusterKind = Literal["process", "container"]


def parameters(settings: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a server: the harness's, and over it these settings.

    Raises ClusterError if they say the port, which the harness chooses.
    """
    if "port" in settings:
        raise ClusterError("The port is chosen by the harness; leave `port` out of the settings.")
    return {**_DEFAULTS, **settings}


class Server(ABC):
    """A PostgreSQL server whose life is the harness's. It listens on 127.0.0.1 and trusts all."""

    port: int

    @property
    @abstractmethod
    def major(self) -> int:
        """The major version."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the server's main process lives."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, on its port and its data, and wait until it lets clients in.

        Raises ClusterError, with the end of what the server logged, if it does not come up.
        """

    @abstractmethod
    def stop(self) -> None:
        """Shut down cleanly (fast: clients are disconnected).

        A replication client that is connected and does not read can hold this up. Raises
        ClusterError if the server is not running or does not end.
        """

    @abstractmethod
    def crash(self) -> None:
        """SIGKILL every process of the server at once; return when all are gone.

        What the server had handed to the operating system stays, like after a crash of the server
        and unlike after one of the machine. Raises ClusterError if it is not running.
        """

    @abstractmethod
    def pause(self) -> None:
        """Stop every process of the server where it stands, its connections left open.

        Raises ClusterError if it is not running.
        """

    @abstractmethod
    def resume(self) -> None:
        """Undo `pause`. Raises ClusterError if the server is not running."""

    @abstractmethod
    def in_private(self, database: str) -> AbstractContextManager[str]:
        """Run a crashed server where no client finds it, on another port; crash it at the end.

        Gives the connection string of a database there. Nothing that the server still does reaches
        anybody, and its log can be read to the end.
        """

    @abstractmethod
    def log_size(self) -> int:
        """How long the server's log is now, in bytes: a position for `log_since`."""

    @abstractmethod
    def log_since(self, position: int) -> str:
        """What the server has logged after a position."""

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        return "\n".join(self.log_since(0).splitlines()[-lines:])

    def restart(self) -> None:
        """Stop, then start, on the same port. Raises ClusterError like both."""
        self.stop()
        self.start()

    def dsn(self, database: str = "postgres") -> str:
        """The libpq connection string of `database`, for the superuser."""
        return make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname=database)

    def create_database(self, name: str, template: str | None = None) -> None:
        """Create a database; as a copy if `template` is given, which must have no sessions.

        Raises psycopg.Error.
        """
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            # As files: to log page by page what it has takes twice as long.
            copy = sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY")
            statement += copy.format(sql.Identifier(template))
        self._execute(statement)

    def drop_database(self, name: str) -> None:
        """Drop a database with its sessions and idle logical slots. Raises psycopg.Error."""
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)


S = TypeVar("S", bound=Server)


class Cluster(Protocol[S]):
    """Who runs the parts of a run: `chaos.cluster.process` or `chaos.cluster.containers`.

    Each part is there while its context lasts, and nothing of it afterwards; if the harness is
    killed in between, until the next start at the latest. Raise ClusterError if a part cannot be
    had or does not come up.
    """

    def postgres(
        self, *, settings: Mapping[str, str] = ..., durable: bool = ...
    ) -> AbstractContextManager[S]:
        """A new, empty server; `settings` are configuration parameters, over the harness's own.

        `durable` keeps every committed transaction across a crash; without it it is faster.
        """

    def standby(self, primary: S, *, synchronous: bool = ...) -> AbstractContextManager[Standby]:
        """A standby of a running server.

        `synchronous`: the primary acknowledges a commit once it is on the standby's disk as well.
        At the end a primary that still runs forgets the standby.
        """

    def toxiproxy(self) -> AbstractContextManager[Toxiproxy]:
        """A Toxiproxy that listens on, and forwards to, ports of 127.0.0.1."""


def cluster(kind: ClusterKind) -> Cluster[Any]:
    """The cluster of a kind. Raises ClusterError if what it needs is not installed."""
    if kind == "process":
        from chaos.cluster import process

        return process
    try:
        from chaos.cluster import containers
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"containers need the package {error.name!r}: pip install 'leaseproof[containers]'"
        ) from error
    return containers
