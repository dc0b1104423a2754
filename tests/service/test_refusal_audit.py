"""Refused requests are in the audit: all of them, in few rows, whatever the database does."""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pytest
from psycopg import Connection

from scheduler import access
from scheduler.cli import main
from scheduler.service import refusals, tokens
from scheduler.service.app import create_app
from scheduler.service.database import Database
from scheduler.service.refusals import RefusalAudit
from scheduler.service.tokens import LOOKING, Caller, Scope
from tests.service.conftest import REGISTRY, Api, TestClient, slug
from tests.service.test_refusals import HOSTILE, TASKS
from tests.waiting import wait_for

# What an honest client may be told, too: wrong payloads, and things that are not there.
HONEST = {"invalid-payload", "invalid-time", "unknown-kind"}


def audited(db: Connection) -> list[tuple[str, int, str]]:
    """Source, how many and details of the refusals, in the order of their reasons."""
    found = access.audit(db, "refuse")
    return sorted(((it.source, it.tasks, str(it.detail)) for it in found), key=lambda it: it[2])


def test_each_hostile_request_is_counted_under_its_reason_and_token(
    http_dsn: str, db: Connection
) -> None:
    secret = tokens.create(db, "everything", "shop", list(Scope))
    wanted: Counter[str] = Counter()
    with TestClient(create_app(REGISTRY, http_dsn, rate=1000)) as client:
        for name, (send, _, problem) in HOSTILE.items():
            send(Api(client, secret))
            if problem not in HONEST and name != "a schedule that is none":
                wanted[problem] += 1
        assert audited(db) == []  # nothing is written while a request waits
    rows = access.audit(db, "refuse")
    found: Counter[str] = Counter()
    for row in rows:
        assert row.role == "http_server"
        found[str(row.detail).partition(";")[0]] += row.tasks
    assert found == wanted
    # A path that leads nowhere is refused before anybody asks who it is.
    assert {row.source for row in rows} == {"shop", "http_server"}
    assert len(rows) <= 2 * len(wanted)
    assert secret not in repr(rows)


def test_a_flood_is_counted_under_the_token_it_comes_with(http_dsn: str, db: Connection) -> None:
    secret = tokens.create(db, "shop", "shop", [Scope.READ])
    with TestClient(create_app(REGISTRY, http_dsn, rate=0.01)) as client:
        answers = [Api(client, secret).get(TASKS).status_code for _ in range(4)]
    refused = answers.count(429)
    assert refused > 0
    path = f"{TASKS} from testclient"
    assert audited(db) == [
        ("shop", refused, f"rate-limited; token shop; the last: GET {path}"),
    ]


def test_strangers_and_those_who_try_what_they_may_not_are_told_apart(
    http_dsn: str, db: Connection
) -> None:
    shop, other = (
        tokens.create(db, name, name, [Scope.READ, Scope.ENQUEUE]) for name in ("shop", "other")
    )
    viewer = tokens.create(db, "viewer", None, LOOKING)
    with TestClient(create_app(REGISTRY, http_dsn, rate=1000)) as client:
        task = Api(client, other).enqueue()
        for _ in range(3):
            assert slug(Api(client, shop).get(f"{TASKS}/{task}")) == "not-found"
        assert slug(Api(client, shop).post(f"{TASKS}/{task}/cancel")) == "missing-scope"
        assert slug(Api(client, viewer).post(f"{TASKS}/{task}/cancel")) == "missing-scope"
        assert slug(Api(client, "lpt_" + "A" * 43).get(TASKS)) == "invalid-token"
        assert client.get(f"{TASKS}/1").status_code == 401
    cancel = f"POST /api/v1/tasks/{task}/cancel from testclient"
    assert audited(db) == [
        ("http_server", 1, "invalid-token; token -; the last: GET /api/v1/tasks from testclient"),
        ("shop", 1, f"missing-scope; token shop; the last: {cancel}"),
        ("http_server", 1, f"missing-scope; token viewer; the last: {cancel}"),
        ("http_server", 1, "missing-token; token -; the last: GET /api/v1/tasks/1 from testclient"),
        ("shop", 3, f"not-visible; token shop; the last: GET {TASKS}/{task} from testclient"),
    ]


def test_a_flood_is_counted_in_one_row_and_not_logged(
    http_dsn: str, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    one = tokens.create(db, "one", "shop", [Scope.READ])
    with TestClient(create_app(REGISTRY, http_dsn, rate=0.001)) as client:
        answers = Counter(Api(client, one).get(TASKS).status_code for _ in range(20))
    assert set(answers) == {200, 429}
    [(_, count, detail)] = audited(db)
    assert (count, detail.partition(";")[0]) == (answers[429], "rate-limited")
    assert "refused" not in caplog.text


def test_many_tokens_are_counted_together_beyond_a_bound(
    http_dsn: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MOST_ROWS", 3)
    database = Database(http_dsn, 1)
    database.open()
    try:
        audit = RefusalAudit(database)
        for number in range(10):
            caller = Caller(f"t{number}", f"s{number}", frozenset({"read"}), None)
            audit.count("missing-scope", caller, "GET / from here")
        audit.write()
        audit.write()  # has nothing to write
    finally:
        database.close()
    assert sorted((source, count) for source, count, _ in audited(db)) == [
        *(("http_server", 7), ("s0", 1), ("s1", 1), ("s2", 1))
    ]


def test_what_the_database_does_not_take_is_kept_until_it_does(
    http_dsn: str,
    db: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database(http_dsn, 1)
    database.open()
    try:
        audit = RefusalAudit(database)
        audit.count("invalid-token", None, "GET /one from here")
        with monkeypatch.context() as patched:

            def away(*_: object) -> None:
                raise psycopg.OperationalError("away")

            patched.setattr(refusals, "fetch", away)
            audit.write()
        assert "refusals-not-audited error=away" in caplog.text
        audit.count("invalid-token", None, "GET /two from here")
        audit.write()
    finally:
        database.close()
    assert audited(db) == [
        ("http_server", 2, "invalid-token; token -; the last: GET /two from here")
    ]


def test_counts_are_written_again_and_again_while_it_runs(http_dsn: str, db: Connection) -> None:
    database = Database(http_dsn, 1)
    database.open()
    audit = RefusalAudit(database, every=0.01)
    audit.start()
    try:
        for number in range(2):
            audit.count("invalid-token", None, f"GET /{number} from here")
            wait_for(lambda: len(audited(db)) > number, "the row")  # noqa: B023 - called here
    finally:
        audit.close()
        database.close()
    assert len(audited(db)) == 2


def test_the_command_line_lists_the_audit(
    dsn: str, db: Connection, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULER_DATABASE", dsn)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["audit", *arguments])
        assert ended.value.code in (None, 0)
        return capsys.readouterr().out

    assert run() == "nothing\n"
    tokens.create(db, "one", "shop", [Scope.READ])
    db.execute("select scheduler.record_refusals('{null}', '{17}', '{invalid-token}')")
    assert [line.split()[2] for line in run().splitlines()[1:]] == ["refuse", "create-token"]
    [row] = json.loads(run("--action", "refuse", "--limit", "1", "--json"))["audit"]
    assert (row["action"], row["tasks"], row["detail"]) == ("refuse", 17, "invalid-token")
