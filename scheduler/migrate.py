"""Brings a database's schema up to this package's version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.rows import tuple_row

from scheduler import checks
from scheduler.errors import SchemaError
from scheduler.roles import apply_roles, missing_roles
from scheduler.session import CONNECT_TIMEOUT_SECONDS
from scheduler.statements import SQL

MONTHS_AHEAD = 3


class Migration(NamedTuple):
    """One file of `sql/migrations`: `<version>_<name>.sql`."""

    version: int
    name: str
    text: bytes


def migrations(directory: Path = SQL / "migrations") -> list[Migration]:
    """All migrations of this package, in order."""
    found = []
    for path in sorted(directory.glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name)
        if match is None:
            raise SchemaError(f"{path.name} is not named like 0001_name.sql")
        found.append(Migration(int(match[1]), match[2], path.read_bytes()))
    return found


def migrate(dsn: str) -> list[str]:
    """Apply what is missing, in one transaction; returns the names of what was applied.

    Safe when several processes start at once: an advisory lock, held to the end of the transaction,
    lets one do the work and shows the others that it is done. Where the server has the group roles
    (`create_roles`) their grants are made what this version's are. Raises SchemaError if the
    database is newer than this package, ValueError for what is no dsn.
    """
    with psycopg.connect(
        checks.dsn(dsn), connect_timeout=CONNECT_TIMEOUT_SECONDS, client_encoding="UTF8"
    ) as connection:
        # Under another level the snapshot would be older than the lock, and not show what is done.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        _refuse_encoding(connection)
        connection.execute("select pg_advisory_xact_lock(hashtextextended('scheduler.migrate', 0))")
        connection.execute("create schema if not exists scheduler")
        connection.execute(
            "create table if not exists scheduler.migrations ("
            " version integer primary key, name text not null,"
            " applied_at timestamptz not null default now())"
        )
        done = applied_version(connection)
        _refuse_newer(done)
        missing = [migration for migration in migrations() if migration.version > done]
        for migration in missing:
            connection.execute(migration.text)
            connection.execute(
                "insert into scheduler.migrations (version, name) values (%s, %s)",
                [migration.version, migration.name],
            )
        try:
            with connection.transaction():
                connection.execute("select scheduler.add_run_log_partitions(%s)", [MONTHS_AHEAD])
        except psycopg.errors.LockNotAvailable:
            pass  # somebody is reading the run log; any worker adds them later
        if not missing_roles(connection):
            apply_roles(connection)  # what is new has grants now; nothing is created
    return [migration.name for migration in missing]


def check_schema(connection: Connection) -> None:
    """Raise SchemaError unless the database has exactly this package's schema version."""
    _refuse_encoding(connection)
    with Cursor(connection, row_factory=tuple_row) as cursor:
        query = "select to_regclass('scheduler.migrations') is not null"
        [(exists,)] = cursor.execute(query).fetchall()
    done = applied_version(connection) if exists else 0
    _refuse_newer(done)
    if done == 0:
        raise SchemaError("the database has no scheduler schema yet: run `scheduler migrate`")
    if done < migrations()[-1].version:
        raise SchemaError(
            f"the database's schema is at version {done}, this package needs"
            f" {migrations()[-1].version}: run `scheduler migrate`"
        )


def applied_version(connection: Connection) -> int:
    """The newest migration recorded in the database; 0 if none."""
    with Cursor(connection, row_factory=tuple_row) as cursor:
        query = "select coalesce(max(version), 0) from scheduler.migrations"
        [(version,)] = cursor.execute(query).fetchall()
    return int(version)


def _refuse_encoding(connection: Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaError(
            f"the database's encoding is {encoding}, which cannot hold every payload and error:"
            " create it with encoding UTF8"
        )


def _refuse_newer(done: int) -> None:
    newest = migrations()[-1].version
    if done > newest:
        raise SchemaError(
            f"the database's schema is at version {done}, newer than the {newest} that this package"
            " knows: upgrade the package"
        )
