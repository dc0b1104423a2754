"""Faults of the database server: it dies, it cuts or refuses sessions, or a session is in the way.

Several can be in place at once, but nothing else of the server is broken while it is down. The
sessions that a fault itself opens are closed to heal it; one that the server lost is closed too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Literal

import psycopg
from psycopg import Connection, sql
from pydantic import Field

from chaos.background import Background
from chaos.cluster.server import Server
from chaos.faults.fault import SERVER, Arena, Fault, Injection, Strike
from chaos.history.events import RUNNING, History
from chaos.patience import HARNESS

REFUSED = "sorry, too many clients already"  # what a client hears that the server refuses
GAVE_UP = "canceling statement due to lock timeout"  # what it logs of one that waited in vain
REFILL_EVERY = 0.02  # seconds between attempts to take sessions that others gave back
LOCK_WAIT = 5  # seconds that a DDL lock waits for those who hold the table


class DatabaseFault(Fault):
    """A fault of the server, as its superuser makes it."""

    def inject(self, arena: Arena) -> Strike | None:
        """Strike the server, if it is up."""
        if not arena.server.running:
            return None
        heal = self.strike(arena)
        return None if heal is None else Strike(SERVER, SERVER, heal)

    @abstractmethod
    def strike(self, arena: Arena) -> Callable[[], int] | None:
        """Make it happen; returns what heals it (see `Strike`), None if it did nothing."""


class Outage(DatabaseFault):
    """The server goes away, and comes back on its port.

    It bit if it went while leases were held, nothing was committed until it was back, and then work
    went on.
    """

    needs_durability: ClassVar[bool] = True
    lasts: float = Field(gt=0, le=3600)

    def inject(self, arena: Arena) -> Strike | None:
        """End the server while leases are held and no other fault needs it; start it to heal."""
        if SERVER in arena.busy or not arena.leases():
            return None
        return super().inject(arena)

    def strike(self, arena: Arena) -> Callable[[], int]:
        """End the server; start it to heal."""
        self.end(arena.server)

        def heal() -> int:
            self.bring_back(arena.server)
            return 0

        return heal

    @abstractmethod
    def end(self, server: Server) -> None:
        """Make the server go away."""

    def bring_back(self, server: Server) -> None:
        """Undo that."""
        server.start()

    def bite(self, injection: Injection, history: History) -> str | None:
        """Leases were held across a silence of the log, and then work went on."""
        held = _held_across(injection, history)
        if not held or history.commits[-1].at < injection.ended:
            return None
        silent = (injection.ended - injection.placed) / 1e6
        return f"was away for {silent:.1f} s while {held} leases were held"

    def missed(self, injection: Injection, history: History) -> bool:
        """No lease was held, or it was not away. Whether work goes on is to be seen yet."""
        return not _held_across(injection, history)


def _held_across(injection: Injection, history: History) -> int:
    """How many leases were held when the server went; 0 if anything was committed meanwhile."""
    held = set()
    for commit in history.commits:
        if commit.at >= injection.ended:
            break
        if commit.at >= injection.placed:
            return 0
        for task, row in commit.changes:
            if row is not None and row.state == RUNNING:
                held.add(task)
            else:
                held.discard(task)
    return len(held)


class Crash(Outage):
    """SIGKILL every process of the server under load; start it `lasts` seconds later."""

    kind: Literal["crash"]

    def end(self, server: Server) -> None:
        """Kill it."""
        server.crash()


class Restart(Outage):
    """Shut the server down, its clients disconnected; start it `lasts` seconds later."""

    kind: Literal["restart"]

    def end(self, server: Server) -> None:
        """Stop it."""
        server.stop()


class Stall(Outage):
    """Stop every process of the server where it stands; wake all of them `lasts` seconds later.

    Connections stay open, and what was under way goes on as if no time had passed: a machine that
    was suspended, a disk that did not answer.
    """

    needs_durability: ClassVar[bool] = False
    kind: Literal["stall"]

    def end(self, server: Server) -> None:
        """Stop its processes."""
        server.pause()

    def bring_back(self, server: Server) -> None:
        """Wake them."""
        server.resume()


class TerminateBackends(DatabaseFault):
    """End every client's session, the harness's too, once there are others than the harness's.

    It bit if the server ended one of those.
    """

    kind: Literal["terminate-backends"]
    lasts: Literal[0] = 0

    def strike(self, arena: Arena) -> Callable[[], int] | None:
        """End the sessions. Sees how many were not the harness's."""
        with psycopg.connect(arena.server.dsn(), autocommit=True) as connection:
            ended = _number(
                connection,
                # Materialized: else the planner ends sessions first and asks whose they are later.
                sql.SQL(
                    "with client as materialized ("
                    " select pid, application_name like {} as ours from pg_stat_activity"
                    " where datname = {} and backend_type = 'client backend'),"
                    " ended as materialized (select ours from client"
                    " where exists (select from client where not ours)"
                    " and pg_terminate_backend(pid))"
                    " select count(*) from ended where not ours"
                ).format(f"{HARNESS}%", arena.database),
            )
        return (lambda: ended) if ended else None

    def bite(self, injection: Injection, history: History) -> str | None:
        """Sessions were ended."""
        return f"ended {injection.seen} sessions" if injection.seen else None


