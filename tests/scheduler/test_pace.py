"""How much a worker claims in advance by itself: what it runs in a moment, and for no longer."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from threading import Event

import pytest
from psycopg import Connection

from scheduler import Attempt, Registry, RetryPolicy, Worker, enqueue_many
from scheduler.lease import Lease
from scheduler.pace import AHEAD, LATE, MOST, Fixed, Pace
from tests.scheduler.working import LEASE, ignore, outcomes, over, running, statuses, worker
from tests.waiting import wait_for


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(pace: Pace, hand: Hand, *, ended: int, every: float, times: int, ran: float) -> int:
    """So many attempts of one length end in each step of time; returns what may wait in the end."""
    ahead = 0
    for _ in range(times):
        hand.now += every
        for _ in range(ended):
            pace.ended(ran)
        ahead = pace.ahead()
    return ahead


def test_nothing_is_claimed_in_advance_before_something_has_ended() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    assert pace.ahead() == 0
    hand.now += 5
    assert pace.ahead() == 0


@pytest.mark.parametrize(("ended", "every"), [(1, 0.001), (10, 0.01), (100, 0.1)])
def test_what_waits_is_what_ends_in_a_moment_however_often_one_looks(
    ended: int, every: float
) -> None:
    hand = Hand()
    ahead = run(Pace(10, hand), hand, ended=ended, every=every, times=1000, ran=0.001)
    assert ahead == pytest.approx(1000 * AHEAD, abs=1)


def test_no_more_than_so_many_wait_however_quick_they_are() -> None:
    hand = Hand()
    assert run(Pace(10, hand), hand, ended=1000, every=0.001, times=1000, ran=0.0) == MOST


@pytest.mark.parametrize(
    ("slots", "ran", "ahead"), [(10, 0.01, 50), (10, 0.4, 1), (10, 0.6, 0), (1, 0.001, 50)]
)
def test_no_more_wait_than_all_slots_finish_in_a_moment(slots: int, ran: float, ahead: int) -> None:
    hand = Hand()
    found = run(Pace(slots, hand), hand, ended=slots, every=ran, times=200, ran=ran)
    assert found == pytest.approx(ahead, abs=1 if ahead > 1 else 0)


def test_long_tasks_that_end_all_at_once_are_not_taken_for_quick_ones() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    hand.now += 60
    pace.ahead()
    for _ in range(10):
        hand.now += 0.0001
        pace.ended(60.0)
        assert pace.ahead() == 0


def test_after_a_standstill_nothing_is_claimed_in_advance() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    assert run(pace, hand, ended=100, every=0.01, times=100, ran=0.001) > 0
    assert run(pace, hand, ended=0, every=10 * AHEAD, times=1, ran=0.0) == 0


def test_two_looks_at_one_moment_do_not_count_an_end_twice() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    once = run(pace, hand, ended=10, every=0.001, times=10, ran=0.001)
    assert [pace.ahead(), pace.ahead()] == [once, once]


def test_what_waits_is_late_when_its_first_has_waited_too_long() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    assert pace.late_in(0) is None
    pace.submitted(3)
    hand.now += 0.1
    pace.submitted(2)
    assert pace.late_in(5) == pytest.approx(LATE - 0.1)
    assert pace.late_in(3) == pytest.approx(LATE - 0.1)  # one of the first three still waits
    assert pace.late_in(2) == pytest.approx(LATE)
    hand.now += LATE
    assert pace.late_in(1) == pytest.approx(0)
    assert pace.late_in(0) is None
    pace.submitted(0)
    assert pace.late_in(0) is None


def attempt(number: int, at_most: int) -> Attempt:
    """An attempt of no database."""
    return Attempt(
        Lease(number, 1, "w/1"), "work", "1", number, at_most, datetime.now(UTC), LEASE, inf
    )


def test_a_last_attempt_does_not_wait_for_a_slot() -> None:
    claimed = [attempt(1, 1), attempt(2, 2), attempt(2, 3), attempt(3, 3), attempt(1, 3)]
    pace = Pace(10, Hand())
    assert pace.kept(claimed, 5) == claimed
    assert pace.kept(claimed, 1) == [claimed[0], claimed[2], claimed[4]]
    assert pace.kept(claimed, 0) == [claimed[2], claimed[4]]
    assert Fixed(10).kept(claimed, 0) == claimed


def test_after_something_was_given_back_nothing_is_claimed_in_advance() -> None:
    hand = Hand()
    pace = Pace(10, hand)
    assert run(pace, hand, ended=100, every=0.01, times=100, ran=0.001) > 0
    pace.given_back()
    assert pace.ahead() == 0


def test_a_worker_gives_a_last_attempt_back_that_would_wait_and_runs_it_later(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.worker.Pace.ahead", lambda pace: 5)
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=2))
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(payload)

    numbers = enqueue_many(db, work, range(4))
    db.execute("update scheduler.tasks set max_attempts = 1")
    with running(worker(registry, dsn, slots=1)):
        for number in numbers:
            over(db, number)
    assert sorted(ran) == [0, 1, 2, 3]
    assert "released" in outcomes(db, numbers[-1])
    assert all(outcomes(db, number)[-1] == "completed" for number in numbers)


def test_a_worker_gives_back_what_waits_behind_slow_tasks_and_another_runs_it(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, ran, ends = Event(), list[tuple[str, int]](), list[str]()
    # Five until they are given back, then none, as after any standstill.
    monkeypatch.setattr("scheduler.worker.Pace.ahead", lambda pace: 0 if "released" in ends else 5)
    registry = Registry()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        if payload == 0:
            assert slow.wait(60)
        ran.append((attempt.owner.partition("/")[0], payload))

    numbers = enqueue_many(db, work, range(6))

    def ended(what: str, lease: Lease, detail: str) -> None:
        if what == "settled":
            ends.append(detail)

    first = worker(registry, dsn, name="first", slots=1, observe=ended)
    second = worker(registry, dsn, name="second", slots=1)
    with running(first):
        wait_for(lambda: statuses(db) == {"running": 6}, "the first worker to claim all")
        wait_for(lambda: statuses(db) == {"running": 1, "pending": 5}, "what waits to be back")
        with running(second):
            for number in numbers[1:]:
                over(db, number)
        slow.set()
        over(db, numbers[0])
    assert sorted(ran) == [("first", 0), *(("second", payload) for payload in range(1, 6))]
    assert outcomes(db, numbers[0]) == ["completed"]
    assert all(outcomes(db, number) == ["released", "completed"] for number in numbers[1:])


def test_a_worker_that_is_told_how_much_to_claim_in_advance_keeps_it(
    db: Connection, dsn: str
) -> None:
    slow, registry = Event(), Registry()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        assert slow.wait(60)

    numbers = enqueue_many(db, work, range(3))
    told = worker(registry, dsn, slots=1, prefetch=1)
    with running(told):
        wait_for(lambda: statuses(db) == {"running": 2, "pending": 1}, "two to be claimed")
        began = told._monotonic()
        wait_for(lambda: told._monotonic() > began + 2 * LATE, "what waits to be late")
        assert statuses(db) == {"running": 2, "pending": 1}
        slow.set()
        for number in numbers:
            over(db, number)
    assert all(outcomes(db, number) == ["completed"] for number in numbers)


def test_a_worker_claims_nothing_in_advance_for_kinds_with_one_try_or_a_limit() -> None:
    registry, once = Registry(), RetryPolicy(max_attempts=1)
    registry.kind("work", int)(ignore)
    assert Worker(registry, "host=nowhere")._ahead.most == MOST
    assert Worker(registry, "host=nowhere", prefetch=7)._ahead.most == 7
    registry.kind("once", int, queue="once", retry=once)(ignore)
    assert Worker(registry, "host=nowhere")._ahead.most == 0
    registry.kind("few", int, queue="few", limit=1)(ignore)
    assert Worker(registry, "host=nowhere", queues=["few"])._ahead.most == 0
    assert Worker(registry, "host=nowhere", queues=["default"])._ahead.most == MOST
    assert Worker(registry, "host=nowhere", prefetch=7)._ahead.most == 7
