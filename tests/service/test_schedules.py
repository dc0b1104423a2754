"""Schedules over HTTP: listed, paused, resumed, run now."""

from __future__ import annotations

import pytest
from psycopg import Connection

from scheduler import Registry, declare_schedules
from scheduler.access import restrict_kind
from tests.scheduler.working import statuses
from tests.service.conftest import SCHEDULED, MakeApi, slug

SCHEDULES = "/api/v1/schedules"


@pytest.fixture(autouse=True)
def declared(db: Connection) -> None:
    """Two schedules, declared by the database's owner."""
    declare_schedules(db, SCHEDULED)


def audited(db: Connection) -> list[tuple[str, str, str, str]]:
    """What was done to schedules over HTTP."""
    return db.execute(
        "select action, source, role, schedule from scheduler.audit"
        " where action in ('pause', 'resume', 'run-now') order by id"
    ).fetchall()


def test_schedules_are_listed_by_name_page_by_page(api: MakeApi) -> None:
    operator = api("read", "operate")
    first = operator.get(SCHEDULES, limit=1).json()
    assert [it["name"] for it in first["schedules"]] == ["daily"]
    second = operator.get(SCHEDULES, limit=1, after=first["next"]).json()
    assert second["next"] is None
    [hourly] = second["schedules"]
    next_at = hourly.pop("next_at")
    assert next_at.startswith("20")
    assert hourly == {
        "name": "hourly",
        "application": "scheduled",
        "source": "postgres",
        "kind": "work",
        "rule": "every 3600s",
        "timezone": "UTC",
        "missed": "once",
        "on_dead": "stop",
        "declared": True,
        "paused": False,
        "state": "active",
        "last_occurrence": None,
        "live_task": None,
        "dead_task": None,
    }


def test_a_schedule_is_paused_and_resumed_and_it_is_audited_once(
    api: MakeApi, db: Connection
) -> None:
    operator = api("operate", source="ops")
    for act, state in (("pause", "paused"), ("resume", "active")):
        for _ in range(2):
            answer = operator.post(f"{SCHEDULES}/hourly/{act}")
            assert (answer.status_code, answer.json()["state"]) == (200, state)
    assert audited(db) == [
        ("pause", "ops", "http_server", "hourly"),
        ("resume", "ops", "http_server", "hourly"),
    ]


def test_to_run_one_now_is_safe_to_repeat(api: MakeApi, db: Connection) -> None:
    operator = api("operate", "read", source="ops")
    first = operator.post(f"{SCHEDULES}/hourly/run")
    task = first.json()["id"]
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert operator.get(first.headers["location"]).json()["source"] == "postgres"
    second = operator.post(f"{SCHEDULES}/hourly/run")
    assert (second.status_code, second.json()) == (200, {"id": task, "created": False})
    assert audited(db) == [("run-now", "ops", "http_server", "hourly")]
    listed = operator.get(SCHEDULES).json()["schedules"]
    assert [it["live_task"] for it in listed] == [None, task]


def test_one_that_cannot_run_says_why(api: MakeApi, db: Connection) -> None:
    operator = api("operate")
    operator.post(f"{SCHEDULES}/hourly/run")
    db.execute(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
        " finished_at = scheduler.now()"
    )
    answer = operator.post(f"{SCHEDULES}/hourly/run")
    assert (answer.status_code, slug(answer)) == (409, "schedule-cannot-run")
    assert "stopped by the dead letter" in answer.json()["detail"]
    declare_schedules(db, Registry(application="scheduled"))
    assert slug(operator.post(f"{SCHEDULES}/daily/run")) == "schedule-cannot-run"
    assert statuses(db) == {"dead": 1}


def test_a_restricted_kind_does_not_run_for_a_source_that_may_not_enqueue_it(
    api: MakeApi, db: Connection
) -> None:
    restrict_kind(db, "work", ["postgres"])
    answer = api("operate", source="ops").post(f"{SCHEDULES}/hourly/run")
    assert (answer.status_code, slug(answer)) == (403, "kind-not-allowed")
    assert statuses(db) == {}
    restrict_kind(db, "work", ["ops"])  # which pauses the schedule, as it is not of ops
    answer = api("operate", source="ops").post(f"{SCHEDULES}/hourly/resume")
    assert (answer.status_code, slug(answer)) == (403, "kind-not-allowed")
    restrict_kind(db, "work", ["postgres"])
    assert api("operate", source="postgres").post(f"{SCHEDULES}/hourly/run").status_code == 201


def test_a_schedule_of_another_source_or_kind_does_not_exist(
    api: MakeApi, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    reader, owner = api("read"), api("read", source="postgres")
    assert reader.get(SCHEDULES).json() == {"schedules": [], "next": None}
    assert len(owner.get(SCHEDULES).json()["schedules"]) == 2
    narrow = api("read", "operate", kinds=["any"])
    assert [it["name"] for it in narrow.get(SCHEDULES).json()["schedules"]] == ["daily"]
    unknown = narrow.post(f"{SCHEDULES}/nothing/run")
    for act in ("pause", "resume", "run"):
        hidden = narrow.post(f"{SCHEDULES}/hourly/{act}")
        assert slug(hidden) == "not-found"
        assert hidden.json() == {**unknown.json(), "detail": "there is no schedule hourly"}
    assert audited(db) == []
    assert statuses(db) == {}
    assert caplog.text.count("schedule=hourly") == 3
