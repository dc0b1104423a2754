"""Examines a live database and the application on it: what is wrong, and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import psycopg
from psycopg import Connection
from psycopg.rows import tuple_row

from scheduler.doctor import queue, rights, server
from scheduler.doctor.finding import Checked, Finding
from scheduler.errors import SessionError
from scheduler.kinds import Registry
from scheduler.session import CONNECT_TIMEOUT_SECONDS, connect_worker

__all__ = ["Checked", "Finding", "examine"]

Check = Callable[[Connection], Finding]

LEASE = timedelta(seconds=60)  # of a worker whose application is not known
LONGEST_LOOK = "30s"


def examine(
    dsn: str, registry: Registry | None = None, wall: Callable[[], float] = time.time
) -> list[Checked]:
    """Run all checks; those of kinds and their leases only with the application's registry.

    Changes nothing. `wall` is this machine's clock, in seconds since 1970. What cannot be looked
    at, for want of a grant for example, is a `warn`; without the schema the checks that need it
    are left out.
    """
    try:
        connection = psycopg.connect(
            dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            client_encoding="UTF8",
            row_factory=tuple_row,
        )
    except psycopg.OperationalError as error:
        advice = "start the server, or correct the database's URL"
        return [Checked("reachable", "fail", " ".join(str(error).split()), advice)]
    with connection:
        info = connection.info
        found = [Checked("reachable", "ok", f"database {info.dbname} as {info.user}", "")]
        # Names in what the server tells are then qualified, unless they are the catalog's.
        connection.execute("set search_path = pg_catalog")
        connection.execute("select set_config('statement_timeout', %s, false)", [LONGEST_LOOK])
        for name, check in _checks(dsn, registry, wall).items():
            found.append(_look(connection, name, check))
            if name == "schema" and found[-1].level != "ok":
                break
    return found


def _checks(dsn: str, registry: Registry | None, wall: Callable[[], float]) -> dict[str, Check]:
    lease = LEASE if registry is None else min((kind.lease for kind in registry), default=LEASE)
    connect = partial(connect_worker, dsn, "doctor", lease)
    checks: dict[str, Check] = {
        "server version": server.server_version,
        "encoding": server.encoding,
        "durability": server.durability,
        "connections": server.connections,
        "default isolation": server.default_isolation,
        "worker session": partial(server.worker_session, lease=lease, connect=connect),
        "clock skew": partial(server.clock_skew, wall=wall),
        "prepared transactions": server.prepared_transactions,
        "old transactions": server.old_transactions,
        "schema": server.schema,
        "clock": server.clock,
        "roles": rights.group_roles,
        "grants": rights.role_grants,
        "definer functions": rights.definer_functions,
        "autovacuum": server.autovacuum,
        "run log partitions": queue.run_log_partitions,
        "expired leases": queue.expired_leases,
    }
    if registry is not None:
        checks["lease headroom"] = partial(queue.lease_headroom, registry=registry)
        checks["unknown kinds"] = partial(queue.unknown_kinds, registry=registry)
    return checks


def _look(connection: Connection, name: str, check: Check) -> Checked:
    try:
        finding = check(connection)
    except SessionError as error:
        return Checked(name, "fail", str(error), "or let the doctor connect past the pooler")
    except psycopg.Error as error:
        why = " ".join(str(error.diag.message_primary or error).split())
        return Checked(
            name,
            "warn",
            f"could not be looked at: {why}",
            "ask as a superuser or the schema's owner",
        )
    return Checked(name, finding.level, finding.found, finding.advice)
