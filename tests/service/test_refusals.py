"""What hostile or mistaken requests are told, and that nothing happens."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from unittest.mock import Mock, patch

import pytest
from httpx import Response
from psycopg import Connection

from scheduler.service import tokens
from scheduler.service.app import create_app
from scheduler.service.tokens import Scope
from tests.scheduler.working import statuses
from tests.service.conftest import REGISTRY, Api, MakeApi, TestClient, slug

TASKS = "/api/v1/tasks"
ONE = {"kind": "work", "payload": 1}

# Each route with the scope it needs.
ROUTES: list[tuple[str, str, Scope, object]] = [
    ("POST", TASKS, Scope.ENQUEUE, ONE),
    ("POST", f"{TASKS}/batch", Scope.ENQUEUE, {"kind": "work", "payloads": [1]}),
    ("GET", TASKS, Scope.READ, None),
    ("GET", f"{TASKS}/1", Scope.READ, None),
    ("GET", f"{TASKS}/1/runs", Scope.READ, None),
    ("POST", f"{TASKS}/1/cancel", Scope.CANCEL, None),
    ("GET", "/api/v1/dead-letters", Scope.OPERATE, None),
    ("GET", "/api/v1/dead-letters/export", Scope.OPERATE, None),
    ("POST", "/api/v1/dead-letters/requeue", Scope.OPERATE, {"ids": [1]}),
    ("POST", "/api/v1/dead-letters/discard", Scope.OPERATE, {"ids": [1]}),
    ("GET", "/api/v1/schedules", Scope.READ, None),
    ("POST", "/api/v1/schedules/1/pause", Scope.OPERATE, None),
    ("POST", "/api/v1/schedules/1/resume", Scope.OPERATE, None),
    ("POST", "/api/v1/schedules/1/run", Scope.OPERATE, None),
    ("GET", "/api/v1/status", Scope.METRICS, None),
    ("GET", "/api/v1/throughput", Scope.METRICS, None),
    ("GET", "/metrics", Scope.METRICS, None),
]


def test_every_route_of_the_api_is_tried_here(client: TestClient) -> None:
    described = client.get("/api/v1/openapi.json").json()["paths"]
    protected = {
        (method.upper(), re.sub(r"\{(task|name)\}", "1", path))
        for path, methods in described.items()
        for method, operation in methods.items()
        if "security" in operation
    }
    assert protected == {(method, path) for method, path, _, _ in ROUTES} | {
        ("GET", "/api/v1/token")
    }


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Basic bHB0Xzpz",
        "Bearer nonsense",
        "Bearer lpt_" + "A" * 43,
        b"Bearer lpt_\xff\xfe" + b"A" * 41,
        "Bearer ' or true --",
        "Bearer " + "A" * 7000,
    ],
)
def test_without_a_valid_token_every_route_is_closed(
    client: TestClient, db: Connection, header: str | bytes | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path, _, body in ROUTES:
        answer = client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 401
        assert slug(answer) in ("missing-token", "invalid-token")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert statuses(db) == {}


def test_each_route_needs_its_own_scope_and_no_other(api: MakeApi) -> None:
    for method, path, scope, body in ROUTES:
        others = api(*(other for other in Scope if other is not scope))
        answer = others.client.request(method, path, json=body, headers=others.headers)
        assert (answer.status_code, slug(answer)) == (403, "missing-scope"), path
        assert repr(scope.value) in answer.json()["detail"]
        alone = api(scope)
        answer = alone.client.request(method, path, json=body, headers=alone.headers)
        assert answer.status_code in (200, 201, 404), path


def test_a_revoked_token_is_refused_at_once(api: MakeApi, db: Connection) -> None:
    shop = api()
    shop.enqueue()
    assert tokens.revoke(db, "token1")
    assert slug(shop.get(TASKS)) == "invalid-token"


def test_another_sources_task_does_not_exist(api: MakeApi, db: Connection) -> None:
    task = api(source="other").enqueue()
    shop = api("read", "cancel", "enqueue")
    unknown, hidden = shop.get(f"{TASKS}/{task + 1}"), shop.get(f"{TASKS}/{task}")
    assert (unknown.status_code, hidden.status_code) == (404, 404)
    told = {**unknown.json(), "detail": f"there is no task {task}"}
    assert hidden.json() == told
    assert slug(shop.get(f"{TASKS}/{task}/runs")) == "not-found"
    assert slug(shop.post(f"{TASKS}/{task}/cancel")) == "not-found"
    assert shop.get(TASKS).json()["tasks"] == []
    assert shop.get(TASKS, source="other").json() == {"tasks": [], "next": None}
    assert statuses(db) == {"pending": 1}


def test_an_operator_sees_and_cancels_the_tasks_of_all_sources(
    api: MakeApi, db: Connection
) -> None:
    task = api(source="other").enqueue()
    operator = api("operate", "read", "cancel", source="ops")
    assert operator.get(f"{TASKS}/{task}").json()["source"] == "other"
    assert operator.post(f"{TASKS}/{task}/cancel").status_code == 200
    assert db.execute("select source from scheduler.audit where action = 'cancel'").fetchall() == [
        ("ops",)
    ]


def test_a_token_for_a_kind_has_to_do_with_no_other(api: MakeApi, db: Connection) -> None:
    shop, narrow = api(), api(kinds=["any"])
    hidden, seen = shop.enqueue(), shop.enqueue(kind="any")
    db.execute(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
        " finished_at = scheduler.now()"
    )
    assert slug(narrow.post(TASKS, ONE)) == "kind-not-allowed"
    assert slug(narrow.post(f"{TASKS}/batch", {"kind": "work", "payloads": [1]})) == (
        "kind-not-allowed"
    )
    assert slug(narrow.get(f"{TASKS}/{hidden}")) == "not-found"
    assert [task["id"] for task in narrow.get(TASKS).json()["tasks"]] == [seen]
    letters = "/api/v1/dead-letters"
    assert [it["id"] for it in narrow.get(letters).json()["dead_letters"]] == [seen]
    assert narrow.get(letters, kind="work").json()["dead_letters"] == []
    assert narrow.get(f"{letters}/export", kind="work").text == ""
    assert [json.loads(line)["id"] for line in narrow.get(f"{letters}/export").iter_lines()] == [
        seen
    ]
    assert slug(narrow.post(f"{letters}/discard", {"kind": "work"})) == "kind-not-allowed"
    answer = narrow.post(f"{letters}/discard", {"ids": [hidden, seen]}).json()
    assert answer == {"ids": [seen], "left_alone": [hidden], "more": False}
    assert [kind["kind"] for kind in narrow.get("/api/v1/status").json()["kinds"]] == []


def test_refusals_are_logged_with_the_tokens_name_and_never_its_secret(
    api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shop = api("read")
    shop.post(TASKS, ONE)
    task = api(source="other").enqueue()
    shop.get(f"{TASKS}/{task}")
    stranger = Api(shop.client, "lpt_" + "B" * 43)
    stranger.get(TASKS)
    lines = [record.message for record in caplog.records if record.name == "scheduler.service"]
    assert [line.partition(" method")[0] for line in lines] == [
        "refused reason=missing-scope",
        "refused reason=not-visible",
        "refused reason=invalid-token",
    ]
    assert "token=token1 source=shop scope=enqueue" in lines[0]
    assert f"task={task}" in lines[1]
    for secret in (shop.secret, stranger.secret):
        assert secret not in caplog.text


Send = Callable[[Api], Response]


def raw(body: bytes, kind: str = "application/json", path: str = TASKS) -> Send:
    """POST these bytes."""

    def send(api: Api) -> Response:
        answer: Response = api.client.post(
            path, content=body, headers={**api.headers, "Content-Type": kind}
        )
        return answer

    return send


def new(**fields: object) -> Send:
    """POST a task with these fields changed."""
    return lambda api: api.post(TASKS, {**ONE, **fields})


def get(path: str) -> Send:
    """GET a path as it stands."""
    return lambda api: api.get(path)


HOSTILE: dict[str, tuple[Send, int, str]] = {
    "no JSON": (raw(b"{"), 400, "malformed-request"),
    "no UTF-8": (raw(b'{"kind": "\xff"}'), 400, "malformed-request"),
    "deep nesting": (raw(b"[" * 100_000), 400, "malformed-request"),
    "a number of a million digits": (
        raw(b'{"kind": "any", "payload": ' + b"1" * 1_000_000 + b"}"),
        400,
        "malformed-request",
    ),
    "no JSON type": (raw(b'{"kind": "work", "payload": 1}', "text/plain"), 422, "invalid-request"),
    "a form": (
        raw(b"kind=work", "application/x-www-form-urlencoded"),
        422,
        "invalid-request",
    ),
    "a body too long": (raw(b" " * 1_200_000), 413, "body-too-large"),
    "no body": (raw(b""), 422, "invalid-request"),
    "a list": (raw(b"[]"), 422, "invalid-request"),
    "a payload too deep": (
        raw(b'{"kind": "any", "payload": ' + b"[" * 300 + b"]" * 300 + b"}"),
        422,
        "invalid-payload",
    ),
    "infinity": (raw(b'{"kind": "any", "payload": 1e999}'), 422, "invalid-payload"),
    "not a number": (raw(b'{"kind": "any", "payload": NaN}'), 422, "invalid-payload"),
    "NUL in a payload": (new(kind="any", payload=["\0"]), 422, "invalid-payload"),
    "half a surrogate in a payload": (
        raw(rb'{"kind": "any", "payload": "\ud800"}'),
        422,
        "invalid-payload",
    ),
    "half a surrogate in a kind": (
        raw(rb'{"kind": "\ud800", "payload": 1}'),
        422,
        "invalid-request",
    ),
    "half a surrogate in a key": (
        raw(rb'{"kind": "any", "payload": 1, "unique": {"key": "\ud800"}}'),
        422,
        "invalid-request",
    ),
    "NUL in a key": (new(unique={"key": "a\0b"}), 422, "invalid-request"),
    "NUL in a kind": (new(kind="a\0b"), 422, "invalid-request"),
    "a secret in a payload": (new(kind="any", payload={"password": "x"}), 422, "invalid-payload"),
    "a payload its model refuses": (new(payload="one"), 422, "invalid-payload"),
    "a payload too large": (new(kind="any", payload="x" * 1_048_576), 422, "invalid-payload"),
    "an unknown kind": (new(kind="unheard.of"), 422, "unknown-kind"),
    "an unknown field": (new(runat="2030-01-01T00:00:00Z"), 422, "invalid-request"),
    "a time without an offset": (new(run_at="2030-01-01T00:00:00"), 422, "invalid-request"),
    "a time that is a number": (new(run_at=1), 422, "invalid-request"),
    "a time that is no time": (new(run_at="2030-13-01T00:00:00Z"), 422, "invalid-request"),
    "a time too far away": (new(run_at="9999-12-31T23:59:59-14:00"), 422, "invalid-time"),
    "a time before all": (new(run_at="0001-01-01T00:00:00+14:00"), 422, "invalid-time"),
    "two times": (new(run_at="2030-01-01T00:00:00Z", delay_seconds=1), 422, "invalid-request"),
    "a delay below zero": (new(delay_seconds=-1), 422, "invalid-request"),
    "a delay in words": (new(delay_seconds="1"), 422, "invalid-request"),
    "a delay without end": (
        raw(b'{"kind": "work", "payload": 1, "delay_seconds": Infinity}'),
        422,
        "invalid-request",
    ),
    "an id beyond bigint": (get(f"{TASKS}/{2**63}"), 422, "invalid-request"),
    "an id of thousands of digits": (get(f"{TASKS}/{'9' * 30_000}"), 404, "not-found"),
    "an id of zero": (get(f"{TASKS}/0"), 422, "invalid-request"),
    "an id in words": (get(f"{TASKS}/one"), 404, "not-found"),
    "an id with more behind it": (get(f"{TASKS}/1%20or%201=1"), 404, "not-found"),
    "an id with NUL": (get(f"{TASKS}/1%00"), 404, "not-found"),
    "a filter with NUL": (get(f"{TASKS}?kind=%00"), 422, "invalid-request"),
    "a source with NUL": (get(f"{TASKS}?source=a%00b"), 422, "invalid-request"),
    "an unknown status": (get(f"{TASKS}?status=lost"), 422, "invalid-request"),
    "a page too large": (get(f"{TASKS}?limit=101"), 422, "invalid-request"),
    "a cursor that is none": (get("/api/v1/dead-letters?after=x"), 422, "invalid-request"),
    "a schedule with NUL": (
        lambda api: api.post("/api/v1/schedules/a%00b/run"),
        422,
        "invalid-request",
    ),
    "a schedule's name too long": (
        lambda api: api.post(f"/api/v1/schedules/{'a' * 101}/pause"),
        422,
        "invalid-request",
    ),
    "a schedule's name with a slash": (
        lambda api: api.post("/api/v1/schedules/a%2fb/run"),
        404,
        "not-found",
    ),
    "a schedule that is none": (
        lambda api: api.post("/api/v1/schedules/none/resume"),
        404,
        "not-found",
    ),
    "a page of schedules after NUL": (
        get("/api/v1/schedules?after=%00"),
        422,
        "invalid-request",
    ),
    "a path above the root": (get("/static/../../etc/passwd"), 404, "not-found"),
    "a path above it, encoded": (get("/static/%2e%2e/app.py"), 404, "not-found"),
    "a path above it, encoded twice": (get("/static/%252e%252e/app.py"), 404, "not-found"),
    "a path with a backslash": (get("/static/..%5capp.py"), 404, "not-found"),
    "a path with NUL": (get("/static/index.html%00.js"), 404, "not-found"),
    "an absolute path": (get("/static//etc/passwd"), 404, "not-found"),
    "a directory": (get("/static/"), 404, "not-found"),
    "no such route": (get("/api/v1/nothing"), 404, "not-found"),
    "a path of another method": (get(f"{TASKS}/batch"), 405, "method-not-allowed"),
    "another method": (lambda api: api.get(f"{TASKS}/1/cancel"), 405, "method-not-allowed"),
    "ids and a kind": (
        lambda api: api.post("/api/v1/dead-letters/requeue", {"ids": [1], "kind": "work"}),
        422,
        "invalid-request",
    ),
    "neither ids nor a kind": (
        lambda api: api.post("/api/v1/dead-letters/discard", {}),
        422,
        "invalid-request",
    ),
    "too many ids": (
        lambda api: api.post("/api/v1/dead-letters/requeue", {"ids": [1] * 1001}),
        422,
        "invalid-request",
    ),
    "an id in a list beyond bigint": (
        lambda api: api.post("/api/v1/dead-letters/requeue", {"ids": [2**63]}),
        422,
        "invalid-request",
    ),
}


HONEST = "a schedule that is none"


def test_hostile_requests_are_told_what_is_wrong_and_do_nothing(
    api: MakeApi, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    everything = api()
    for name, (send, status, problem) in HOSTILE.items():
        answer = send(everything)
        assert (answer.status_code, slug(answer)) == (status, problem), (name, answer.text[:300])
        assert len(answer.text) < 2000, name
        # Each is a line in the log, but for what an honest client may be told, too.
        if problem not in ("invalid-payload", "invalid-time", "unknown-kind") and name != HONEST:
            assert caplog.messages, name
            assert caplog.messages[0].startswith(f"refused reason={problem} method="), name
            assert "\n" not in caplog.text.rstrip("\n"), name
        assert everything.secret not in caplog.text
        caplog.clear()
    assert statuses(db) == {}


def test_a_refusal_of_a_valid_token_names_it(
    api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api().get(f"{TASKS}?kind=%00")
    [line] = caplog.messages
    assert line.endswith("path=/api/v1/tasks client=testclient token=token1 source=shop")


def test_a_body_that_streams_in_without_a_length_is_cut_off_at_the_limit(api: MakeApi) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50:
            sent += 1
            yield b" " * 100_000

    shop = api()
    answer = shop.client.post(
        TASKS, content=endless(), headers={**shop.headers, "Content-Type": "application/json"}
    )
    assert (answer.status_code, slug(answer)) == (413, "body-too-large")


def test_another_method_is_told_all_that_the_path_takes(client: TestClient) -> None:
    for path, allowed in (
        (TASKS, "GET, POST"),
        (f"{TASKS}/batch", "POST"),
        (f"{TASKS}/1", "GET"),
        ("/health/live", "GET"),
        ("/", "GET"),
        ("/static/index.html", "GET"),
    ):
        answer = client.delete(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path


def test_what_the_models_refuse_is_not_echoed(api: MakeApi) -> None:
    shop = api()
    answer = shop.post(TASKS, {**ONE, "unique": {"key": ["hunter2"]}, "priority": "hunter2"})
    assert slug(answer) == "invalid-request"
    assert "hunter2" not in answer.text
    assert [error["at"] for error in answer.json()["errors"]] == [
        "body.priority",
        "body.unique.key",
    ]


def test_an_error_that_nobody_expected_is_a_problem_without_its_trace(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = api()

    def broken(*_: object) -> None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr("scheduler.tasks.get", broken)
    answer = shop.get(f"{TASKS}/1")
    assert (answer.status_code, slug(answer)) == (500, "internal-error")
    assert "hunter2" not in answer.text
    assert "RuntimeError: hunter2" in caplog.text


def test_a_token_over_its_rate_waits_and_another_does_not(http_dsn: str, db: Connection) -> None:
    one = tokens.create(db, "one", "shop", [Scope.READ])
    two = tokens.create(db, "two", "shop", [Scope.READ])
    app = create_app(REGISTRY, http_dsn, rate=0.5, connections=2)
    with TestClient(app) as client:
        answers = [Api(client, one).get(TASKS) for _ in range(2)]
        assert Api(client, two).get(TASKS).status_code == 200
        assert slug(answers[1]) == "rate-limited"
        assert (answers[1].status_code, answers[1].headers["retry-after"]) == (429, "2")
        assert answers[0].status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer nonsense", "Bearer lpt_" + "A" * 43])
def test_a_body_of_a_stranger_is_not_even_read(
    client: TestClient, authorization: str | None
) -> None:
    headers = {"Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    parsed = Mock(side_effect=AssertionError("the body was parsed"))
    for method, path, _, body in ROUTES:
        if body is None:
            continue
        with patch("json.loads", parsed):
            answer = client.request(method, path, content=b"{", headers=headers)
        assert answer.status_code == 401, path
        assert slug(answer) in ("missing-token", "invalid-token")
        # What still comes of it is not waited for.
        assert answer.headers["connection"] == "close"
    assert not parsed.called


def test_who_has_no_body_or_a_token_over_its_rate_keeps_the_connection(
    http_dsn: str, db: Connection, client: TestClient
) -> None:
    assert "connection" not in client.get(TASKS).headers
    one = tokens.create(db, "one", "shop", [Scope.ENQUEUE])
    with TestClient(create_app(REGISTRY, http_dsn, rate=0.5, connections=2)) as slow:
        answers = [Api(slow, one).post(TASKS, ONE) for _ in range(2)]
    assert slug(answers[1]) == "rate-limited"
    assert "connection" not in answers[1].headers
