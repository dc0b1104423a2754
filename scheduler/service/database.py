"""The service's connections: a bounded pool whose sessions cannot be held up for long.

Endpoints are plain functions, which the framework runs in a bounded pool of threads, on synchronous
connections: each request is one or two short statements, so threads cost nothing that matters, the
package's own functions serve as they are, and a payload's model, which is somebody else's code, may
take its time without stopping every other request, as it would in an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool

from scheduler.session import with_settings

CONNECT_SECONDS = 3
WAIT_SECONDS = 2.0  # for a free connection
WAITING_EACH = 4  # requests that may wait, for each connection
RECONNECT_SECONDS = 5.0  # how long one attempt at a new connection goes on in the background
PEER_SECONDS = 10  # of a peer that acknowledges nothing

SETTINGS = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": "10s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_user_timeout": f"{PEER_SECONDS}s",
    "timezone": "UTC",
    "jit": "off",
    # Counting for the metrics is the only statement that would take more cores than one.
    "max_parallel_workers_per_gather": "0",
}


class Database:
    """The pool. Open it before use and close it after."""

    def __init__(self, dsn: str, connections: int) -> None:
        self._pool = ConnectionPool(
            dsn,
            kwargs={
                "autocommit": True,
                "connect_timeout": CONNECT_SECONDS,
                "keepalives": 1,
                "keepalives_idle": PEER_SECONDS,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": PEER_SECONDS * 1000,
                "application_name": "scheduler service",
                "client_encoding": "UTF8",
                "options": with_settings(dsn, SETTINGS),
            },
            min_size=1,
            max_size=connections,
            # A session that died with the server is found here, not by a request.
            check=ConnectionPool.check_connection,
            timeout=WAIT_SECONDS,
            max_waiting=connections * WAITING_EACH,
            reconnect_timeout=RECONNECT_SECONDS,
            open=False,
        )

    def open(self) -> None:
        """Start connecting, without waiting for it."""
        self._pool.open()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection in autocommit mode. Raises psycopg.OperationalError if none is free in time:
        PoolTimeout, or TooManyRequests at once if too many wait already."""
        with self._pool.connection() as connection:
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:
                # A former primary. The pool must not keep it: a new session may find the new one.
                connection.close()
                raise
