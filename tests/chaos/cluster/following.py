"""How far a standby has followed its primary."""

from __future__ import annotations

import psycopg

from chaos.cluster.standby import Standby
from tests.waiting import wait_for


def catch_up(standby: Standby, seconds: float = 90.0) -> None:
    """Wait until it shows all that the primary had committed before this call."""
    with psycopg.connect(standby.primary.dsn(), autocommit=True) as connection:
        # Its commit brings the log to the disk, and only from there is it sent. Without it, the
        # last transactions of a primary that commits asynchronously might stay behind.
        with connection.transaction():
            connection.execute("set local synchronous_commit = local")
            connection.execute("select pg_logical_emit_message(true, 'leaseproof', '')")
        row = connection.execute("select pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    query = "select from (select) as one where pg_last_wal_replay_lsn() >= %s::pg_lsn"
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        wait_for(
            lambda: connection.execute(query, [row[0]]).fetchone() is not None,
            f"{standby} to catch up with its primary",
            seconds,
        )
