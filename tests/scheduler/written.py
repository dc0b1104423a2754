"""What the tests of bad input share: a database for a module, proof that nothing was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from psycopg import Connection

from chaos.cluster.postgres import Postgres

TABLES = (
    *("tasks", "run_log", "audit", "sources", "kind_sources", "kind_limits", "schedules"),
    "settings",
)


@contextmanager
def copied(migrated: Postgres) -> Iterator[str]:
    """A new database with the scheduler's schema, for the tests of a module; its address."""
    name = f"test_{uuid4().hex}"
    migrated.create_database(name, template="scheduler_template")
    yield migrated.dsn(name)
    migrated.drop_database(name)


def contents(db: Connection) -> list[tuple[str, str | None]]:
    """All rows of all tables of the scheduler, each table as one digest."""
    parts = [
        f"select '{table}', md5(string_agg(it::text, '|' order by it::text))"
        f" from scheduler.{table} as it"
        for table in TABLES
    ]
    return db.execute(" union all ".join(parts).encode()).fetchall()


@contextmanager
def unchanged(db: Connection) -> Iterator[None]:
    """Nothing is written by what is done in it: no row, no audit, no counter."""
    before = contents(db)
    yield
    assert contents(db) == before
