"""Shared fixtures: one real PostgreSQL cluster a test process, one fresh database a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

import scheduler
from chaos.cluster import ClusterError
from chaos.cluster.postgres import Postgres, postgres
from chaos.cluster.toxiproxy import find_server
from tests.clock import Clock

TEMPLATE = "scheduler_template"


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server of this test process's own."""
    with postgres() as running:
        yield running


@pytest.fixture(scope="session")
def real_toxiproxy() -> Path:
    """The Toxiproxy program. Where it cannot be had the test is skipped, and says how to get it;
    with `toxiproxy` in LEASEPROOF_REQUIRE it fails instead."""
    try:
        return find_server()
    except ClusterError as error:
        if "toxiproxy" in os.environ.get("LEASEPROOF_REQUIRE", "").split(","):
            raise
        pytest.skip(str(error))


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
