"""Opens connections whose session settings keep a stopped client from holding a row for long."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from psycopg import Connection, IsolationLevel

CONNECT_TIMEOUT_SECONDS = 10


def connect_worker(dsn: str, name: str, lease: timedelta) -> Connection:
    """A worker's connection. `lease` is the shortest lease the worker gives out.

    A worker that is stopped between its completion and the COMMIT keeps the row's lock, and reclaim
    skips locked rows: only the server can end that. It does so after one lease of idling in a
    transaction, and after one lease of a peer that does not acknowledge data.

    READ COMMITTED is pinned: every statement of this package relies on a locked row being checked
    again in its newest version, which other levels answer with an error instead.
    """
    milliseconds = max(1, int(lease.total_seconds() * 1000))
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        keepalives=1,
        keepalives_idle=max(1, milliseconds // 3000),
        keepalives_interval=max(1, milliseconds // 9000),
        keepalives_count=3,
        tcp_user_timeout=milliseconds,
        application_name=f"scheduler {name}",
    )
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    settings = {
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": f"{milliseconds}ms",
        "lock_timeout": f"{max(1, milliseconds // 2)}ms",
        "tcp_user_timeout": f"{milliseconds}ms",
        "tcp_keepalives_idle": str(max(1, milliseconds // 3000)),
        "tcp_keepalives_interval": str(max(1, milliseconds // 9000)),
        "tcp_keepalives_count": "3",
        "timezone": "UTC",
    }
    connection.execute(
        "select set_config(name, value, false)"
        " from unnest(%s::text[], %s::text[]) as setting (name, value)",
        [list(settings), list(settings.values())],
    )
    return connection
