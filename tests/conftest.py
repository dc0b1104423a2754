"""Shared fixtures: one real PostgreSQL cluster a test process, one fresh database a test."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

import scheduler
from chaos.cluster.postgres import Postgres, postgres
from tests.clock import Clock

TEMPLATE = "scheduler_template"


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server of this test process's own."""
    with postgres() as running:
        yield running


@pytest.fixture(scope="session")
def migrated(server: Postgres) -> Postgres:
    """The server, with a migrated database to copy from."""
    server.create_database(TEMPLATE)
    scheduler.migrate(server.dsn(TEMPLATE))
    return server


@pytest.fixture
def empty_dsn(server: Postgres) -> Iterator[str]:
    """A new, empty database."""
    name = f"test_{uuid4().hex}"
    server.create_database(name)
    yield server.dsn(name)
    server.drop_database(name)


@pytest.fixture
def dsn(migrated: Postgres) -> Iterator[str]:
    """A new database with the scheduler's schema."""
    name = f"test_{uuid4().hex}"
    migrated.create_database(name, template=TEMPLATE)
    yield migrated.dsn(name)
    migrated.drop_database(name)


@pytest.fixture
def db(dsn: str) -> Iterator[Connection]:
    """A connection to the test's database, in autocommit mode."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(db: Connection) -> Clock:
    """The test's database time, frozen until it is advanced."""
    return Clock(db)
