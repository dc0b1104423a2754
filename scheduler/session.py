"""Opens connections whose session settings keep a stopped client from holding a row for long."""

from __future__ import annotations

import os
from datetime import timedelta

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict

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
    settings = {
        "default_transaction_isolation": "read\\ committed",  # escaped, as below a space separates
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
    # With the connection's first message rather than by a statement after it: a network that goes
    # dead in between would keep such a statement waiting for ever, and connect_timeout covers this.
    given = conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS")
    ours = [f"-c {name}={value}" for name, value in settings.items()]
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
        client_encoding="UTF8",
        options=" ".join([str(given), *ours] if given else ours),
    )
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection
