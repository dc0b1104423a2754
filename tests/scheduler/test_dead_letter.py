"""Dead letters: listed page by page, requeued with all attempts, or given up."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import RetryPolicy, dead_letter, dead_letters, discard, requeue
from scheduler.finish import fail
from tests.scheduler.working import RETRY, kind, outcomes, put, row, statuses, take, take_one, task


def die(db: Connection, clock: Clock, count: int = 1, name: str = "work") -> list[int]:
    """Tasks that failed on their only attempt, in this order."""
    ids = put(db, count, kind(name))
    db.execute(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, lease_token = 3,"
        " last_error = 'no ' || id, finished_at = scheduler.now() where id = any(%s)",
        [ids],
    )
    return ids


def test_a_dead_letter_has_payload_and_last_error(db: Connection, clock: Clock) -> None:
    (number,) = put(db)
    died = clock.now
    for _ in range(RETRY.max_attempts):
        died = clock.now
        fail(db, [take_one(db).lease], ["the reason"])
        clock.advance(timedelta(hours=1))
    (letter,) = dead_letters(db)
    assert (letter.id, letter.kind, letter.payload) == (number, "work", "0")
    assert (letter.attempts, letter.last_error, letter.finished_at) == (3, "the reason", died)


def test_only_dead_tasks_are_dead_letters(db: Connection, clock: Clock) -> None:
    put(db, 2)
    take(db, 1)
    assert list(dead_letters(db)) == []


@pytest.mark.parametrize("count", [0, 2, 3, 7, 9])
def test_dead_letters_are_read_page_by_page(
    db: Connection, clock: Clock, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a page ends between tasks that died in the same microsecond."""
    monkeypatch.setattr("scheduler.dead_letter.PAGE", 3)
    ids: list[int] = []
    while len(ids) < count:
        ids += die(db, clock, min(5, count - len(ids)))
        clock.advance(timedelta(microseconds=1))
    assert [letter.id for letter in dead_letters(db)] == ids


def test_dead_letters_can_be_of_one_kind(db: Connection, clock: Clock) -> None:
    die(db, clock, 2, "mail")
    ids = die(db, clock, 2, "report")
    assert [letter.id for letter in dead_letters(db, "report")] == ids
    assert list(dead_letters(db, "unheard of")) == []


def test_ids_summaries_and_pages_are_of_dead_tasks_alone_in_the_order_of_their_deaths(
    db: Connection, clock: Clock
) -> None:
    second, third = die(db, clock, 2)
    [first] = die(db, clock, name="mail")
    db.execute(
        "update scheduler.tasks set finished_at = finished_at - interval '1 s' where id = %s",
        [first],
    )
    put(db, 2)
    # The index has them in this order already, whoever asks for which.
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    assert dead_letter.ids(db, None) == [first, second, third]
    assert dead_letter.ids(db, "work") == [second, third]
    assert [it.id for it in dead_letter.summaries(db, None, 2)] == [first, second]
    assert [it.id for it in dead_letter.summaries(db, "work", 9)] == [second, third]
    page = dead_letter.page(db, None, None, 2)
    assert [it.id for it in page] == [first, second]
    assert [it.id for it in dead_letter.page(db, ["work"], page[1], 9)] == [third]


def test_a_requeued_task_has_all_attempts_again_and_keeps_its_token(
    db: Connection, clock: Clock
) -> None:
    (number,) = die(db, clock)
    clock.advance(timedelta(hours=1))
    assert requeue(db, [number]) == [number]
    found = task(db, number)
    assert (found.status, found.attempts, found.lease_token) == ("pending", 0, 3)
    assert (found.next_run_at, found.finished_at) == (clock.now, None)
    assert found.last_error == f"no {number}"
    attempt = take_one(db)
    assert (attempt.number, attempt.token) == (1, 4)


def test_a_discarded_task_keeps_payload_and_error_and_never_runs(
    db: Connection, clock: Clock
) -> None:
    (number,) = die(db, clock)
    assert discard(db, [number]) == [number]
    found = task(db, number)
    assert (found.status, found.payload) == ("discarded", "0")
    assert found.last_error == f"no {number}"
    assert take(db) == []
    assert list(dead_letters(db)) == []
    assert outcomes(db, number) == []


def test_only_the_named_dead_letters_are_discarded(db: Connection) -> None:
    put(db, 2, kind(retry=RetryPolicy(1)))
    for attempt in take(db):
        fail(db, [attempt.lease], ["no"])
    [first, second] = [letter.id for letter in dead_letters(db)]
    assert discard(db, [first]) == [first]
    assert task(db, second).status == "dead"


@pytest.mark.parametrize("act", [requeue, discard])
def test_only_dead_tasks_are_touched(db: Connection, clock: Clock, act: object) -> None:
    operation = requeue if act is requeue else discard
    (dead,) = die(db, clock)
    pending, running = put(db, 2)
    db.execute("update scheduler.tasks set next_run_at = next_run_at + interval '1 day'")
    db.execute("update scheduler.tasks set next_run_at = scheduler.now() where id = %s", [running])
    take_one(db)
    before = [row(db, number) for number in (pending, running)]
    assert operation(db, [pending, running, dead, 999_999]) == [dead]
    assert [row(db, number) for number in (pending, running)] == before
    assert operation(db, [dead]) == []
    assert sum(statuses(db).values()) == 3
