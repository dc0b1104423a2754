"""The service in this process, on the test's database, with the rights it is to have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from httpx import Response
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from chaos.cluster.postgres import Postgres
from chaos.life.clock import Clock
from scheduler import Attempt, Cron, Every, Registry, RetryPolicy
from scheduler.roles import create_roles
from scheduler.service import tokens
from scheduler.service.app import create_app
from scheduler.service.tokens import Scope
from tests.conftest import TEMPLATE

with warnings.catch_warnings():
    # It asks for the successor of httpx, which nothing else here needs; httpx serves as well.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

REGISTRY = Registry()
ONCE = RetryPolicy(max_attempts=1)
ANYTHING: Any = object
ALL = tuple(Scope)
TABLES = (
    *("tasks", "run_log", "audit", "sources", "kind_sources", "kind_limits", "tokens", "schedules"),
    *("deliveries", "deaths", "dead_letter_hooks"),
)
__all__ = ["TestClient"]  # of all the names here the one that is imported


@REGISTRY.kind("work", int, retry=ONCE)
def work(attempt: Attempt, payload: int) -> None:
    """Fails for a negative payload."""
    if payload < 0:
        raise ValueError(f"{payload} is negative")


@REGISTRY.kind("any", ANYTHING, queue="other")
def anything(attempt: Attempt, payload: object) -> None:
    """Takes what comes."""


SCHEDULED = Registry(application="scheduled", kinds=REGISTRY.kinds)
SCHEDULED.schedule("hourly", work, 1, Every(timedelta(hours=1)))
SCHEDULED.schedule("daily", anything, None, Cron("0 3 * * *", "Europe/Berlin"))


class Api:
    """Requests with one token."""

    def __init__(self, client: TestClient, secret: str) -> None:
        self.client = client
        self.secret = secret
        self.headers = {"Authorization": f"Bearer {secret}"}

    def get(self, path: str, **parameters: Any) -> Response:
        """GET with query parameters."""
        answer: Response = self.client.get(path, params=parameters or None, headers=self.headers)
        return answer

    def post(self, path: str, body: object = None) -> Response:
        """POST a JSON body, or none."""
        answer: Response = self.client.post(path, json=body, headers=self.headers)
        return answer

    def enqueue(self, payload: object = 1, kind: str = "work", **more: object) -> int:
        """Enqueue a task; its id."""
        answer = self.post("/api/v1/tasks", {"kind": kind, "payload": payload, **more})
        assert answer.status_code in (200, 201), answer.text
        return int(answer.json()["id"])


MakeApi = Callable[..., Api]


@pytest.fixture(scope="session")
def service_database(migrated: Postgres) -> Iterator[str]:
    """A database for all of these tests, with the service's role: to make one takes longer than
    most of them do."""
    migrated.create_database("service", template=TEMPLATE)
    dsn = migrated.dsn("service")
    create_roles(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create role http_server login in role scheduler_http")
    yield dsn
    migrated.drop_database("service")


@pytest.fixture
def dsn(service_database: str) -> str:
    """That database, emptied."""
    with psycopg.connect(service_database) as connection:
        connection.execute("set session_replication_role = replica")  # the audit is append-only
        for table in TABLES:
            connection.execute(f"delete from scheduler.{table}".encode())
    return service_database


@pytest.fixture
def clock(db: Connection) -> Iterator[Clock]:
    """The database's time; the real one again at the end, as others use this database."""
    clock = Clock(db)
    db.execute("grant usage on schema explorer_clock to public")
    db.execute("grant select on explorer_clock.reading, explorer_clock.ticks to public")
    yield clock
    db.execute(
        "create or replace function scheduler.now() returns timestamptz"
        " language sql stable parallel safe return statement_timestamp()"
    )
    db.execute("update scheduler.settings set value = 'statement_timestamp()' where name = 'clock'")
    db.execute("drop schema explorer_clock cascade")


@pytest.fixture
def http_dsn(dsn: str) -> str:
    """The connection string of a role that serves many."""
    return make_conninfo(dsn, user="http_server")


@pytest.fixture
def client(http_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The running service; its numbers are always fresh."""
    monkeypatch.setattr("scheduler.service.kept.KEPT_SECONDS", 0.0)
    monkeypatch.setattr("scheduler.service.kept.LARGEST_SHARE", float("inf"))
    app = create_app(REGISTRY, http_dsn, rate=1000, connections=4)
    with TestClient(app, raise_server_exceptions=False) as running:
        yield running


@pytest.fixture
def api(client: TestClient, db: Connection) -> MakeApi:
    """Makes callers: with all scopes and the source `shop`, unless told otherwise."""
    numbers = count(1)

    def make(*scopes: Scope | str, source: str = "shop", kinds: list[str] | None = None) -> Api:
        wanted = [Scope(scope) for scope in scopes or ALL]
        secret = tokens.create(db, f"token{next(numbers)}", source, wanted, kinds)
        return Api(client, secret)

    return make


def without_empty_pages(db: Connection) -> None:
    """What is drawn from the pages of the tasks is not to depend on what other tests left there."""
    db.execute("vacuum full scheduler.tasks")


def put_dead(db: Connection, kind: str, error: str) -> int:
    """A task that died of this error; its id."""
    [(task,)] = db.execute(
        "insert into scheduler.tasks (kind, payload, status, next_run_at, attempts, max_attempts,"
        " backoff_base, backoff_factor, backoff_cap, backoff_jitter, last_error, enqueued_at,"
        " finished_at) values (%s, '1', 'dead', now(), 1, 1, 1, 1, 1, 0, %s, now(), now())"
        " returning id",
        [kind, error],
    ).fetchall()
    return int(task)


def slug(answer: Response) -> str:
    """The stable name of a problem; checks its form."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = answer.json()
    assert document["status"] == answer.status_code
    assert set(document) <= {"type", "title", "status", "detail", "errors"}
    assert "Traceback" not in answer.text
    return str(document["type"]).removeprefix("urn:problem-type:leaseproof:")
