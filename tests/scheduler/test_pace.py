"""How much a worker claims in advance by itself: what it runs in a moment, and for no longer."""

from __future__ import annotations

from threading import Event

import pytest
from psycopg import Connection

from scheduler import Attempt, Registry, enqueue_many
from scheduler.lease import Lease
from scheduler.pace import AHEAD, LATE, MOST, Pace
from tests.scheduler.working import outcomes, over, running, statuses, worker
from tests.waiting import wait_for


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(pace: Pace, hand: Hand, *, ended: int, every: float, times: int) -> int:
    """So many attempts end in each step of time; returns what may wait in the end."""
    ahead = 0
    for _ in range(times):
        hand.now += every
        for _ in range(ended):
            pace.ended()
        ahead = pace.ahead()
    return ahead


def test_nothing_is_claimed_in_advance_before_something_has_ended() -> None:
    hand = Hand()
    pace = Pace(hand)
    assert pace.ahead() == 0
    hand.now += 5
    assert pace.ahead() == 0


@pytest.mark.parametrize(("ended", "every"), [(1, 0.001), (10, 0.01), (100, 0.1)])
def test_what_waits_is_what_ends_in_a_moment_however_often_one_looks(
    ended: int, every: float
) -> None:
    hand = Hand()
    ahead = run(Pace(hand), hand, ended=ended, every=every, times=1000)
    assert ahead == pytest.approx(1000 * AHEAD, abs=1)


def test_no_more_than_so_many_wait_however_quick_they_are() -> None:
    hand = Hand()
    assert run(Pace(hand), hand, ended=1000, every=0.001, times=1000) == MOST


def test_for_slow_tasks_nothing_is_claimed_in_advance() -> None:
    hand = Hand()
    assert run(Pace(hand), hand, ended=10, every=1.0, times=20) == 0


def test_after_a_standstill_nothing_is_claimed_in_advance() -> None:
    hand = Hand()
    pace = Pace(hand)
    assert run(pace, hand, ended=100, every=0.01, times=100) > 0
    assert run(pace, hand, ended=0, every=10 * AHEAD, times=1) == 0


def test_two_looks_at_one_moment_do_not_count_an_end_twice() -> None:
    hand = Hand()
    pace = Pace(hand)
    once = run(pace, hand, ended=10, every=0.001, times=10)
    assert [pace.ahead(), pace.ahead()] == [once, once]


def test_what_waits_is_late_when_its_first_has_waited_too_long() -> None:
    hand = Hand()
    pace = Pace(hand)
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
