"""Dead letters over HTTP: listed, exported, requeued, discarded."""

from __future__ import annotations

import json

import pytest
from psycopg import Connection

from scheduler.service import models, routes_dead_letters
from scheduler.service.listing import cursor_of, letter_page, of_kinds
from scheduler.service.models import TaskSummary
from tests.scheduler.working import statuses
from tests.service.conftest import Api, MakeApi

LETTERS = "/api/v1/dead-letters"


def die(db: Connection, shop: Api, count: int, kind: str = "work") -> list[int]:
    """Tasks that died one after the other, two at a time in the same moment."""
    answer = shop.post("/api/v1/tasks/batch", {"kind": kind, "payloads": list(range(count))})
    ids: list[int] = answer.json()["ids"]
    db.execute(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts,"
        " last_error = 'no ' || id,"
        " finished_at = '2026-01-01 12:00:00.123456+00'::timestamptz"
        "   + (id - %s) / 2 * interval '1 microsecond'"
        " where id = any(%s)",
        [ids[0], ids],
    )
    return ids


def test_dead_letters_are_listed_oldest_first_page_by_page(api: MakeApi, db: Connection) -> None:
    shop = api()
    ids = die(db, shop, 5)
    seen: list[int] = []
    after: dict[str, str] = {}
    while True:
        page = shop.get(LETTERS, limit=2, **after).json()
        seen += [letter["id"] for letter in page["dead_letters"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == ids
    assert page["dead_letters"][0]["last_error"] == f"no {ids[4]}"


def test_dead_letters_can_be_of_one_kind(api: MakeApi, db: Connection) -> None:
    shop = api()
    die(db, shop, 2)
    ids = die(db, shop, 2, "any")
    listed = shop.get(LETTERS, kind="any").json()["dead_letters"]
    assert [letter["id"] for letter in listed] == ids


def test_a_page_is_of_dead_tasks_alone_in_the_order_of_their_deaths(
    api: MakeApi, db: Connection
) -> None:
    shop = api()
    second, third = die(db, shop, 2)
    [first] = die(db, shop, 1, "any")
    for task, error in ((first, "early"), (second, "late")):  # each is moved to the table's end
        db.execute("update scheduler.tasks set last_error = %s where id = %s", [error, task])
    db.execute("update scheduler.tasks set finished_at = '2026-01-01' where id = %s", [first])
    waiting = shop.enqueue()
    # The index has them in this order already, whoever asks for which.
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")

    def page(
        kind: str | None = None,
        kinds: list[str] | None = None,
        after: TaskSummary | None = None,
        limit: int = 9,
    ) -> list[TaskSummary]:
        cursor = None if after is None else cursor_of(after)
        return letter_page(db, kind=kind, kinds=kinds, after=cursor, limit=limit)

    def ids(letters: list[TaskSummary]) -> list[int]:
        return [letter.id for letter in letters]

    assert ids(page()) == [first, second, third]
    assert ids(page(limit=2)) == [first, second]
    assert ids(page(kind="work")) == ids(page(kinds=["work"])) == [second, third]
    assert ids(page(after=page()[1])) == [third]
    assert of_kinds(db, [third, second, 2**40], None) == [second, third]
    assert of_kinds(db, [third, waiting, first], ["work"]) == [third, waiting]


@pytest.mark.parametrize("count", [0, 2, 5])
def test_the_export_has_every_letter_with_its_payload_as_a_line(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(routes_dead_letters, "EXPORT_PAGE", 2)
    shop = api()
    ids = die(db, shop, count) if count else []
    answer = shop.get(f"{LETTERS}/export")
    assert answer.headers["content-type"] == "application/jsonl"
    letters = [json.loads(line) for line in answer.text.splitlines()]
    assert [(letter["id"], letter["payload"]) for letter in letters] == [
        (task, number) for number, task in enumerate(ids)
    ]


def test_letters_are_requeued_by_id_and_others_left_alone(api: MakeApi, db: Connection) -> None:
    shop, operator = api(), api("operate", source="ops")
    dead, waiting = die(db, shop, 2), shop.enqueue()
    answer = operator.post(f"{LETTERS}/requeue", {"ids": [float(dead[0]), waiting, 2**40]})
    assert answer.json() == {"ids": [dead[0]], "left_alone": [waiting, 2**40], "more": False}
    assert statuses(db) == {"pending": 2, "dead": 1}
    assert db.execute(
        "select source, role, tasks from scheduler.audit where action = 'requeue'"
    ).fetchall() == [("ops", "http_server", 1)]


def test_letters_of_a_kind_are_discarded_so_many_at_a_time(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "LARGEST_BATCH", 2)
    shop = api()
    ids, others = die(db, shop, 3), die(db, shop, 1, "any")
    first = shop.post(f"{LETTERS}/discard", {"kind": "work"}).json()
    assert first == {"ids": ids[:2], "left_alone": [], "more": True}
    second = shop.post(f"{LETTERS}/discard", {"kind": "work"}).json()
    assert second == {"ids": ids[2:], "left_alone": [], "more": False}
    assert [it["id"] for it in shop.get(LETTERS).json()["dead_letters"]] == others
    assert db.execute(
        "select distinct source from scheduler.audit where action = 'discard'"
    ).fetchall() == [("shop",)]


def test_a_letter_whose_key_another_task_has_stays_and_ends_no_loop(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "LARGEST_BATCH", 1)
    shop = api()
    ids = die(db, shop, 2)
    db.execute(
        "update scheduler.tasks set unique_key = 'k', unique_until = 'finished' where id = any(%s)",
        [ids],
    )
    shop.enqueue(unique={"key": "k"})
    answer = shop.post(f"{LETTERS}/requeue", {"kind": "work"})
    assert answer.json() == {"ids": [], "left_alone": [], "more": False}
    by_id = shop.post(f"{LETTERS}/requeue", {"ids": ids[:1]})
    assert by_id.json() == {"ids": [], "left_alone": ids[:1], "more": False}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_letters_that_cannot_be_requeued_keep_nobody_from_those_behind_them(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(models, "LARGEST_BATCH", batch)
    shop = api()
    ids = die(db, shop, 7)
    db.execute(
        "update scheduler.tasks set unique_key = 'k', unique_until = 'finished' where id = any(%s)",
        [ids[:3] + ids[4:5]],
    )
    shop.enqueue(unique={"key": "k"})
    requeued: list[int] = []
    for _ in range(4):
        answer = shop.post(f"{LETTERS}/requeue", {"kind": "work"}).json()
        requeued += answer["ids"]
        if not answer["more"]:
            break
        assert len(answer["ids"]) >= batch
    assert requeued == [ids[3], *ids[5:]]
    assert not answer["more"]
