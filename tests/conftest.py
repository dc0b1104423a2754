"""Shared fixtures, over those of `chaos.pytest_plugin`: a fresh database a test, migrated."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import Connection

import scheduler
from chaos.cluster.pgbouncer import find_pgbouncer
from chaos.cluster.postgres import Postgres
from chaos.cluster.toxiproxy import Toxiproxy, find_server
from chaos.life.clock import Clock
from chaos.testing import database
from tests.opened import tell_who_opened
from tests.parts import part

pytest_plugins = ["tests.browser"]

TEMPLATE = "scheduler_template"

# How long an example takes is the machine's doing, and no property of what is tested.
settings.register_profile("leaseproof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leaseproof")

tell_who_opened()

# A shell starts what it puts into the background with SIGINT ignored, and so would be every child
# of such a run: the tests that interrupt one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """A long test is told of what it left open, and not whichever test comes next when the garbage
    is collected: each has room for the tenth of a second that this takes."""
    yield
    if request.node.get_closest_marker("chaos_long"):
        gc.collect()


@pytest.fixture(scope="session")
def postgres_settings() -> Mapping[str, str]:
    """Room for a fleet of fifty."""
    return {"max_connections": "160"}


@pytest.fixture(scope="session")
def server(postgres: Postgres) -> Postgres:
    """The plugin's server, under the name that the tests of the scheduler give it."""
    return postgres


@pytest.fixture(scope="session")
def real_toxiproxy() -> Path:
    """The Toxiproxy program."""
    return part("toxiproxy", find_server)


@pytest.fixture
def toxiproxy(real_toxiproxy: Path, toxiproxy: Toxiproxy) -> Toxiproxy:
    """The plugin's, where there is one."""
    return toxiproxy


@pytest.fixture(scope="session")
def real_pgbouncer() -> Path:
    """The PgBouncer program."""
    return part("pgbouncer", find_pgbouncer)


@pytest.fixture(scope="session")
def migrated(server: Postgres) -> Postgres:
    """The server, with a migrated database to copy from."""
    server.create_database(TEMPLATE)
    scheduler.migrate(server.dsn(TEMPLATE))
    return server


@pytest.fixture
def empty_dsn(postgres_dsn: str) -> str:
    """The plugin's new and empty database, as opposed to `dsn`."""
    return postgres_dsn


@pytest.fixture
def dsn(migrated: Postgres) -> Iterator[str]:
    """A new database with the scheduler's schema."""
    with database(migrated, TEMPLATE) as made:
        yield made


@pytest.fixture
def db(dsn: str) -> Iterator[Connection]:
    """A connection to the test's database, in autocommit mode."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(db: Connection) -> Clock:
    """The test's database time, frozen until it is advanced."""
    return Clock(db)
