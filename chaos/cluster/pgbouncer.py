"""PgBouncer: a connection pooler in front of a server, which lends its sessions by transaction."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from chaos.cluster import ClusterError, leftovers
from chaos.cluster.ports import Reservation
from chaos.cluster.postgres import Postgres
from chaos.cluster.processes import kill_tree, wait_for
from chaos.cluster.user import User, server_user

_START_SECONDS = 30.0
_CONNECT_SECONDS = 10
# Debian's is not on the PATH of ordinary users.
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def find_pgbouncer() -> Path:
    """The `pgbouncer` on PATH or where distributions put it. Raises ClusterError if there is none.

    Debian 12 has 1.18. Before 1.21 it does not know clients' prepared statements, and before 1.20
    it refuses every client that asks for start-up `options`.
    """
    found = shutil.which("pgbouncer", path=os.pathsep.join((*os.get_exec_path(), *_PLACES)))
    if found is None:
        raise ClusterError(
            f"PgBouncer was not found: there is no `pgbouncer` on PATH or in {', '.join(_PLACES)}; "
            "install it from your distribution (Debian: `apt-get install pgbouncer`)."
        )
    return Path(found)


class PgBouncer:
    """A pooler, made by `pgbouncer()`. It listens on 127.0.0.1 and lets everybody in.

    Whoever connects uses the server as its superuser.
    """

    def __init__(self, server: Postgres, directory: Path, port: int, user: User) -> None:
        self.server = server
        self.port = port
        self._directory = directory
        self._configuration = directory / "pgbouncer.ini"
        self._log = directory / "pgbouncer.log"
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it lets clients in.

        Raises ClusterError, with what it logged, if it does not come up.
        """
        if self.running:
            raise ClusterError(f"{self} is running already; crash it first.")
        with self._log.open("wb") as log:
            command = [str(find_pgbouncer()), str(self._configuration)]
            self._process = process = self._user.start(command, self._directory, log)
        ready = wait_for(lambda: process.poll() is not None or self._answers(), _START_SECONDS)
        if ready and process.poll() is None:
            return
        if ready:
            what = f"ended with status {process.returncode}"
        else:
            self.crash()
            what = f"was not ready within {_START_SECONDS:.0f} s"
        raise ClusterError(f"{self} {what} at its start; its log says:\n{self.log()}")

    def crash(self) -> None:
        """SIGKILL it: its clients and its sessions at the server end. Raises ClusterError if it is
        not running."""
        if self._process is None or not self.running:
            raise ClusterError(f"{self} is not running; start it first.")
        kill_tree(psutil.Process(self._process.pid))
        self._process.wait()

    def dsn(self, database: str = "postgres") -> str:
        """The libpq connection string of `database` at the server, through the pool."""
        return make_conninfo(self.server.dsn(database), port=self.port)

    def log(self) -> str:
        """What it has logged since its start."""
        return self._log.read_text(errors="replace")

    def __str__(self) -> str:
        return f"PgBouncer on port {self.port}"

    def _configure(self, pool_size: int, settings: Mapping[str, str]) -> None:
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            "max_client_conn": "300",
            "server_login_retry": "1",  # seconds that it does not ask a server that was away
            **settings,
        }
        self._configuration.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.server.port} user=postgres\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )

    def _answers(self) -> bool:
        # Its own console: the server behind it need not be up.
        try:
            psycopg.connect(self.dsn("pgbouncer"), connect_timeout=_CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def pgbouncer(
    server: Postgres, *, pool_size: int = 20, settings: Mapping[str, str] = _NO_SETTINGS
) -> Iterator[PgBouncer]:
    """Run a transaction-pooling PgBouncer in front of a server; remove all of it at the end.

    `pool_size` is how many sessions of a database it shares among all clients; `settings` are
    PgBouncer's own, over the harness's. As root it runs as user `postgres`, else `nobody`. Raises
    ClusterError if there is none or it does not come up.
    """
    user = server_user()
    with leftovers.directory("pgbouncer") as directory:
        reservation = Reservation()
        pooler = PgBouncer(server, directory, reservation.port, user)
        try:
            pooler._configure(pool_size, settings)
            pooler.start()
            yield pooler
        finally:
            leftovers.end(directory)
            if pooler._process is not None:
                pooler._process.wait()
            reservation.close()