class ExhaustConnections(DatabaseFault):
    """Take every session that the server has left, also those that others give back meanwhile.

    It bit if workers were refused, as their logs say: to the server one client is like another, and
    the harness's own are refused all the time.
    """

    kind: Literal["exhaust-connections"]
    lasts: float = Field(gt=0, le=3600)

    def strike(self, arena: Arena) -> Callable[[], int]:
        """Take all sessions; give them back to heal. Sees the clients that were refused."""
        before = _refused(arena)
        taken: list[Connection] = []

        def fill() -> bool:
            with suppress(psycopg.OperationalError):
                while True:
                    taken.append(psycopg.connect(arena.server.dsn()))
            return True

        fill()
        filling = Background("exhaust-connections", REFILL_EVERY, fill)
        filling.__enter__()

        def heal() -> int:
            try:
                filling.__exit__(None, None, None)
            finally:
                for connection in taken:
                    connection.close()
            return _refused(arena) - before

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """Workers were refused."""
        return "workers were refused a session" if injection.seen else None

    def missed(self, injection: Injection, history: History) -> bool:
        """Nobody needed a new session meanwhile."""
        return not injection.seen


def _refused(arena: Arena) -> int:
    """How often the workers' logs say that the server refused a session."""
    logs = (arena.fleet.directory / "workers").glob("*.log")
    return sum(log.read_text(errors="replace").count(REFUSED) for log in logs)


class SessionFault(DatabaseFault):
    """A session that is in the way for a while: `take_hold` begins it, `look` measures it."""

    lasts: float = Field(gt=0, le=3600)

    def strike(self, arena: Arena) -> Callable[[], int]:
        """Open the session and let it take hold; look at what it did and close it to heal."""
        log_before = arena.server.log_size()
        connection = psycopg.connect(arena.server.dsn(arena.database))
        try:
            self.take_hold(connection, sql.Identifier(*arena.table.split(".")))
        except BaseException:
            connection.close()
            raise

        def heal() -> int:
            # Lost with the server, it held nothing at the end.
            with suppress(psycopg.OperationalError), connection:
                return self.look(connection, arena.server.log_since(log_before))
            return 0

        return heal

    @abstractmethod
    def take_hold(self, connection: Connection, table: sql.Identifier) -> None:
        """Begin a transaction that is in others' way."""

    @abstractmethod
    def look(self, connection: Connection, logged: str) -> int:
        """How much it is in others' way, by the server's own account and what it logged since."""


class OldTransaction(SessionFault):
    """Keep a transaction with a snapshot open: no row that dies meanwhile can be removed.

    It bit if transactions ran behind its back, whose dead rows it therefore held.
    """

    kind: Literal["old-transaction"]

    def take_hold(self, connection: Connection, table: sql.Identifier) -> None:
        """Take a snapshot and keep it. It locks no table."""
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select")

    def look(self, connection: Connection, logged: str) -> int:
        """How many transactions began since the snapshot."""
        return _number(
            connection,
            sql.SQL("select age(backend_xmin) from pg_stat_activity where pid = pg_backend_pid()"),
        )

    def bite(self, injection: Injection, history: History) -> str | None:
        """Transactions began since."""
        seen = injection.seen
        return f"held back the horizon for {seen} transactions" if seen else None


class DdlLock(SessionFault):
    """Hold the lock of an ALTER TABLE on the table of tasks. It bit if statements stood in line."""

    kind: Literal["ddl-lock"]

    def take_hold(self, connection: Connection, table: sql.Identifier) -> None:
        """Lock the table."""
        connection.execute(f"set local lock_timeout = '{LOCK_WAIT}s'".encode())
        connection.execute(sql.SQL("lock table {} in access exclusive mode").format(table))

    def look(self, connection: Connection, logged: str) -> int:
        """How many sessions wait for this one, and how often one gave up."""
        return logged.count(GAVE_UP) + _number(
            connection,
            sql.SQL(
                "select count(*) from pg_stat_activity"
                " where pg_backend_pid() = any(pg_blocking_pids(pid))"
            ),
        )

    def bite(self, injection: Injection, history: History) -> str | None:
        """Sessions waited."""
        return f"{injection.seen} statements waited for the lock" if injection.seen else None


class StaleStatistics(DatabaseFault):
    """Make the planner believe that the table of tasks is empty, and keep autovacuum from it.

    It bit if, at the end, the planner still thought so of a table with rows in it.
    """

    kind: Literal["stale-statistics"]
    lasts: float = Field(gt=0, le=3600)

    def strike(self, arena: Arena) -> Callable[[], int]:
        """Falsify the statistics; analyze to heal. Sees the rows that the planner did not know."""
        table = sql.Identifier(*arena.table.split("."))
        oid = sql.SQL("{}::regclass").format(arena.table)

        with psycopg.connect(arena.server.dsn(arena.database)) as connection:
            connection.execute("set local allow_system_table_mods = on")
            connection.execute(
                sql.SQL("alter table {} set (autovacuum_enabled = off)").format(table)
            )
            # No rows in many pages: the planner multiplies this density with the table's true size.
            connection.execute(
                sql.SQL(
                    "update pg_class set reltuples = 0, relpages = 1000000 where oid = {}"
                ).format(oid)
            )
            connection.execute(sql.SQL("delete from pg_statistic where starelid = {}").format(oid))

        def heal() -> int:
            with psycopg.connect(arena.server.dsn(arena.database)) as connection:
                unknown = _number(
                    connection,
                    sql.SQL(
                        "select case when reltuples = 0 then (select count(*) from {}) else 0 end"
                        " from pg_class where oid = {}"
                    ).format(table, oid),
                )
                connection.execute(
                    sql.SQL("alter table {} reset (autovacuum_enabled)").format(table)
                )
                connection.execute(sql.SQL("analyze {}").format(table))
            return unknown

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """There were rows that the planner did not know of."""
        seen = injection.seen
        return f"the planner knew of none of {seen} rows" if seen else None


def _number(connection: Connection, query: sql.SQL | sql.Composed) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row is not None else 0
