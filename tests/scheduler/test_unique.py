"""Unique keys: at most one live task under a key, whoever enqueues it and however often."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from threading import Thread

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import (
    Attempt,
    Enqueued,
    Kind,
    Registry,
    RetryPolicy,
    Unique,
    cancel,
    discard,
    enqueue_unique,
    requeue,
)
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail, release
from scheduler.lease import reclaim
from tests.scheduler.working import task
from tests.waiting import wait_for

REGISTRY = Registry()
KINDS = {"work": timedelta(seconds=60)}


@REGISTRY.kind("work", int, retry=RetryPolicy(max_attempts=1))
def work(attempt: Attempt, payload: int) -> None:
    """Only enqueued."""


@REGISTRY.kind("patient", int)
def patient(attempt: Attempt, payload: int) -> None:
    """A kind that is retried."""


@REGISTRY.kind("once", int, retry=RetryPolicy(max_attempts=1))
def once(attempt: Attempt, payload: int) -> None:
    """Another kind that is not."""


@REGISTRY.kind("other", int)
def other(attempt: Attempt, payload: int) -> None:
    """Another kind, with keys of its own."""


FINISHED = Unique("key")
STARTED = Unique("key", until="started")


def take(db: Connection, kind: str = "work") -> Attempt:
    """Claim the one due task."""
    [attempt] = claim(db, new_owner("w"), {kind: timedelta(seconds=60)}, 1, 0.0)
    return attempt


def test_the_second_enqueue_is_told_which_task_stands(db: Connection) -> None:
    first = enqueue_unique(db, work, 1, FINISHED)
    assert first.created
    assert enqueue_unique(db, work, 2, FINISHED) == Enqueued(first.task, False)
    assert task(db, first.task).payload == "1"


def test_keys_belong_to_their_kind_and_to_themselves(db: Connection) -> None:
    assert enqueue_unique(db, work, 1, FINISHED).created
    assert enqueue_unique(db, other, 1, FINISHED).created
    assert enqueue_unique(db, work, 1, Unique("another")).created


def test_a_key_until_finished_is_held_while_running_and_retrying(
    db: Connection, clock: Clock
) -> None:
    first = enqueue_unique(db, patient, 1, FINISHED)
    attempt = take(db, "patient")
    assert not enqueue_unique(db, patient, 2, FINISHED).created
    fail(db, [attempt.lease], ["again"])
    assert not enqueue_unique(db, patient, 2, FINISHED).created
    clock.advance(timedelta(hours=1))
    complete(db, [take(db, "patient").lease])
    second = enqueue_unique(db, patient, 3, FINISHED)
    assert second.created
    assert second.task != first.task


@pytest.mark.parametrize("end", ["completed", "cancelled", "dead"])
def test_a_key_until_finished_is_free_once_the_task_is_over(db: Connection, end: str) -> None:
    first = enqueue_unique(db, work, 1, FINISHED)
    if end == "cancelled":
        cancel(db, [first.task])
    else:
        attempt = take(db)
        if end == "completed":
            complete(db, [attempt.lease])
        else:
            fail(db, [attempt.lease], ["no"])
    assert task(db, first.task).status == end
    assert enqueue_unique(db, work, 2, FINISHED).created


def test_a_dead_task_whose_key_another_has_by_now_stays_dead(db: Connection) -> None:
    first = enqueue_unique(db, work, 1, FINISHED)
    fail(db, [take(db).lease], ["no"])
    second = enqueue_unique(db, work, 2, FINISHED)
    assert requeue(db, [first.task]) == []
    assert cancel(db, [second.task])
    assert requeue(db, [first.task]) == [first.task]
    assert not enqueue_unique(db, work, 3, FINISHED).created


def test_a_key_that_waits_to_start_keeps_a_dead_task_dead_and_no_other(db: Connection) -> None:
    first = enqueue_unique(db, work, 1, FINISHED)
    fail(db, [take(db).lease], ["no"])
    other = enqueue_unique(db, work, 2, Unique("another"))
    fail(db, [take(db).lease], ["no"])
    enqueue_unique(db, once, 3, FINISHED)  # of another kind, and so another key
    waiting = enqueue_unique(db, work, 3, Unique(FINISHED.key, until="started"))
    assert requeue(db, [first.task, other.task]) == [other.task]
    cancel(db, [waiting.task, other.task])
    assert requeue(db, [first.task]) == [first.task]
    fail(db, [take(db).lease], ["no"])
    # Nor does one that has started, though it waits again.
    again = enqueue_unique(db, work, 4, Unique(FINISHED.key, until="started"))
    assert release(db, [take(db).lease]) == {again.task}
    assert requeue(db, [first.task]) == [first.task]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("keys", [("key", "another"), ("another", "key")], ids=["1st", "2nd"])
def test_a_dead_task_waits_for_an_enqueue_of_its_key_and_the_others_do_not_fail(
    db: Connection, dsn: str, keys: tuple[str, str], commits: bool
) -> None:
    dead = []
    for key in keys:
        dead.append(enqueue_unique(db, work, 1, Unique(key)).task)
        fail(db, [take(db).lease], ["no"])
    back: list[int] = []

    def put_back() -> None:
        with psycopg.connect(dsn, autocommit=True, application_name="requeue") as operator:
            back.extend(requeue(operator, dead))

    thread = Thread(target=put_back)
    with psycopg.connect(dsn) as enqueuing:
        enqueue_unique(enqueuing, work, 2, FINISHED)
        thread.start()
        waits = (
            "select true from pg_stat_activity"
            " where application_name = 'requeue' and wait_event_type = 'Lock'"
        )
        wait_for(
            lambda: not thread.is_alive() or db.execute(waits.encode()).fetchone(),
            "the requeue to wait",
        )
        if not commits:
            enqueuing.rollback()
    thread.join()
    # Each once, though what a look has put back may be undone and put back by the next.
    assert back == ([dead[keys.index("another")]] if commits else dead)


def test_of_dead_tasks_with_one_key_the_newest_is_put_back(db: Connection) -> None:
    dead = []
    for number in range(3):
        dead.append(enqueue_unique(db, work, number, FINISHED).task)
        fail(db, [take(db).lease], ["no"])
    assert requeue(db, dead) == dead[-1:]
    assert requeue(db, dead) == []


def test_a_dead_task_waits_for_no_newer_one_but_a_dead_one_of_its_key_that_is_put_back(
    db: Connection,
) -> None:
    def dead(kind: Kind[int], unique: Unique) -> int:
        number = enqueue_unique(db, kind, 1, unique).task
        name = kind.name
        fail(db, [take(db, name).lease], ["no"])
        return number

    first = dead(work, FINISHED)
    of_another_key, of_another_kind = dead(work, Unique("another")), dead(once, FINISHED)
    of_another_end, not_named = dead(work, STARTED), dead(work, FINISHED)
    discarded = dead(work, FINISHED)
    discard(db, [discarded])
    rest = [of_another_key, of_another_kind, of_another_end]
    assert requeue(db, [first, *rest, discarded]) == [first, *rest]
    assert task(db, not_named).status == "dead"


@pytest.mark.parametrize("back", ["failed", "released", "reclaimed"])
def test_a_key_until_started_is_free_for_good_once_the_task_was_claimed(
    db: Connection, clock: Clock, back: str
) -> None:
    first = enqueue_unique(db, patient, 1, STARTED)
    assert not enqueue_unique(db, patient, 1, STARTED).created
    attempt = take(db, "patient")
    second = enqueue_unique(db, patient, 2, STARTED)
    assert second.created
    # The first comes back beside the second: that must not abort the statement that brings it.
    if back == "failed":
        assert fail(db, [attempt.lease], ["again"]) == {first.task: "pending"}
    elif back == "released":
        assert release(db, [attempt.lease]) == {first.task}
    else:
        clock.advance(timedelta(minutes=2))
        assert [taken.lease.task for taken in reclaim(db, 10)] == [first.task]
    assert task(db, first.task).status == "pending"
    assert enqueue_unique(db, patient, 3, STARTED) == Enqueued(second.task, False)


def test_a_key_of_a_period_is_held_through_it_whatever_becomes_of_the_task(
    db: Connection, clock: Clock
) -> None:
    hourly = Unique("key", until=timedelta(hours=1))
    first = enqueue_unique(db, work, 1, hourly)
    complete(db, [take(db).lease])
    clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    assert enqueue_unique(db, work, 2, hourly) == Enqueued(first.task, False)
    clock.advance(timedelta(microseconds=1))
    assert enqueue_unique(db, work, 2, hourly).created


def test_of_many_enqueues_at_once_exactly_one_creates_the_task(db: Connection, dsn: str) -> None:
    answers: list[Enqueued] = []

    def race() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            answers.extend(
                enqueue_unique(connection, work, n, Unique(f"key {n}")) for n in range(20)
            )

    threads = [Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 120
    assert set(Counter(answer.task for answer in answers).values()) == {6}
    assert sum(answer.created for answer in answers) == 20


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_enqueue_waits_for_a_rival_and_takes_over_if_it_rolls_back(
    db: Connection, dsn: str, ends: str
) -> None:
    answers: list[Enqueued] = []

    def second() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            answers.append(enqueue_unique(connection, work, 2, FINISHED))

    with psycopg.connect(dsn) as rival:
        first = enqueue_unique(rival, work, 1, FINISHED)
        thread = Thread(target=second)
        thread.start()
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock'"
        wait_for(lambda: db.execute(waiting.encode()).fetchone() is not None, "the second to wait")
        assert answers == []
        getattr(rival, ends)()
        thread.join()
    [answer] = answers
    assert answer.created == (ends == "rollback")
    assert (answer.task == first.task) == (ends == "commit")


def test_an_enqueue_that_is_rolled_back_frees_its_key(db: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        enqueue_unique(caller, work, 1, FINISHED)
        caller.rollback()
    assert enqueue_unique(db, work, 1, FINISHED).created


@pytest.mark.parametrize(
    ("key", "until"),
    [
        ("", "finished"),
        ("x" * 501, "finished"),
        ("a\0b", "finished"),
        ("a\ud800", "finished"),
        ("key", "never"),
        ("key", timedelta(0)),
        ("key", timedelta(days=100_000)),
    ],
    ids=["empty", "long", "NUL", "surrogate", "scope", "no period", "endless period"],
)
def test_a_key_that_cannot_be_meant_is_refused(key: str, until: object) -> None:
    with pytest.raises(ValueError, match="key"):
        Unique(key, until=until)  # type: ignore[arg-type] # wrong on purpose
