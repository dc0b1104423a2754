"""The database away, busy, or not as it should be: a clear answer, and back by itself."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import Postgres
from scheduler.service import database
from tests.scheduler.working import WORK, put, statuses
from tests.service.conftest import MakeApi, slug
from tests.waiting import wait_for

TASKS = "/api/v1/tasks"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that gives up soon, for tests that wait for it."""
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.2)
    settings = {**database.SETTINGS, "lock_timeout": "100ms"}
    monkeypatch.setattr(database, "SETTINGS", settings)


@pytest.fixture
def let_in(server: Postgres) -> Callable[[bool], None]:
    """Lets the service into the database, or throws it out and keeps it there."""

    def let(in_: bool) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"alter role http_server {'login' if in_ else 'nologin'}".encode())
            if not in_:
                admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where usename = 'http_server'"
                )

    return let


@pytest.mark.usefixtures("impatient")
def test_while_the_database_is_away_answers_say_so_and_afterwards_all_is_well(
    let_in: Callable[[bool], None], request: pytest.FixtureRequest, db: Connection
) -> None:
    api: MakeApi = request.getfixturevalue("api")  # after `impatient`
    shop = api()
    task = shop.enqueue()
    let_in(False)
    try:
        for answer in (
            shop.post(TASKS, {"kind": "work", "payload": 1}),
            shop.get(f"{TASKS}/{task}"),
            shop.get("/api/v1/dead-letters/export"),
            shop.get("/metrics"),
            shop.get("/health/ready"),
        ):
            assert (answer.status_code, slug(answer)) == (503, "database-unavailable")
            assert "http_server" not in answer.text
        assert answer.headers.get("retry-after") is None
        assert shop.get(TASKS).headers["retry-after"] == "1"
        assert shop.get("/health/live").status_code == 200
    finally:
        let_in(True)
    wait_for(lambda: shop.get(f"{TASKS}/{task}").status_code == 200, "the service to be back")
    wait_for(lambda: shop.get("/health/ready").status_code == 200, "the service to be ready")
    assert statuses(db) == {"pending": 1}


def test_sessions_that_died_with_the_server_cost_no_request(
    api: MakeApi, let_in: Callable[[bool], None]
) -> None:
    shop = api()
    assert shop.get(TASKS).status_code == 200
    let_in(False)
    let_in(True)
    assert shop.get(TASKS).status_code == 200


@pytest.mark.usefixtures("impatient")
def test_a_task_that_somebody_has_locked_is_not_waited_for_for_long(
    request: pytest.FixtureRequest, db: Connection
) -> None:
    shop = request.getfixturevalue("api")()
    task = shop.enqueue()
    with db.transaction():
        db.execute("select from scheduler.tasks where id = %s for update", [task])
        answer = shop.post(f"{TASKS}/{task}/cancel")
    assert (answer.status_code, slug(answer)) == (503, "database-too-slow")
    assert statuses(db) == {"pending": 1}
    assert shop.post(f"{TASKS}/{task}/cancel").status_code == 200


def test_a_former_primary_is_let_go_of(api: MakeApi, db: Connection) -> None:
    shop = api()
    assert shop.get(TASKS).status_code == 200
    db.execute("alter role http_server set default_transaction_read_only = on")
    try:
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'http_server'"
        )
        answer = shop.post(TASKS, {"kind": "work", "payload": 1})
        assert (answer.status_code, slug(answer)) == (503, "database-unavailable")
    finally:
        db.execute("alter role http_server reset default_transaction_read_only")
    # The read-only session is gone: the next request has a new one.
    wait_for(
        lambda: shop.post(TASKS, {"kind": "work", "payload": 1}).status_code == 201,
        "a session that can write",
        5,
    )


@pytest.mark.parametrize(
    ("function", "path", "body"),
    [
        ("cancel", f"{TASKS}/1/cancel", None),
        ("enqueue", TASKS, {"kind": "work", "payload": 1}),
    ],
)
def test_a_function_that_the_role_may_not_call_is_the_servers_fault_too(
    api: MakeApi, db: Connection, function: str, path: str, body: object
) -> None:
    shop = api()
    path = path.replace("/1/", f"/{put(db, 1, WORK)[0]}/")
    db.execute(f"revoke execute on function scheduler.{function} from scheduler_http".encode())
    try:
        answer = shop.post(path, body)
    finally:
        db.execute(f"grant execute on function scheduler.{function} to scheduler_http".encode())
    assert (answer.status_code, slug(answer)) == (500, "not-permitted-to-server")


def test_a_right_that_the_role_lacks_is_the_servers_fault_and_logged(
    api: MakeApi, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    shop = api()
    [task] = put(db, 1, WORK)
    db.execute("revoke select on scheduler.tasks from scheduler_http")
    try:
        answer = shop.get(f"{TASKS}/{task}")
    finally:
        db.execute("grant select on scheduler.tasks to scheduler_http")
    assert (answer.status_code, slug(answer)) == (500, "not-permitted-to-server")
    assert "permission denied for table tasks" not in answer.text
    assert "permission denied for table tasks" in caplog.text


def test_the_services_role_can_do_nothing_besides(http_dsn: str) -> None:
    with psycopg.connect(http_dsn, autocommit=True) as connection:
        for statement in (
            "select * from scheduler.tokens",
            "select scheduler.create_token('x', 'x', 'x', '{read}', null)",
            "select scheduler.revoke_token('x')",
            "update scheduler.tasks set source = 'x'",
            "insert into scheduler.tasks (kind) values ('work')",
            "select * from scheduler.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
