"""Floors: claims pass over what earlier ones took; what lands below is found in time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Event
from time import monotonic

import psycopg
import pytest
from psycopg import Connection

from chaos.explore.clock import START
from chaos.life.clock import Clock
from scheduler import Attempt, Priority, Registry, enqueue, enqueue_many
from scheduler.dispatch import claim, complete_and_claim
from scheduler.floors import MARGIN, Floor, Floors, find_floors
from scheduler.lease import Lease
from tests.scheduler.working import LEASE, QUICK, WORK, kind, put, running, statuses, take, worker
from tests.waiting import wait_for

OTHER = kind("other")
AGE = timedelta(seconds=0.5)
POLL = timedelta(seconds=0.5)
SECOND = timedelta(seconds=1)


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempt(
    task: int, due: datetime = START, *, late: float = 9.0, of: str = "work", priority: int = 1
) -> Attempt:
    lease = Lease(task, 1, "one/1")
    return Attempt(lease, of, "0", 1, 3, due, LEASE, 0.0, late=late, priority=priority)


def places(db: Connection, kinds: Sequence[str] = ("work",)) -> list[Floor]:
    """What a worker hears now."""
    return sorted(find_floors(db, kinds, AGE))


def waits(watching: Connection, whom: Connection) -> bool:
    """Whether this session waits for a lock."""
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return watching.execute(query, [whom.info.backend_pid]).fetchone() == (True,)


def without_an_index(db: Connection) -> None:
    """So that rows come in no order unless the statement asks for one."""
    for way in ("indexscan", "indexonlyscan", "bitmapscan"):
        db.execute(f"set enable_{way} = off".encode())


# A claim.


def test_no_claim_takes_what_is_below_its_floor(db: Connection, clock: Clock) -> None:
    first, second, third = put(db, 3)
    floor = Floor("work", 1, clock.now, second)
    [attempt] = claim(db, "one/1", {"work": LEASE}, 1, 0.0, floors=[floor])
    assert attempt.task == second
    lease = attempt.lease
    done, [after] = complete_and_claim(db, [lease], "one/2", {"work": LEASE}, 9, 0.0, [floor])
    assert (done, after.task) == ({second}, third)
    assert [attempt.task for attempt in take(db)] == [first]


# Where the earliest waiting task is.


def test_a_level_where_nothing_ever_waited_has_no_place(db: Connection, clock: Clock) -> None:
    put(db)
    clock.advance(timedelta(seconds=5))
    assert [(floor.kind, floor.priority) for floor in places(db, ["work", "other"])] == [
        ("work", 1)
    ]


def test_the_place_is_that_of_the_earliest_task_that_waits(db: Connection, clock: Clock) -> None:
    early = clock.now - timedelta(hours=1)
    first, _ = put(db, 2)
    before = enqueue(db, WORK, 0, run_at=early)
    high = enqueue(db, WORK, 0, run_at=early - SECOND, priority=Priority.HIGH)
    other = enqueue(db, OTHER, 0, run_at=early - SECOND)
    clock.advance(timedelta(seconds=5))
    without_an_index(db)
    assert places(db) == [
        Floor("work", 1, early, before),
        Floor("work", 2, early - SECOND, high),
    ]
    assert places(db, ["other"]) == [Floor("other", 1, early - SECOND, other)]
    taken = claim(db, "one/1", {"work": LEASE}, 2, 0.0)
    assert {attempt.task for attempt in taken} == {before, high}
    clock.advance(AGE)
    assert places(db) == [
        Floor("work", 1, START, first),
        Floor("work", 2, clock.now - MARGIN, 0),  # nothing waits there now
    ]


def test_no_place_is_later_than_a_moment_ago(db: Connection, clock: Clock) -> None:
    (task,) = put(db)
    enqueue(db, OTHER, 0, delay=timedelta(hours=1))
    moment = clock.now
    assert places(db, ["work", "other"]) == [
        Floor(name, 1, moment - MARGIN, 0) for name in ("other", "work")
    ]
    clock.advance(MARGIN)
    assert places(db) == [Floor("work", 1, moment, 0)]
    clock.advance(AGE)
    assert places(db) == [Floor("work", 1, moment, task)]


def test_what_one_worker_found_the_others_are_told_until_it_is_old(
    db: Connection, clock: Clock
) -> None:
    (task,) = put(db)
    put(db, of=OTHER)
    clock.advance(timedelta(minutes=1))
    found = places(db)
    assert found == [Floor("work", 1, START, task)]
    for days in (1, 2):
        early = START - timedelta(days=days)
        below = enqueue(db, WORK, 0, run_at=early)
        assert places(db) == found  # at this very instant
        clock.advance(AGE - timedelta(microseconds=1))
        assert places(db) == found
        clock.advance(timedelta(microseconds=1))
        found = places(db)
        assert found == [Floor("work", 1, early, below)]
    assert len(places(db, ["work", "other"])) == 2  # of the one it was told, the other it found
    assert db.execute("select count(*) from scheduler.claim_floors").fetchone() == (2,)


def test_what_a_clock_wrote_that_was_ahead_is_not_believed(db: Connection, clock: Clock) -> None:
    put(db)
    clock.advance(timedelta(minutes=1))
    places(db)
    early = START - timedelta(days=1)
    below = enqueue(db, WORK, 0, run_at=early)
    clock.advance(-timedelta(microseconds=1))
    found = places(db)
    assert found == [Floor("work", 1, early, below)]
    enqueue(db, WORK, 0, run_at=early - SECOND)
    assert places(db) == found  # which was told, too


def test_nobody_waits_for_a_place_that_another_is_changing(
    db: Connection, dsn: str, clock: Clock
) -> None:
    levels = [("other", 1), ("work", 1), ("work", 2)]

    def puts(due: datetime) -> list[int]:
        kinds = {"other": OTHER, "work": WORK}
        return [
            enqueue(db, kinds[name], 0, run_at=due, priority=Priority(priority))
            for name, priority in levels
        ]

    def stored() -> list[tuple[str, int, int]]:
        rows = db.execute("select kind, priority, id from scheduler.claim_floors order by 1, 2")
        return rows.fetchall()

    first = puts(START)
    clock.advance(timedelta(minutes=1))
    places(db, ["work", "other"])
    assert stored() == [(*level, task) for level, task in zip(levels, first, strict=True)]
    early = START - timedelta(days=1)
    second = puts(early)
    clock.advance(AGE)
    change = "update scheduler.claim_floors set id = id where kind = 'work' and priority = 1"
    with psycopg.connect(dsn) as holder:
        holder.execute(change)
        db.execute("set lock_timeout = '5s'")
        assert places(db, ["work", "other"]) == [
            Floor(*level, early, task) for level, task in zip(levels, second, strict=True)
        ]
    assert [task for _, _, task in stored()] == [second[0], first[1], second[2]]
    places(db, ["work", "other"])
    assert [task for _, _, task in stored()] == second


def test_first_looks_store_in_one_order_whichever_their_kinds_are_in(
    db: Connection, dsn: str, clock: Clock
) -> None:
    for of, priority in ((WORK, 1), (OTHER, 1), (OTHER, 2)):
        enqueue(db, of, 0, priority=Priority(priority))
    clock.advance(timedelta(minutes=1))
    with psycopg.connect(dsn) as holder, ThreadPoolExecutor(1) as pool:

        def stores(kind: str, priority: int) -> None:
            holder.execute(
                "insert into scheduler.claim_floors values (%s, %s, now(), 0, now())",
                [kind, priority],
            )

        holder.execute("set lock_timeout = '5s'")
        stores("other", 1)
        look = pool.submit(places, db, ["work", "other"])
        wait_for(lambda: waits(holder, db), "the look to wait for the first level")
        stores("other", 2)  # it has none of these yet
        stores("work", 1)
        holder.rollback()
        assert len(look.result(60)) == 3


def test_two_first_looks_at_once_store_one_place(db: Connection, dsn: str, clock: Clock) -> None:
    (task,) = put(db)
    clock.advance(timedelta(minutes=1))
    place = [Floor("work", 1, START, task)]
    with psycopg.connect(dsn) as other, ThreadPoolExecutor(1) as pool:
        assert places(other) == place
        second = pool.submit(places, db)
        wait_for(lambda: waits(other, db), "the second to wait for the first")
        other.commit()
        assert second.result(60) == place
    assert db.execute("select id from scheduler.claim_floors").fetchall() == [(task,)]


# What a worker remembers.


def test_a_floor_is_the_earliest_task_of_its_level_in_the_last_claim() -> None:
    floors = Floors(POLL, Hand())
    floors.claimed(
        [
            attempt(9, START + SECOND),
            attempt(7),
            attempt(8),
            attempt(3, START + SECOND, priority=2),
            attempt(4, START + SECOND, of="other"),
        ],
        0.0,
    )
    assert sorted(floors.known()) == [
        Floor("other", 1, START + SECOND, 4),
        Floor("work", 1, START, 7),
        Floor("work", 2, START + SECOND, 3),
    ]
    floors.claimed([attempt(11, START + SECOND)], 0.0)
    assert Floor("work", 1, START + SECOND, 11) in floors.known()
    assert Floor("work", 2, START + SECOND, 3) in floors.known()


def test_no_floor_rises_to_what_has_just_become_due() -> None:
    floors = Floors(POLL, Hand())
    floors.claimed([attempt(1, late=0.999), attempt(2, START + SECOND, late=0.5)], 0.0)
    assert floors.known() == []
    floors.claimed([attempt(1, late=1.0)], 0.0)
    floors.claimed([attempt(2, START + SECOND, late=0.999)], 0.0)
    assert floors.known() == [Floor("work", 1, START, 1)]


def test_a_claim_in_vain_leaves_no_floor() -> None:
    floors = Floors(POLL, Hand())
    floors.claimed([attempt(1)], 0.0)
    floors.claimed([], 0.0)
    assert floors.known() == []


@pytest.mark.parametrize(("poll", "age"), [(POLL, 0.25), (SECOND, 0.5), (timedelta(hours=1), 0.5)])
def test_a_worker_looks_before_a_claim_once_its_last_look_is_half_a_poll_old(
    poll: timedelta, age: float
) -> None:
    hand = Hand()
    floors = Floors(poll, hand)
    assert floors.age == timedelta(seconds=age)
    hand.now += 60
    assert not floors.old()  # there are none: a claim from the start is as good as a look
    began = hand.now
    hand.now += 0.125
    floors.claimed([attempt(1)], began)
    hand.now = began + age - 0.0625
    floors.claimed([attempt(2)], hand.now)
    assert not floors.old()
    hand.now = began + age
    assert floors.old()
    asked = hand.now
    hand.now += 0.125
    floors.replace([Floor("work", 1, START, 3)], asked)
    assert floors.known() == [Floor("work", 1, START, 3)]
    hand.now = asked + age - 0.0625
    assert not floors.old()
    hand.now += 60  # in which there was no room for a claim
    assert floors.old()
    floors.replace([], hand.now)
    hand.now += 60
    assert not floors.old()


# A worker.


def test_a_busy_worker_finds_within_a_poll_what_became_due_before_all_that_waits(
    db: Connection, dsn: str
) -> None:
    registry = Registry()
    ran: list[int] = []
    landed = Event()
    long_ago = timedelta(hours=1)

    @registry.kind("work", int, lease=LEASE)
    def run(attempt: Attempt, payload: int) -> None:
        ran.append(payload)
        until = monotonic() + 0.01
        while monotonic() < until:
            pass
        if payload == 20:
            landed.wait(60)

    [(now,)] = db.execute("select scheduler.now()").fetchall()
    enqueue_many(db, run, range(1, 301), run_at=now - SECOND * 60)
    with running(worker(registry, dsn, slots=1, prefetch=0, poll=timedelta(seconds=0.5))):
        wait_for(lambda: 20 in ran, "the worker to be busy")
        enqueue(db, run, -1, run_at=now - long_ago)
        landed.set()
        wait_for(lambda: -1 in ran, "the task below the floor")
        # In half a poll, and half a poll of others' looks, there is time for fifty tasks.
        assert len(ran) < 200
        wait_for(lambda: statuses(db) == {"completed": 301}, "the rest")


@pytest.mark.parametrize(("poll", "lasts"), [(QUICK, 0.1), (timedelta(minutes=1), 0.6)])
def test_a_worker_whose_slots_were_full_looks_before_it_claims_again(
    db: Connection, dsn: str, poll: timedelta, lasts: float
) -> None:
    registry = Registry()
    ran: list[int] = []
    landed = Event()

    @registry.kind("work", int, lease=LEASE)
    def run(attempt: Attempt, payload: int) -> None:
        ran.append(payload)
        if payload == 2:
            landed.wait(60)
            over = monotonic() + lasts  # until the last look is too old
            while monotonic() < over:
                pass

    [(now,)] = db.execute("select scheduler.now()").fetchall()
    enqueue_many(db, run, [1, 2, 3, 4], run_at=now - SECOND * 60)
    minute = timedelta(minutes=1)  # with such a poll no upkeep, which would have it look, too
    with running(worker(registry, dsn, slots=1, prefetch=0, poll=poll, reclaim_every=minute)):
        wait_for(lambda: 2 in ran, "the only slot to be taken")
        enqueue(db, run, -1, run_at=now - SECOND * 120)
        landed.set()
        wait_for(lambda: statuses(db) == {"completed": 5}, "the rest")
    assert ran == [1, 2, -1, 3, 4]


def test_an_idle_worker_finds_at_once_what_is_below_its_floors(db: Connection, dsn: str) -> None:
    registry = Registry()
    ran: list[int] = []

    @registry.kind("work", int, lease=LEASE)
    def run(attempt: Attempt, payload: int) -> None:
        ran.append(payload)

    [(now,)] = db.execute("select scheduler.now()").fetchall()
    enqueue(db, run, 1, run_at=now - SECOND * 60)
    # Nothing but the announcement wakes this worker.
    with running(worker(registry, dsn, poll=timedelta(minutes=9))):
        wait_for(lambda: statuses(db) == {"completed": 1}, "the first")
        enqueue(db, run, 2, run_at=now - SECOND * 120)
        wait_for(lambda: 2 in ran, "what lies below")
