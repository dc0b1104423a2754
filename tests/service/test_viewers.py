"""A token without a source: it sees the tasks of all and changes nothing; none can become one."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from scheduler import declare_schedules
from scheduler.cli import main
from scheduler.service import tokens
from scheduler.service.tokens import LOOKING, Caller, Scope, TokenError
from tests.scheduler.working import statuses
from tests.service.conftest import SCHEDULED, Api, MakeApi, TestClient, slug
from tests.service.test_refusals import ROUTES, TASKS


@pytest.fixture
def viewer(client: TestClient, db: Connection) -> Api:
    """Somebody who sees everything."""
    return Api(client, tokens.create(db, "viewer", None, LOOKING))


def test_a_viewer_sees_the_tasks_and_schedules_of_all_sources(
    viewer: Api, api: MakeApi, db: Connection
) -> None:
    declare_schedules(db, SCHEDULED)
    one, two = api(source="one").enqueue(), api(source="two").enqueue()
    assert {it["id"] for it in viewer.get(TASKS).json()["tasks"]} == {one, two}
    assert [it["id"] for it in viewer.get(TASKS, source="two").json()["tasks"]] == [two]
    assert viewer.get(f"{TASKS}/{one}").json()["source"] == "one"
    assert viewer.get(f"{TASKS}/{one}/runs").json()["runs"] == []
    assert len(viewer.get("/api/v1/schedules").json()["schedules"]) == 2
    assert viewer.get("/metrics").status_code == 200
    told = viewer.get("/api/v1/token").json()
    assert (told["source"], told["scopes"]) == (None, ["metrics", "read"])


def test_a_viewer_can_do_no_write(viewer: Api, api: MakeApi, db: Connection) -> None:
    declare_schedules(db, SCHEDULED)
    task = api().enqueue()
    before = db.execute("select count(*) from scheduler.audit").fetchall()
    for method, path, scope, body in ROUTES:
        path = path.replace("/tasks/1", f"/tasks/{task}").replace(
            "/schedules/1", "/schedules/daily"
        )
        answer = viewer.client.request(method, path, json=body, headers=viewer.headers)
        if scope in LOOKING:
            assert (method, answer.status_code) == ("GET", 200), path
        else:
            assert (answer.status_code, slug(answer)) == (403, "missing-scope"), path
    assert statuses(db) == {"pending": 1}
    assert db.execute("select count(*) from scheduler.audit").fetchall() == before


@pytest.mark.parametrize("scope", sorted(set(Scope) - LOOKING))
def test_without_a_source_no_token_has_a_scope_that_changes_something(
    db: Connection, scope: Scope
) -> None:
    with pytest.raises(ValueError, match="give it a source"):
        tokens.create(db, "one", None, [Scope.READ, scope])
    with pytest.raises(psycopg.errors.CheckViolation, match="without_a_source_it_only_looks"):
        db.execute(
            "select scheduler.create_token('one', %s, null, %s::text[], null)",
            [b"x" * 32, ["read", scope]],
        )
    # Nor could it do anything if the table had one.
    assert not Caller("one", None, frozenset(Scope), None).may(scope)


def test_a_token_becomes_no_viewer(api: MakeApi, db: Connection, http_dsn: str, dsn: str) -> None:
    shop = api("read")
    hidden = api(source="other").enqueue()
    change = "update scheduler.tokens set source = null"
    db.execute("create role watching login in role scheduler_operator")
    try:
        for user in ("http_server", "watching"):
            with psycopg.connect(make_conninfo(dsn, user=user), autocommit=True) as session:
                for statement in (
                    change,
                    "select scheduler.create_token('mine', sha256('x'), null, '{read}', null)",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        session.execute(statement.encode())
    finally:
        db.execute("drop role watching")
    # The name is taken, so it cannot be made anew; and what a request says of itself is not heard.
    with pytest.raises(TokenError, match="a name is used once"):
        tokens.create(db, "token1", None, [Scope.READ])
    assert shop.get(TASKS, source="other").json()["tasks"] == []
    assert slug(shop.get(f"{TASKS}/{hidden}")) == "not-found"


def test_a_viewer_for_a_kind_sees_that_kind_only(
    client: TestClient, api: MakeApi, db: Connection
) -> None:
    narrow = Api(client, tokens.create(db, "narrow", None, [Scope.READ], ["any"]))
    shop = api()
    hidden, seen = shop.enqueue(), shop.enqueue(kind="any")
    assert [it["id"] for it in narrow.get(TASKS).json()["tasks"]] == [seen]
    assert slug(narrow.get(f"{TASKS}/{hidden}")) == "not-found"


def test_the_command_line_makes_a_viewer_and_audits_it(
    dsn: str, db: Connection, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULER_DATABASE", dsn)

    def run(*arguments: str) -> tuple[object, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["token", *arguments])
        return ended.value.code or 0, *capsys.readouterr()

    code, secret, _ = run(
        "create", "wall", "--all-sources", "--scope", "read", "--scope", "metrics"
    )
    assert code == 0
    assert tokens.find(db, tokens.digest(secret.strip())) == Caller(
        "wall", None, frozenset({"read", "metrics"}), None
    )
    assert "(all)" in run("list")[1]
    assert json.loads(run("list", "--json")[1])["tokens"][0]["source"] is None
    code, _, said = run("create", "two", "--all-sources", "--scope", "read", "--scope", "cancel")
    assert (code, "give it a source" in said) == (2, True)
    assert run("revoke", "wall")[0] == 0
    audit = db.execute("select action, source, detail from scheduler.audit order by id")
    assert audit.fetchall() == [
        ("create-token", "postgres", "wall: metrics, read; all sources"),
        ("revoke-token", "postgres", "wall"),
    ]
