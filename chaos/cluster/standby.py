"""A streaming standby of a PostgreSQL server that the harness owns, and the failover to it.

    with postgres() as primary, standby(primary) as second:
        primary.crash()  # or isolate it otherwise: nothing here keeps it from taking writes
        second.promote()

The standby stands in the primary's log by a replication slot, so that however long it is cut off
it can follow again. What it has received it keeps: only what it has not received can be lost.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chaos.cluster import ClusterError
from chaos.cluster.postgres import Postgres, hosted
from chaos.cluster.processes import wait_for
from chaos.cluster.server import Server

_WAIT_SECONDS = 60.0
_CONNECT_SECONDS = 10
# How pg_basebackup makes a standby, besides whose and by which slot.
COPYING = (
    *("--no-password", "--checkpoint=fast", "--no-sync", "--no-manifest", "--wal-method=stream"),
    *("--create-slot", "--write-recovery-conf"),
)
SETTINGS = {
    # The primary may wait for a standby of its own; once promoted, this one has none.
    "synchronous_standby_names": "",
    "wal_retrieve_retry_interval": "100ms",
}


class Standby(Server):
    """A copy of its primary, made by `standby()`: it follows and is read-only until promoted.

    It stops, crashes, starts and restarts like any server, and has a name, which is its slot's.
    Raises psycopg.Error where it has to ask a server that does not answer.
    """

    primary: Server
    name: str
    synchronous: bool

    @property
    def source(self) -> str:
        """The connection string by which it follows its primary."""
        return make_conninfo(self.primary.dsn(), application_name=self.name)

    def pair_dsn(self, database: str = "postgres") -> str:
        """The connection string of `database` on the one of the two that takes writes."""
        return make_conninfo(
            self.primary.dsn(database),
            host="127.0.0.1,127.0.0.1",
            port=f"{self.primary.port},{self.port}",
            target_session_attrs="read-write",
        )

    def cut(self) -> None:
        """Receive nothing more, as if the network to the primary were gone, until `rejoin`.

        What the primary commits from now on is not here; commits that wait for a synchronous
        standby wait. When this returns the receiver has ended, so nothing is on its way any more.
        """
        self._follow("")
        receivers = "select from pg_stat_activity where backend_type = 'walreceiver'"
        if not wait_for(lambda: not _ask(self, receivers), _WAIT_SECONDS):
            raise ClusterError(
                f"{self} went on receiving for {_WAIT_SECONDS:.0f} s after it was cut off; its log "
                f"ends with:\n{self.log_tail()}"
            )

    def rejoin(self) -> None:
        """Follow the primary again; return when the stream runs."""
        self._follow(self.source)
        self._wait_for_stream("state = 'streaming'")

    def promote(self) -> None:
        """Become a primary of its own, on a new timeline; return when it takes writes.

        The old primary is the caller's to isolate, before: killed or cut off from its clients.
        Raises ClusterError if it is a primary already, or does not become one.
        """
        if not _ask(self, "select from (select) as one where pg_is_in_recovery()"):
            raise ClusterError(f"{self} is a primary already; promote a standby.")
        [(promoted,)] = _ask(self, f"select pg_promote(true, {_WAIT_SECONDS:.0f})")
        if not promoted:
            raise ClusterError(
                f"{self} was not promoted within {_WAIT_SECONDS:.0f} s; its log ends with:\n"
                f"{self.log_tail()}"
            )

    def keep_out(self) -> None:
        """Let nobody in who asks for a server that takes writes, not even once promoted.

        Every session of the standby is told that it is read-only, so libpq passes it by when it
        looks for `target_session_attrs=read-write`: before the promotion for the one reason, after
        it for the other. There is no moment between, since whoever is let in sees both at once,
        with the session's first message. Nobody needs other rights for that, as with pg_hba.conf,
        and superusers are kept out, too, whom ALLOW_CONNECTIONS would leave without a way in for
        ourselves. A session of ours takes writes by saying so.
        """
        self._be_read_only("set default_transaction_read_only = on", "on")

    def let_in(self) -> None:
        """Undo `keep_out`."""
        self._be_read_only("reset default_transaction_read_only", "off")

    def _be_read_only(self, change: str, expected: str) -> None:
        _ask(self, f"alter system {change}")
        _ask(self, "select pg_reload_conf()")

        def seen() -> bool:
            # New sessions are the main process's children: they know what it knows.
            return _ask(self, "show default_transaction_read_only") == [(expected,)]

        if not wait_for(seen, _WAIT_SECONDS):
            raise ClusterError(
                f"{self} did not read its configuration again within {_WAIT_SECONDS:.0f} s; its "
                f"log ends with:\n{self.log_tail()}"
            )

    def switch_point(self) -> str:
        """Where in the log, once promoted, its timeline left the primary's.

        It has every record of the primary that begins before, and none that begins later.
        """
        [(history,)] = _ask(
            self,
            "select pg_read_file("
            "'pg_wal/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.history')",
        )
        # A line for each timeline before this one: its number, its end and why it ended.
        return str(history.strip().splitlines()[-1].split()[1])

    def _follow(self, source: str) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            setting = sql.SQL("alter system set primary_conninfo = {}").format(source)
            connection.execute(setting)
            connection.execute("select pg_reload_conf()")

    def follow(self) -> None:
        """Return when it streams; if synchronous, when every commit of the primary waits for it."""
        self._wait_for_stream("state = 'streaming'")
        if not self.synchronous:
            return
        # Without `durable` the primary does not even wait for its own disk.
        for setting in (f"synchronous_standby_names = {self.name}", "synchronous_commit = on"):
            _ask(self.primary, f"alter system set {setting}")
        _ask(self.primary, "select pg_reload_conf()")
        self._wait_for_stream("sync_state = 'sync'")

    def _wait_for_stream(self, condition: str) -> None:
        query = f"select from pg_stat_replication where application_name = %s and {condition}"
        if not wait_for(lambda: bool(_ask(self.primary, query, self.name)), _WAIT_SECONDS):
            raise ClusterError(
                f"{self} does not follow {self.primary} after {_WAIT_SECONDS:.0f} s; its log ends "
                f"with:\n{self.log_tail()}"
            )

    def leave(self) -> None:
        """Once it has ended: have the primary wait for it, and keep its log for it, no longer."""
        if self.synchronous:
            for name in ("synchronous_standby_names", "synchronous_commit"):
                _ask(self.primary, f"alter system reset {name}")
            _ask(self.primary, "select pg_reload_conf()")
        slot = "from pg_replication_slots where slot_name = %s"
        active = f"select {slot} and active"  # until the primary sees that the stream has ended
        if not wait_for(lambda: not _ask(self.primary, active, self.name), _WAIT_SECONDS):
            raise ClusterError(f"{self.primary} still sends its log to {self}, which has ended.")
        _ask(self.primary, f"select pg_drop_replication_slot(slot_name) {slot}", self.name)


class ProcessStandby(Standby, Postgres):
    """A standby in processes of this machine."""

    def __init__(self, primary: Postgres, directory: Path, port: int, synchronous: bool) -> None:
        super().__init__(primary.binaries, directory, port, primary._user)
        self.primary = primary
        self.synchronous = synchronous
        self.name = directory.name.replace("-", "_")  # as a slot's: no other characters

    def copy(self) -> None:
        """Fill the data directory with the primary's, as a standby that has a slot there."""
        self._fill("pg_basebackup", ["--dbname", self.source, *COPYING, "--slot", self.name])
        self._configure("postgresql.auto.conf", SETTINGS)


@contextmanager
def standby(primary: Postgres, *, synchronous: bool = False) -> Iterator[Standby]:
    """Run a standby of a running server in a temporary directory; remove all of it at the end.

    `synchronous`: the primary acknowledges a commit once it is on the standby's disk as well. At
    the end a primary that still runs forgets the standby. Raises ClusterError if the standby cannot
    be made or does not come up.
    """
    if not primary.running:
        raise ClusterError(f"{primary} is not running; start it first.")
    made: list[ProcessStandby] = []

    def make(directory: Path, port: int) -> ProcessStandby:
        made.append(ProcessStandby(primary, directory, port, synchronous))
        return made[0]

    try:
        with hosted(make, ProcessStandby.copy, primary.directory.parent) as server:
            server.follow()
            yield server
    finally:
        if made and primary.running:
            made[0].leave()


def _ask(server: Server, query: str, *values: object) -> list[Any]:
    """The rows of one statement; none for one that returns no rows."""
    with psycopg.connect(
        server.dsn(), autocommit=True, connect_timeout=_CONNECT_SECONDS
    ) as connection:
        cursor = connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []
