"""Opens connections whose settings keep a stopped client from holding a row for long.

Directly, the settings come with the session. Through a transaction pooler they cannot: each
transaction may run in another session, which others use before and after. So a pooled worker asks
for none, prepares nothing and does not listen, and leaves no session different from how it found
it. What the settings are for holds without them:

- A statement of the dispatcher or the keeper is a transaction by itself: it commits or fails in the
  server without hearing from the worker again, so a worker stopped between two holds nothing.
- The transactions of several, the claim of limited kinds and a transactional handler's, begin by
  setting their limits for themselves: lock_limits.sql and begin_attempt.sql.
- READ COMMITTED comes with the BEGIN of every transaction, and what the single statements get is
  looked at when the worker starts.
- A call that takes too long is given up by the watchdog. The server may go on waiting for a lock; a
  `lock_timeout` for the pool's role (`alter role ... set`) bounds that as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from scheduler.errors import SessionError
from scheduler.statements import fetch
from scheduler.wire import WorkerConnection

CONNECT_TIMEOUT_SECONDS = 10

# For connections that are open for long: a peer that is gone without a word is found out in a
# minute.
FINDS_DEAD_PEER: dict[str, Any] = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

LOOKS_POOLED = (
    "this looks like a transaction pooler such as PgBouncer: pass --pooled, in Python pooled=True"
)


def worker_settings(lease: timedelta) -> dict[str, str]:
    """The settings of a worker's session. `lease` is the shortest lease the worker gives out."""
    milliseconds = _milliseconds(lease)
    return {
        "array_nulls": "on",
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": f"{milliseconds}ms",
        "lock_timeout": f"{max(1, milliseconds // 2)}ms",
        "tcp_user_timeout": f"{milliseconds}ms",
        "tcp_keepalives_idle": str(max(1, milliseconds // 3000)),
        "tcp_keepalives_interval": str(max(1, milliseconds // 9000)),
        "tcp_keepalives_count": "3",
        "timezone": "UTC",
        # Compiling a plan takes longer than any of our statements does.
        "jit": "off",
    }


# Planning the claim anew takes longer than running it, and a plan for any arguments is as good. It
# is made for the table as large as it is at that moment, though: see `replan`. Handlers' statements
# are planned as the server sees fit.
OWN_STATEMENTS = {"plan_cache_mode": "force_generic_plan"}
REPLAN_EVERY = 5.0  # seconds for which a worker keeps the plans of its statements, at most


class HandlerConnection(WorkerConnection):
    """What a transactional handler is given: its transaction is the worker's to end."""

    _adapters_now: AdaptersMap | None = None

    @property
    def adapters(self) -> AdaptersMap:
        """What one handler registers is not the next one's, nor the worker's own statements'."""
        if self._adapters_now is None:
            self._adapters_now = AdaptersMap(psycopg.adapters)
        return self._adapters_now

    def reset_adapters(self) -> None:
        """Forget what a handler registered."""
        self._adapters_now = None

    def reset(self) -> None:
        """Forget what a handler changed of this object; in no transaction."""
        self.reset_adapters()
        self.row_factory = tuple_row
        self.cursor_factory = Cursor
        self.prepare_threshold = None  # a handler's session forgets prepared statements
        self.autocommit = True
        self.isolation_level = IsolationLevel.READ_COMMITTED

    @property
    def busy(self) -> bool:
        """Whether something is unfinished on it, which every further statement would wait for: a
        COPY, a stream of rows, a pipeline."""
        return (
            self.lock.locked()
            or self.pgconn.pipeline_status != PipelineStatus.OFF
            or self.info.transaction_status == TransactionStatus.ACTIVE
        )

    def commit(self) -> None:
        """Raises psycopg.ProgrammingError in a transaction."""
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Raises psycopg.ProgrammingError in a transaction."""
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raise psycopg.ProgrammingError(
                f"a transactional handler's transaction ends with its task, not by {what}(): put"
                " what may fail in a `with connection.transaction():` of its own, and raise to undo"
                " everything"
            )


def connect_worker(
    dsn: str, name: str, lease: timedelta, pooled: bool = False, for_handlers: bool = False
) -> WorkerConnection:
    """A worker's connection, for its own statements alone unless it is for handlers to use.

    `lease` is the shortest lease the worker gives out.

    A worker that is stopped between its completion and the COMMIT keeps the row's lock, and reclaim
    skips locked rows: only the server can end that. It does so after one lease of idling in a
    transaction, and after one lease of a peer that does not acknowledge data.

    READ COMMITTED is pinned: every statement of this package relies on a locked row being checked
    again in its newest version, which other levels answer with an error instead.

    Raises SessionError if a pooler answers of which the worker was not told, psycopg.Error if there
    is no connection.
    """
    milliseconds = _milliseconds(lease)
    defaults = {} if for_handlers else OWN_STATEMENTS
    try:
        connection = (HandlerConnection if for_handlers else WorkerConnection).connect(
            dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            keepalives=1,
            keepalives_idle=max(1, milliseconds // 3000),
            keepalives_interval=max(1, milliseconds // 9000),
            keepalives_count=3,
            tcp_user_timeout=milliseconds,
            application_name=f"scheduler {name}",
            client_encoding="UTF8",
            **({"prepare_threshold": None} if pooled else _own_session(dsn, lease, defaults)),
        )
    except psycopg.OperationalError as error:
        if not pooled and "unsupported startup parameter" in str(error):
            raise SessionError(
                f"the database refuses the settings of a worker's session; {LOOKS_POOLED}"
            ) from error
        raise
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection


def connect_handlers(
    dsn: str, name: str, lease: timedelta, pooled: bool = False
) -> HandlerConnection:
    """The same for a slot's handlers, whose statements are planned as the server sees fit."""
    connection = connect_worker(dsn, name, lease, pooled, for_handlers=True)
    assert isinstance(connection, HandlerConnection)
    connection.reset()
    return connection


def replan(connection: Connection) -> None:
    """Let the session plan its statements anew, for its tables as large as they are by now.

    A plan that was made for a table of a few rows reads all of it, and so it would after a hundred
    thousand were added, until the table's next ANALYZE told all sessions to forget their plans.
    """
    connection.execute("discard plans")


def check_session(connection: Connection, lease: timedelta, pooled: bool) -> None:
    """Raise SessionError if the sessions of this database are not what the worker relies on."""
    [(isolation, idle_timeout)] = fetch(connection, "session_settings", {})
    if pooled and isolation != "read committed":
        raise SessionError(
            f"the pooler's sessions run transactions at {isolation}, a worker needs read committed:"
            " use `alter role ... set default_transaction_isolation` for the pool's role"
        )
    # A pooler may drop what it does not know instead of refusing it.
    if not pooled and idle_timeout != _milliseconds(lease):
        raise SessionError(
            f"the database ignored the settings of a worker's session; {LOOKS_POOLED}"
        )


def with_settings(
    dsn: str, settings: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> str:
    """The connection's `options`: the defaults, what the caller gave instead, then the settings.

    Settings go with the connection's first message rather than by a statement after it: a network
    that goes dead in between would keep such a statement waiting for ever, and connect_timeout
    covers this.
    """
    given = conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS")
    first, last = (
        [  # escaped, as a space separates
            "-c {}={}".format(name, value.replace(" ", "\\ ")) for name, value in some.items()
        ]
        for some in (defaults or {}, settings)
    )
    return " ".join([*first, *([str(given)] if given else []), *last])


def _own_session(dsn: str, lease: timedelta, defaults: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a connection that has a session to itself."""
    # Of several servers, the one that takes writes: after a failover, not the old primary. Not
    # through a pooler, which tells what it knows of the server it had first.
    given = conninfo_to_dict(dsn).get("target_session_attrs")
    attributes = given or os.environ.get("PGTARGETSESSIONATTRS") or "read-write"
    return {
        "options": with_settings(dsn, worker_settings(lease), defaults),
        "target_session_attrs": str(attributes),
    }


def _milliseconds(lease: timedelta) -> int:
    return max(1, int(lease.total_seconds() * 1000))
