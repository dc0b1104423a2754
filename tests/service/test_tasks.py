"""Tasks over HTTP: enqueued, looked at, listed page by page, cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import Postgres
from chaos.testing import database
from scheduler.dispatch import claim, new_owner
from scheduler.finish import fail
from scheduler.service.listing import task_page
from scheduler.service.models import LARGEST_ID
from scheduler.statements import statement
from scheduler.tasks import runs
from tests.conftest import TEMPLATE
from tests.scheduler.working import LEASE, nodes, row, statuses
from tests.service.conftest import MakeApi, slug


def test_a_task_is_enqueued_for_the_tokens_source_and_can_be_looked_at(
    api: MakeApi, db: Connection
) -> None:
    shop = api()
    answer = shop.post(
        "/api/v1/tasks", {"kind": "any", "payload": {"a": [1.5, "ü"]}, "priority": "high"}
    )
    task = answer.json()["id"]
    assert answer.status_code == 201
    assert answer.json() == {"id": task, "created": True}
    assert answer.headers["location"] == f"/api/v1/tasks/{task}"
    found = shop.get(answer.headers["location"]).json()
    assert (found["id"], found["kind"], found["queue"]) == (task, "any", "other")
    assert (found["source"], found["priority"]) == ("shop", 2)
    assert (found["status"], found["payload"]) == ("pending", {"a": [1.5, "ü"]})
    assert db.execute("select action, source, role, tasks from scheduler.audit").fetchall()[-1] == (
        "enqueue",
        "shop",
        "http_server",
        1,
    )


def test_the_numbers_of_a_payload_come_back_as_they_were_sent(api: MakeApi) -> None:
    shop = api()
    number = 123456789012345678901234567890
    task = shop.enqueue({"n": number}, "any")
    assert f'"n": {number}' in shop.get(f"/api/v1/tasks/{task}").text


def test_a_task_can_be_due_later(api: MakeApi, db: Connection) -> None:
    shop = api()
    at = datetime(2040, 1, 31, 9, tzinfo=UTC)
    task = shop.enqueue(run_at="2040-01-31T10:00:00+01:00")
    assert row(db, task)["next_run_at"] == at
    later = row(db, shop.enqueue(delay_seconds=3600))
    assert later["next_run_at"] - later["enqueued_at"] == timedelta(hours=1)


def test_a_post_with_a_unique_key_can_be_repeated(api: MakeApi, db: Connection) -> None:
    shop = api()
    body = {"kind": "work", "payload": 1, "unique": {"key": "order 7"}}
    first, second = shop.post("/api/v1/tasks", body), shop.post("/api/v1/tasks", body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": first.json()["id"], "created": False}
    assert second.headers["location"] == first.headers["location"]
    assert statuses(db) == {"pending": 1}
    until = {"key": "order 7", "until": 3600}
    assert shop.post("/api/v1/tasks", {**body, "unique": until}).status_code == 201


def test_a_key_that_another_sources_task_has_is_said_without_that_task(api: MakeApi) -> None:
    body = {"kind": "work", "payload": 1, "unique": {"key": "order 7"}}
    task = api(source="other").post("/api/v1/tasks", body).json()["id"]
    answer = api("enqueue").post("/api/v1/tasks", body)
    assert (answer.status_code, slug(answer)) == (409, "key-taken")
    assert str(task) not in answer.json()["detail"]


def test_a_batch_is_enqueued_whole_and_in_order(api: MakeApi, db: Connection) -> None:
    answer = api().post("/api/v1/tasks/batch", {"kind": "work", "payloads": [3, 1, 2]})
    assert answer.status_code == 201
    rows = db.execute("select id, payload from scheduler.tasks order by id").fetchall()
    assert [task for task, _ in rows] == answer.json()["ids"]
    assert [payload for _, payload in rows] == [3, 1, 2]


def test_a_batch_with_one_bad_payload_enqueues_nothing_and_says_which(
    api: MakeApi, db: Connection
) -> None:
    answer = api().post("/api/v1/tasks/batch", {"kind": "work", "payloads": [1, "x", 2]})
    assert (answer.status_code, slug(answer)) == (422, "invalid-payload")
    assert answer.json()["detail"].startswith("payloads.1: ")
    assert statuses(db) == {}


def test_a_batch_has_at_most_a_thousand_payloads(api: MakeApi) -> None:
    shop = api()
    many = {"kind": "work", "payloads": [1] * 1001}
    assert slug(shop.post("/api/v1/tasks/batch", many)) == "invalid-request"
    assert shop.post("/api/v1/tasks/batch", {**many, "payloads": [1] * 1000}).status_code == 201


def test_a_restricted_kind_is_open_to_its_source_only(api: MakeApi, db: Connection) -> None:
    db.execute("insert into scheduler.kind_sources values ('work', 'billing')")
    api(source="billing").enqueue()
    answer = api().post("/api/v1/tasks", {"kind": "work", "payload": 1})
    assert (answer.status_code, slug(answer)) == (403, "kind-not-allowed")


def test_a_source_at_its_cap_is_refused_until_there_is_room(api: MakeApi, db: Connection) -> None:
    db.execute("insert into scheduler.sources (name, max_outstanding) values ('shop', 1)")
    shop = api()
    task = shop.enqueue()
    answer = shop.post("/api/v1/tasks", {"kind": "work", "payload": 1})
    assert (answer.status_code, slug(answer)) == (429, "cap-reached")
    api(source="other").enqueue()
    assert shop.post(f"/api/v1/tasks/{task}/cancel").status_code == 200
    shop.enqueue()


def test_a_waiting_task_is_cancelled_once_and_audited_for_the_tokens_source(
    api: MakeApi, db: Connection
) -> None:
    shop = api()
    task = shop.enqueue()
    answer = shop.post(f"/api/v1/tasks/{task}/cancel")
    assert (answer.status_code, answer.json()) == (200, {"id": task, "was": "pending"})
    again = shop.post(f"/api/v1/tasks/{task}/cancel")
    assert (again.status_code, slug(again)) == (409, "task-is-over")
    assert db.execute(
        "select source, role, first_task from scheduler.audit where action = 'cancel'"
    ).fetchall() == [("shop", "http_server", task)]


def test_the_timeline_has_every_attempt_page_by_page(api: MakeApi, db: Connection) -> None:
    shop = api()
    task = shop.enqueue(kind="any")
    for turn in range(3):
        db.execute("update scheduler.tasks set next_run_at = scheduler.now()")
        [attempt] = claim(db, new_owner("w"), {"any": LEASE}, 1, 0.0)
        fail(db, [attempt.lease], [f"no {turn}"])
    path = f"/api/v1/tasks/{task}/runs"
    whole = shop.get(path).json()
    assert [(run["attempt"], run["outcome"], run["error"]) for run in whole["runs"]] == [
        (1, "failed", "no 0"),
        (2, "failed", "no 1"),
        (3, "failed", "no 2"),
    ]
    assert whole["next"] is None
    first = shop.get(path, limit=2).json()
    rest = shop.get(path, limit=2, after=first["next"]).json()
    assert (first["runs"] + rest["runs"], rest["next"]) == (whole["runs"], None)


def test_the_attempts_of_a_task_are_its_own_in_the_order_of_their_claims(
    api: MakeApi, db: Connection
) -> None:
    shop = api()
    task, other = shop.enqueue(), shop.enqueue()
    db.execute(
        "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
        " finished_at, outcome) select task, token, 'w', 1, now(), now(), 'completed'"
        " from (values (%s, 3), (%s, 1), (%s, 2), (%s, 1)) as run (task, token)",
        [task, task, other, other],
    )
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    assert [run.lease_token for run in runs(db, task)] == [1, 3]
    assert [run.lease_token for run in runs(db, task, limit=1)] == [1]
    assert [run.lease_token for run in runs(db, task, after=1)] == [3]


def test_a_list_has_what_its_filters_ask_for_newest_first(api: MakeApi) -> None:
    shop, other = api(), api(source="other")
    one, two = shop.enqueue(), shop.enqueue(kind="any")
    three, four = shop.enqueue(), other.enqueue()
    shop.post(f"/api/v1/tasks/{three}/cancel")

    def listed(**filters: object) -> list[int]:
        page = shop.get("/api/v1/tasks", **filters).json()
        assert page["next"] is None
        return [task["id"] for task in page["tasks"]]

    assert listed() == [four, three, two, one]
    assert listed(kind="work") == [four, three, one]
    assert listed(status="cancelled") == [three]
    assert listed(queue="other") == [two]
    assert listed(source="other") == [four]
    assert listed(kind="work", status="pending", source="shop") == [one]
    assert listed(kind="unheard.of") == []


def test_a_page_is_of_the_newest_whether_they_run_or_not(api: MakeApi, db: Connection) -> None:
    shop = api()
    ids = [shop.enqueue() for _ in range(8)]
    other = shop.enqueue(kind="any")
    db.execute(
        "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,"
        " lease_owner = 'w', lease_expires_at = now(), claimed_at = now() where id = any(%s)",
        [ids[1::2]],
    )
    # The indexes have them in this order already, whoever asks for which.
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")

    def page(
        status: str | None = None,
        kinds: list[str] | None = None,
        before: int | None = None,
        limit: int = 9,
    ) -> list[int]:
        values: dict[str, Any] = {"kind": None, "queue": None, "source": None}
        found = task_page(db, status=status, kinds=kinds, before=before, limit=limit, **values)
        return [task.id for task in found]

    assert page() == [other, *ids[::-1]]
    assert page(limit=3) == [other, *ids[:5:-1]]
    assert page(before=ids[4]) == ids[3::-1]
    assert page(status="running") == ids[7::-2]
    assert page(status="running", limit=2) == ids[7:3:-2]
    assert page(status="pending", limit=2) == [other, ids[6]]
    assert page(kinds=["work"], limit=2) == ids[:5:-1]


def test_pages_have_no_gap_and_no_repeat_while_tasks_are_added_and_end(api: MakeApi) -> None:
    shop = api()
    wanted = [shop.enqueue() for _ in range(7)]
    seen: list[int] = []
    before: dict[str, int] = {}
    while True:
        page = shop.get("/api/v1/tasks", limit=2, **before).json()
        seen += [task["id"] for task in page["tasks"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
        shop.enqueue()
        shop.post(f"/api/v1/tasks/{seen[-1]}/cancel")
    assert seen == wanted[::-1]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_full_last_page_has_no_next(api: MakeApi, limit: int) -> None:
    shop = api()
    shop.post("/api/v1/tasks/batch", {"kind": "work", "payloads": [1] * 3})
    page = shop.get("/api/v1/tasks", limit=limit).json()
    assert len(page["tasks"]) == limit
    assert (page["next"] is None) == (limit == 3)


@pytest.fixture(scope="module")
def crowd(migrated: Postgres) -> Iterator[Connection]:
    """A database of its own with a hundred thousand tasks of one source, which are finished but for
    a few hundred, and forty old ones of another, two of which are waiting or running."""
    with (
        database(migrated, TEMPLATE) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute(
            "insert into scheduler.tasks (kind, payload, status, next_run_at, attempts,"
            " max_attempts, lease_token, lease_owner, lease_expires_at, claimed_at, backoff_base,"
            " backoff_factor, backoff_cap, backoff_jitter, source, enqueued_at, finished_at)"
            " select 'work', '1', status, now(), 1, 3, 1, owner, claimed, claimed, 1, 1, 1, 0,"
            " case when n <= 40 then 'few' else 'many' end, now(),"
            " case when status = 'completed' then now() end"
            " from generate_series(1, 100000) as n,"
            " lateral (select case n % 300 when 1 then 'running' when 2 then 'pending'"
            "  else 'completed' end) as step (status),"
            " lateral (select case when status = 'running' then 'w' end,"
            "  case when status = 'running' then now() end) as lease (owner, claimed)"
        )
        yield connection


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_tasks_of_a_source_are_found_by_its_index_however_many_others_have(
    crowd: Connection, analyzed: bool
) -> None:
    if analyzed:
        crowd.execute("analyze scheduler.tasks")
    for source, status, count in (
        ("few", None, 40),
        ("few", "completed", 38),
        ("few", "running", 1),
        ("none", None, 0),
        ("none", "completed", 0),
        ("many", None, 50),
    ):
        wanted: dict[str, Any] = {
            **dict.fromkeys(("kind", "queue", "kinds")),
            "source": source,
            "status": status,
            "limit": 50,
        }
        listed = [task.id for task in task_page(crowd, before=None, **wanted)]
        assert listed == sorted(listed, reverse=True)
        assert len(listed) == count
        [[[explained]]] = crowd.execute(
            b"explain (analyze, format json) " + statement("list_tasks"),
            {"before": LARGEST_ID, **wanted},
            prepare=False,
        ).fetchall()
        read = {
            node.get("Index Name", node["Node Type"]): (
                (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            )
            for node in nodes(explained["Plan"])
            if "Relation Name" in node or "Index Name" in node
        }
        # The running ones of all sources are few, and in an index of their own.
        others = read.pop("tasks_leased", 0) + read.pop("Bitmap Heap Scan", 0)
        assert sum(read.values()) <= 51, (wanted, read)
        assert others <= 2 * 334, (wanted, read)
