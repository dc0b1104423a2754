"""Throughput and waits, minute by minute: right, and read only where they are new."""

from __future__ import annotations

from datetime import timedelta

from psycopg import Connection

from chaos.explore.clock import START
from chaos.life.clock import Clock
from scheduler.service.database import Database
from scheduler.service.kept import Kept
from scheduler.service.throughput import last_hour
from tests.service.conftest import MakeApi, slug

PATH = "/api/v1/throughput"
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def ended(db: Connection, clock: Clock, outcome: str, waited: timedelta = 0 * SECOND) -> None:
    """A task whose attempt just ended like this, claimed a second ago."""
    claimed = clock.now - SECOND
    [(task,)] = db.execute(
        "insert into scheduler.tasks (kind, payload, next_run_at, max_attempts, backoff_base,"
        " backoff_factor, backoff_cap, backoff_jitter, status, finished_at, enqueued_at)"
        " values ('work', '1', %s, 3, 1, 1, 1, 0, 'completed', %s, %s) returning id",
        [claimed - waited, clock.now, claimed],
    ).fetchall()
    db.execute(
        "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
        " finished_at, outcome) values (%s, 1, 'w', 1, %s, %s, %s)",
        [task, claimed, clock.now, outcome],
    )


def test_each_minute_says_what_became_of_its_attempts_and_how_long_they_waited(
    api: MakeApi, db: Connection, clock: Clock
) -> None:
    meter = api("metrics")
    for waited in (1, 2, 30):
        ended(db, clock, "completed", waited * SECOND)
    for outcome in ("failed", "failed", "reclaimed", "released", "snoozed", "cancelled"):
        ended(db, clock, outcome, 900 * SECOND)
    clock.advance(MINUTE)
    ended(db, clock, "failed")
    document = meter.get(PATH).json()
    assert document["age_seconds"] >= 0
    minutes = document["minutes"]
    assert len(minutes) == 60
    *empty, first, second = minutes
    assert first == {
        "at": START.isoformat().replace("+00:00", "Z"),
        "completed": 3,
        "failed": 2,
        "reclaimed": 1,
        "other": 3,
        "wait_seconds": 2.0,
        "longest_wait_seconds": 30.0,
    }
    assert (second["failed"], second["wait_seconds"]) == (1, None)
    assert all(it["completed"] == it["failed"] == it["other"] == 0 for it in empty)


def test_a_wait_is_of_the_minute_in_which_its_attempt_ended(
    api: MakeApi, db: Connection, clock: Clock
) -> None:
    ended(db, clock, "completed", 5 * SECOND)
    clock.advance(MINUTE)
    ended(db, clock, "completed", 60 * SECOND)  # to the microsecond when the former is over
    clock.advance(MINUTE)
    ended(db, clock, "completed", 9 * SECOND)
    *_, first, second, third = api("metrics").get(PATH).json()["minutes"]
    waits = [(it["completed"], it["wait_seconds"]) for it in (first, second, third)]
    assert waits == [(1, 5.0), (1, 60.0), (1, 9.0)]


def test_minutes_that_are_over_are_not_read_again(
    http_dsn: str, db: Connection, clock: Clock
) -> None:
    now = 0.0
    database = Database(http_dsn, 1)
    database.open()
    try:
        hour = Kept(database, last_hour, lambda: now)
        ended(db, clock, "completed")
        assert hour.get().answer[-1].completed == 1
        ended(db, clock, "completed")
        now = 4.9
        assert hour.get().answer[-1].completed == 1  # of a few seconds ago
        now = 5.1
        assert hour.get().answer[-1].completed == 2
        for _ in range(4):
            clock.advance(MINUTE)
            now += 6.0
            hour.get()
        db.execute("delete from scheduler.run_log")
        ended(db, clock, "failed")
        now += 6.0
        minutes = hour.get().answer
        assert [it.at for it in minutes] == [START + n * MINUTE for n in range(-55, 5)]
        assert (minutes[-5].completed, minutes[-1].failed) == (2, 1)
        clock.advance(timedelta(hours=2))
        now += 6.0
        minutes = hour.get().answer
        assert (len(minutes), minutes[-1].at, sum(it.failed for it in minutes)) == (
            60,
            clock.now,
            0,
        )
        clock.advance(-timedelta(hours=3))  # the database's clock was set right
        now += 6.0
        assert hour.get().answer[-1].at == clock.now
    finally:
        database.close()


def test_a_token_for_some_kinds_is_not_told_of_all(api: MakeApi) -> None:
    answer = api("metrics", kinds=["work"]).get(PATH)
    assert (answer.status_code, slug(answer)) == (403, "kind-not-allowed")


def test_an_hour_is_found_by_its_index_however_much_the_log_has(db: Connection) -> None:
    db.execute("set enable_seqscan = off")
    plan = db.execute(
        "explain select count(*) from scheduler.run_log"
        " where finished_at >= scheduler.now() - interval '59 minutes'"
    ).fetchall()
    db.execute("set enable_seqscan = on")
    assert any("finished_at" in line and "Index" in line for (line,) in plan), plan
