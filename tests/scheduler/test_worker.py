"""The worker: runs what is due once, keeps its leases, drains, comes back after every outage."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf
from threading import Event
from typing import Any, cast

import psycopg
import pytest
from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.rows import dict_row

from chaos.cluster.ports import Reservation
from chaos.cluster.postgres import Postgres, postgres
from chaos.life.clock import Clock
from scheduler import (
    Attempt,
    DatabaseUnreachableError,
    Registry,
    RetryPolicy,
    Snooze,
    UnknownKindError,
    cancel,
    enqueue,
    enqueue_many,
    migrate,
)
from scheduler.access import limit_source
from scheduler.dispatch import claim, complete_and_claim, declare_limits
from scheduler.finish import begin_attempt, complete_and_commit
from scheduler.floors import Floor
from scheduler.lease import Lease, Look, reclaim, second_look
from scheduler.outcome import Outcome, describe
from scheduler.schedules import plan_due
from scheduler.session import REPLAN_EVERY, connect_worker
from scheduler.settle import End
from scheduler.tasks import runs
from scheduler.upkeep import Upkeep
from scheduler.wire import WorkerConnection
from tests.scheduler.working import (
    LEASE,
    MICROSECOND,
    QUICK,
    SHORT,
    ignore,
    kind,
    outcomes,
    over,
    process,
    put,
    running,
    statuses,
    take,
    take_one,
    task,
    worker,
)
from tests.waiting import wait_for

QUICK_RETRY = RetryPolicy(max_attempts=3, base=timedelta(milliseconds=1))
SESSIONS = (
    "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and application_name like 'scheduler %'"
)

Seen = list[tuple[str, Lease, str]]


def watch(seen: Seen) -> Any:
    """An `observe` that keeps what it is told."""
    return lambda what, lease, detail: seen.append((what, lease, detail))


def take_one_of(task: int) -> Attempt:
    """An attempt of this task, of no database."""
    due = datetime.now(tz=UTC)
    return Attempt(Lease(task, 1, "w/1"), "work", "1", 1, 3, due, LEASE, inf)


def steal(db: Connection, number: int) -> None:
    """Let the lease of a running task expire and be reclaimed, in one transaction."""
    with db.transaction():
        db.execute(
            "update scheduler.tasks set lease_expires_at = now() - interval '1 s' where id = %s",
            [number],
        )
        assert [taken.lease.task for taken in reclaim(db, 10)] == [number]


@pytest.fixture
def effects(db: Connection) -> Connection:
    """The test's database with a table for effects."""
    db.execute("create table effects (task bigint, token bigint)")
    return db


def source_of(db: Connection) -> str:
    """As whom the tests enqueue."""
    return db.info.user


def effect(connection: Connection, attempt: Attempt) -> None:
    """What a transactional handler does."""
    connection.execute("insert into effects values (%s, %s)", [attempt.task, attempt.token])


# Handlers of each style.


def test_plain_handlers_run_with_their_payload(db: Connection, dsn: str) -> None:
    registry, ran = Registry(), list[tuple[int, int, int]]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        ran.append((attempt.task, attempt.number, payload))

    number = enqueue(db, work, 7)
    with running(worker(registry, dsn)):
        over(db, number)
    assert ran == [(number, 1, 7)]
    assert outcomes(db, number) == ["completed"]


def test_async_handlers_run_at_the_same_time(db: Connection, dsn: str) -> None:
    registry, here = Registry(), asyncio.Event()

    @registry.kind("work", bool)
    async def work(attempt: Attempt, first: bool) -> None:
        if first:
            await here.wait()
        else:
            here.set()

    numbers = enqueue_many(db, work, [True, False])
    with running(worker(registry, dsn)):
        for number in numbers:
            over(db, number)


def test_a_transactional_handlers_writes_commit_with_the_completion(
    effects: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        with psycopg.connect(dsn) as other:
            mine = other.execute("select 1 from effects where task = %s", [attempt.task])
            assert mine.fetchall() == []
            assert task(other, attempt.task).status == "running"

    numbers = enqueue_many(effects, work, range(5))
    with running(worker(registry, dsn)):
        for number in numbers:
            over(effects, number)
    assert effects.execute("select task, token from effects order by task").fetchall() == [
        (number, 1) for number in numbers
    ]


def test_a_transactional_handlers_writes_roll_back_when_it_raises(
    effects: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int, retry=QUICK_RETRY)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        if attempt.number == 1:
            raise ValueError("not this time")
        if attempt.number == 2:
            connection.execute("select 1 / 0")

    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn)):
        over(effects, number)
    assert effects.execute("select token from effects").fetchall() == [(3,)]
    assert [run.outcome for run in runs(effects, number)] == ["failed", "failed", "completed"]


def test_a_commit_that_a_transactional_handler_hid_in_sql_is_a_failure(
    effects: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("commit")

    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn)):
        over(effects, number, "dead")
    assert "ended its transaction by itself" in (task(effects, number).last_error or "")


def test_what_a_transactional_handler_sets_is_gone_for_the_next(
    effects: Connection, dsn: str
) -> None:
    registry, seen = Registry(), list[tuple[str, str]]()

    @registry.transactional("work", int)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        names = ("work_mem", "idle_in_transaction_session_timeout")
        [found] = connection.execute(
            "select current_setting(%s), current_setting(%s)", names
        ).fetchall()
        seen.append(found)
        for name in names:
            connection.execute("select set_config(%s, '12345', false)", [name])

    numbers = enqueue_many(effects, work, [1, 2])
    with running(worker(registry, dsn, slots=1)):
        for number in numbers:
            over(effects, number)
    first, second = seen
    assert first == second
    assert first[1] not in ("0", "12345")


def test_a_transactional_handler_cannot_commit_by_itself(effects: Connection, dsn: str) -> None:
    registry = Registry()

    @registry.transactional("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        connection.commit()

    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn)):
        over(effects, number, "dead")
    assert effects.execute("select from effects").fetchall() == []


def leave_a_stream(connection: Connection) -> None:
    for (number,) in connection.cursor().stream("select generate_series(1, 100000)"):
        if number == 3:
            raise ValueError("left a stream")


def leave_a_copy(connection: Connection) -> None:
    copy = connection.cursor().copy("copy effects from stdin")
    LEFT.append(copy)
    copy.__enter__().write_row([1, 1])


def leave_a_pipeline(connection: Connection) -> None:
    pipeline = connection.pipeline()
    LEFT.append(pipeline)
    pipeline.__enter__()
    connection.execute("insert into effects values (1, 1)")


LEFT: list[object] = []  # what is referred to is not closed by going out of scope


@pytest.mark.parametrize("leave", [leave_a_stream, leave_a_copy, leave_a_pipeline])
def test_what_a_transactional_handler_leaves_unfinished_fails_its_attempt_and_no_other(
    effects: Connection, dsn: str, leave: Callable[[Connection], None]
) -> None:
    registry = Registry()

    @registry.transactional("work", bool, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, leaves: bool, connection: Connection) -> None:
        if leaves:
            leave(connection)
        else:
            effect(connection, attempt)

    left, number = enqueue_many(effects, work, [True, False])
    with running(worker(registry, dsn, slots=1)):
        over(effects, left, "dead")
        over(effects, number)
    assert "left a" in (task(effects, left).last_error or "")
    assert effects.execute("select task from effects").fetchall() == [(number,)]
    LEFT.clear()


class WritesNothing(Dumper):
    """What an application may do wrong."""

    def dump(self, obj: object) -> bytes:
        raise ValueError("not written")


@pytest.mark.parametrize("pooled", [True, False])
def test_what_a_transactional_handler_does_to_its_connection_is_gone_for_the_next(
    effects: Connection, dsn: str, pooled: bool
) -> None:
    registry = Registry()

    @registry.transactional("work", bool, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, first: bool, connection: Connection) -> None:
        if first:
            connection.adapters.register_dumper(str, WritesNothing)
            connection.row_factory = cast(Any, dict_row)
        assert connection.execute("select 1").fetchone() in ((1,), {"?column?": 1})
        connection.execute("insert into effects values (%s, %s)", [attempt.task, attempt.token])
        if not first:
            assert connection.execute("select %s", ["text"]).fetchone() == ("text",)

    numbers = enqueue_many(effects, work, [True, False])
    with running(worker(registry, dsn, slots=1, pooled=pooled)):
        for number in numbers:
            over(effects, number)


def test_a_session_whose_completion_failed_is_not_used_again(
    effects: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pooler nothing would end its transaction but the next attempt's COMMIT."""
    registry = Registry()

    @registry.transactional("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)

    first, second = enqueue_many(effects, work, [1, 2])

    def complete(connection: Connection, lease: Lease) -> None:
        if lease.task == first:
            raise ValueError("no")
        complete_and_commit(connection, lease)

    monkeypatch.setattr("scheduler.slots.complete_and_commit", complete)
    with running(worker(registry, dsn, slots=1, pooled=True)):
        over(effects, first, "dead")
        over(effects, second)
    assert effects.execute("select task from effects").fetchall() == [(second,)]


def test_a_snooze_gives_the_attempt_back(db: Connection, dsn: str) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=1))
    async def work(attempt: Attempt, payload: int) -> None:
        if attempt.token < 3:
            raise Snooze(timedelta(0))

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        over(db, number)
    assert outcomes(db, number) == ["snoozed", "snoozed", "completed"]
    assert task(db, number).attempts == 1


@pytest.mark.parametrize("wait", [-MICROSECOND, timedelta(days=366)])
def test_a_snooze_that_cannot_be_meant_is_refused(wait: timedelta) -> None:
    with pytest.raises(ValueError, match="from 0 to 365 days"):
        Snooze(wait)


def test_a_failing_task_is_dead_at_its_cap_with_its_last_error(db: Connection, dsn: str) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=QUICK_RETRY)
    def work(attempt: Attempt, payload: int) -> None:
        raise ValueError(f"no {attempt.number}")

    number = enqueue(db, work, 7)
    with running(worker(registry, dsn)):
        over(db, number, "dead")
    found = task(db, number)
    assert (found.attempts, found.payload) == (3, "7")
    assert found.last_error is not None
    assert found.last_error.startswith("ValueError: no 3\n")
    assert "test_worker.py" in found.last_error


def test_a_failing_task_does_not_retry_at_once(db: Connection, dsn: str, clock: Clock) -> None:
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(payload)
        if payload == 1:
            raise ValueError("no")

    failing = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        wait_for(lambda: outcomes(db, failing), "the failure")
        for payload in (2, 3):  # the worker goes on claiming
            over(db, enqueue(db, work, payload))
        assert ran == [1, 2, 3]
        wait = work.retry.delay(1, failing, 1)
        assert task(db, failing).next_run_at == clock.now + wait
        clock.advance(wait)
        wait_for(lambda: len(outcomes(db, failing)) == 2, "the retry")


def test_an_async_function_behind_a_plain_one_is_not_taken_for_done(
    effects: Connection, dsn: str
) -> None:
    registry = Registry()

    async def work(attempt: Attempt, payload: int, *connection: Connection) -> None:
        raise AssertionError("nobody awaits this")

    @functools.wraps(work)
    def hidden(*arguments: Any) -> Any:
        return work(*arguments)

    del hidden.__wrapped__
    once = RetryPolicy(max_attempts=1)
    plain = registry.kind("plain", int, retry=once)(hidden)
    transactional = registry.transactional("transactional", int, retry=once)(hidden)
    with running(worker(registry, dsn)):
        for made in (plain, transactional):
            number = enqueue(effects, made, 1)
            over(effects, number, "dead")
            assert "for which nobody waits" in (task(effects, number).last_error or "")


def test_a_worker_leaves_a_kind_that_it_does_not_know(db: Connection, dsn: str) -> None:
    registry = Registry()
    known = registry.kind("known", int)(ignore)
    (unknown,) = put(db, of=kind("unknown"))
    with running(worker(registry, dsn)):
        over(db, enqueue(db, known, 1))
        over(db, enqueue(db, known, 2))
    assert (task(db, unknown).status, task(db, unknown).attempts) == ("pending", 0)
    with pytest.raises(UnknownKindError, match="no kind 'unknown' is registered; known kinds: kno"):
        registry["unknown"]


# Several workers.


def test_two_workers_run_each_task_exactly_once(db: Connection, dsn: str) -> None:
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.task)

    with running(*(worker(registry, dsn, name=name, prefetch=4) for name in ("one", "two"))):
        numbers = enqueue_many(db, work, range(300))
        wait_for(lambda: statuses(db) == {"completed": 300}, "all to be completed")
    assert Counter(ran) == Counter(numbers)
    owners = db.execute(
        "select split_part(lease_owner, '/', 1), count(*) from scheduler.run_log"
        " where outcome = 'completed' group by 1"
    ).fetchall()
    assert sum(count for _, count in owners) == 300
    assert {name for name, _ in owners} == {"one", "two"}


def test_a_lease_left_behind_is_taken_over_and_its_owner_logged(
    db: Connection, dsn: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "scheduler")
    seen: Seen = []
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.number)

    number = enqueue(db, work, 1)
    left = take_one(db, "crashed")
    with running(worker(registry, dsn, name="next", observe=watch(seen))):
        over(db, enqueue(db, work, 2))  # while the lease lasts, the worker does everything else
        assert task(db, number).lease_owner == left.owner
        clock.advance(LEASE + MICROSECOND)
        over(db, number)
    assert ran == [1, 2]
    assert ("reclaimed", left.lease, "work pending") in seen
    assert (
        f"reclaimed task={number} kind=work by=next previous_owner={left.owner} token=1 now=pending"
        in caplog.messages
    )
    first, second = runs(db, number)
    assert (first.outcome, first.lease_owner) == ("reclaimed", left.owner)
    assert second.outcome == "completed"
    assert second.lease_owner.startswith("next/")


KILLED = """
import os, sys, time
from datetime import timedelta
from scheduler import Registry, Worker

dsn, how = sys.argv[1:]
registry = Registry()

@registry.kind("work", int, lease=timedelta(seconds=0.5))
def work(attempt, payload):
    if how == "exits":
        os._exit(9)
    print("running", flush=True)
    time.sleep(60)

quick = timedelta(milliseconds=20)
Worker(registry, dsn, poll=quick, reclaim_every=quick).run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exits", "killed"])
def test_a_task_that_kills_its_worker_every_time_is_dead_lettered(
    db: Connection, dsn: str, how: str
) -> None:
    registry = Registry()
    work = registry.kind("work", int, lease=SHORT, retry=RetryPolicy(max_attempts=2))(ignore)
    number = enqueue(db, work, 7)
    for _ in range(2):
        with process(KILLED, dsn, how) as child:
            if how == "killed":
                assert child.stdout is not None
                assert child.stdout.readline() == "running\n"
                os.kill(child.pid, signal.SIGKILL)
            assert child.wait(30) == (9 if how == "exits" else -signal.SIGKILL)
    with running(worker(registry, dsn)):
        over(db, number, "dead")
    found = task(db, number)
    assert (found.attempts, found.payload) == (2, "7")
    assert found.last_error is not None
    assert "did not finish attempt 2 in time" in found.last_error
    assert outcomes(db, number) == ["reclaimed", "reclaimed"]


# Leases while handlers run.


@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_task_that_runs_for_several_leases_keeps_its_attempt(
    db: Connection, dsn: str, style: str
) -> None:
    registry, done = Registry(), Event()

    def plain(attempt: Attempt, payload: int) -> None:
        assert done.wait(30)

    async def asynchronous(attempt: Attempt, payload: int) -> None:
        while not done.is_set():
            await asyncio.sleep(0.01)

    work = registry.kind("work", int, lease=SHORT)(plain if style == "plain" else asynchronous)
    number = enqueue(db, work, 1)
    passed = (
        "select clock_timestamp() > claimed_at + interval '1.6 s' from scheduler.tasks"
        " where id = %s and status = 'running' and attempts = 1"
    )
    with running(worker(registry, dsn), worker(registry, dsn)):
        wait_for(lambda: db.execute(passed, [number]).fetchone() == (True,), "three leases")
        done.set()
        over(db, number)
    assert outcomes(db, number) == ["completed"]


def test_a_plain_handler_sees_that_its_lease_is_lost_and_its_result_is_refused(
    db: Connection, dsn: str
) -> None:
    registry, seen, lost = Registry(), Seen(), Event()

    @registry.kind("work", int, lease=SHORT)
    def work(attempt: Attempt, payload: int) -> None:
        if attempt.number == 1:
            wait_for(lambda: attempt.lost, "the lease to be lost")
            lost.set()
        else:
            assert lost.wait(30)

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, observe=watch(seen))):
        wait_for(lambda: any(what == "started" for what, _, _ in seen), "the start")
        zombie = seen[0][1]
        steal(db, number)
        over(db, number)
        wait_for(lambda: ("refused", zombie, "completed") in seen, "the refusal")
    assert outcomes(db, number) == ["reclaimed", "completed"]
    assert Counter(what for what, lease, _ in seen if lease == zombie)["lease-lost"] == 1
    assert task(db, number).lease_token == 2


def test_a_zombie_and_its_successor_that_end_together_are_told_apart(
    db: Connection, dsn: str
) -> None:
    """Both in one worker: the batch writes the task for one of them, and refuses the other."""
    registry, seen, both = Registry(), Seen(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        if attempt.number == 2:
            both.set()
        assert both.wait(30)

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, observe=watch(seen))):
        wait_for(lambda: any(what == "started" for what, _, _ in seen), "the start")
        zombie = seen[0][1]
        steal(db, number)
        over(db, number)
        wait_for(lambda: ("refused", zombie, "completed") in seen, "the refusal")
    assert {lease for what, lease, _ in seen if what == "refused"} == {zombie}
    assert outcomes(db, number) == ["reclaimed", "completed"]


@pytest.mark.parametrize("how", ["reclaimed", "cancelled"])
def test_an_async_handler_is_cancelled_when_its_lease_is_lost(
    db: Connection, dsn: str, how: str
) -> None:
    registry, started, cancelled = Registry(), Event(), Event()

    @registry.kind("work", int, lease=SHORT)
    async def work(attempt: Attempt, payload: int) -> None:
        if attempt.number == 1:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert attempt.lost
                cancelled.set()
                raise

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        assert started.wait(30)
        if how == "cancelled":
            assert cancel(db, [number]) == {number: "running"}
        else:
            steal(db, number)
        assert cancelled.wait(30)
        over(db, number, "cancelled" if how == "cancelled" else "completed")
    assert outcomes(db, number) == ["cancelled"] if how == "cancelled" else [how, "completed"]


def test_a_transactional_handler_is_interrupted_when_its_lease_is_lost(
    effects: Connection, dsn: str
) -> None:
    registry, started, interrupted = Registry(), Event(), Event()

    @registry.transactional("work", int, lease=SHORT)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        if attempt.number == 1:
            started.set()
            try:
                connection.execute("select pg_sleep(60)")
            except psycopg.OperationalError:
                interrupted.set()
                raise

    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn)):
        assert started.wait(30)
        steal(effects, number)
        assert interrupted.wait(30)
        over(effects, number)
    assert effects.execute("select token from effects").fetchall() == [(2,)]
    assert outcomes(effects, number) == ["reclaimed", "completed"]


def test_a_transactional_completion_is_refused_with_its_effect_once_the_lease_is_lost(
    effects: Connection, dsn: str
) -> None:
    registry, seen = Registry(), Seen()

    @registry.transactional("work", int)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        if payload:  # on a session of its own, as anybody might
            assert cancel(effects, [attempt.task]) == {attempt.task: "running"}

    *refused, fine = enqueue_many(effects, work, [1] * 40 + [0])
    with running(worker(registry, dsn, observe=watch(seen))):
        for number in refused:
            over(effects, number, "cancelled")
        over(effects, fine)
    assert effects.execute("select task from effects").fetchall() == [(fine,)]
    # By the completion itself and at once, whichever of its and the COMMIT's error came out first.
    said = [(lease.task, detail) for what, lease, detail in seen if what == "refused"]
    assert sorted(said) == [(number, "complete") for number in refused]
    assert [outcomes(effects, number) for number in refused] == [["cancelled"]] * 40


# Shutdown.


def test_a_stopped_worker_ends_what_runs_and_releases_what_waits(db: Connection, dsn: str) -> None:
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(30)

    first, *waiting = enqueue_many(db, work, range(4))
    stopped = worker(registry, dsn, slots=1, prefetch=2)
    with running(stopped):
        assert started.wait(30)
        wait_for(lambda: statuses(db) == {"running": 3, "pending": 1}, "the prefetch")
        stopped.stop()
        # At once, not when the slot is free: a handler that never ends would keep what waits.
        wait_for(lambda: statuses(db) == {"running": 1, "pending": 3}, "the release")
        done.set()
    assert statuses(db) == {"completed": 1, "pending": 3}
    assert task(db, first).status == "completed"
    assert [task(db, number).attempts for number in waiting] == [0, 0, 0]
    assert outcomes(db, waiting[0]) == ["released"]


def test_an_async_handler_is_interrupted_after_the_grace_and_fails(
    db: Connection, dsn: str
) -> None:
    registry, seen, started = Registry(), list[str](), Event()

    @registry.kind("work", int)
    async def work(attempt: Attempt, payload: int) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            seen.append("cleaned up")

    number = enqueue(db, work, 1)
    stopped = worker(
        registry,
        dsn,
        grace=timedelta(milliseconds=100),
        # Longer than the grace: the end of the grace must be seen nevertheless.
        poll=timedelta(hours=1),
        reclaim_every=timedelta(hours=1),
        observe=lambda what, lease, detail: seen.append(what),
    )
    with running(stopped):
        assert started.wait(30)
        stopped.stop()
    found = task(db, number)
    assert (found.status, found.attempts) == ("pending", 1)
    assert found.last_error is not None
    assert found.last_error.startswith("interrupted: the worker shut down")
    assert outcomes(db, number) == ["failed"]
    # While it cleans up the attempt is not over: nobody else may begin the next one yet.
    assert seen == ["claimed", "started", "cleaned up", "finished", "settled"]


def test_a_plain_handler_that_does_not_end_is_left_to_its_lease(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scheduler.worker.AFTER_GRACE", 0.1)
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(60)

    number = enqueue(db, work, 1)
    stopped = worker(registry, dsn, name="hasty", grace=timedelta(0))
    try:
        with running(stopped):
            assert started.wait(30)
            stopped.stop()
        assert f"abandoned worker=hasty task={number}" in caplog.messages
        assert task(db, number).status == "running"
    finally:
        done.set()


def test_a_worker_that_is_stopped_before_it_runs_claims_nothing(db: Connection, dsn: str) -> None:
    registry = Registry()
    number = enqueue(db, registry.kind("work", int)(ignore), 1)
    stopped = worker(registry, dsn)
    stopped.stop()
    stopped.run()
    assert task(db, number).status == "pending"
    wait_for(lambda: not db.execute(f"select 1 {SESSIONS}".encode()).fetchone(), "no session")


# Outages.


def test_a_worker_comes_back_after_its_sessions_were_terminated(
    effects: Connection, dsn: str
) -> None:
    db = effects
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int, lease=timedelta(seconds=5))
    def work(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(30)

    @registry.transactional("both", int)
    def both(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)

    running_one = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        over(db, enqueue(db, both, 1))
        assert started.wait(30)
        sessions = f"select pid {SESSIONS}".encode()
        wait_for(
            lambda: len(db.execute(sessions).fetchall()) >= 3,
            "the sessions of the dispatcher, the keeper and a slot",
        )
        db.execute(f"select pg_terminate_backend(pid) {SESSIONS}".encode())
        done.set()
        over(db, running_one)
        over(db, enqueue(db, both, 2))
    assert outcomes(db, running_one) == ["completed"]


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A cluster that the test may stop, with the schema in database `postgres`."""
    with postgres() as server:
        migrate(server.dsn())
        yield server


@pytest.mark.slow
def test_a_worker_comes_back_after_a_restart_of_the_server(own_server: Postgres) -> None:
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(30)

    with running(worker(registry, own_server.dsn())):
        with psycopg.connect(own_server.dsn(), autocommit=True) as db:
            before = enqueue(db, work, 1)
            assert started.wait(30)
        own_server.restart()
        done.set()
        with psycopg.connect(own_server.dsn(), autocommit=True) as db:
            after = enqueue(db, work, 2)
            over(db, before)
            over(db, after)
            assert outcomes(db, before) == outcomes(db, after) == ["completed"]


@pytest.mark.parametrize("after", ["nothing", "a broken session", "planning that fails"])
def test_the_rows_of_a_claim_whose_reply_was_lost_are_released_and_not_counted(
    db: Connection, dsn: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    asked: list[int] = []

    def losing(
        connection: Connection,
        owner: str,
        kinds: Mapping[str, timedelta],
        limit: int,
        sent: float,
        limited: Sequence[str],
        floors: Sequence[Floor],
    ) -> list[Attempt]:
        attempts = claim(connection, owner, kinds, limit, sent, limited, floors)
        if attempts:
            asked.append(limit)
        if attempts and len(lost) < 4:
            lost.extend(attempt.task for attempt in attempts)
            if after == "a broken session":
                db.execute(f"select pg_terminate_backend(pid) {SESSIONS}".encode())
            raise psycopg.OperationalError("the reply was lost")
        return attempts

    def planning(connection: Connection, limit: int) -> float | None:
        held = connection.execute("select from scheduler.tasks where status = 'running'").rowcount
        if after == "planning that fails" and lost and held:
            raise psycopg.OperationalError("no schedule can be planned while a claim is lost")
        return plan_due(connection, limit)

    monkeypatch.setattr("scheduler.worker.claim", losing)
    monkeypatch.setattr("scheduler.upkeep.plan_due", planning)
    # So long that planning is due again whenever a worker has paused.
    monkeypatch.setattr("scheduler.worker.PAUSE", 3 * QUICK.total_seconds())
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.task)

    numbers = enqueue_many(db, work, range(2))
    with running(worker(registry, dsn)):
        for number in numbers:
            over(db, number)
    assert sorted(ran) == numbers
    # What does not get through is asked for one by one, and then by ever more again.
    assert asked[1:4] == [1, 1, 1]
    assert asked[0] > 1
    for number in numbers:
        *before, last = outcomes(db, number)
        assert (set(before), last) == ({"released"}, "completed")
        assert (task(db, number).attempts, task(db, number).lease_token) == (1, len(before) + 1)


def test_a_worker_with_one_slot_completes_a_task_and_claims_the_next_with_one_commit(
    db: Connection, dsn: str
) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    numbers = put(db, 20, registry["work"])
    # No upkeep is due meanwhile, for which both would be done apart.
    never = timedelta(hours=1)
    with running(worker(registry, dsn, slots=1, prefetch=0, poll=never, reclaim_every=never)):
        for number in numbers:
            over(db, number)
    times = db.execute(
        "select claimed_at, finished_at from scheduler.run_log order by finished_at"
    ).fetchall()
    assert len(times) == 20
    for (_, finished), (claimed, _) in pairwise(times):
        assert claimed == finished


def test_a_worker_without_prefetch_holds_no_more_than_it_has_slots(
    db: Connection, dsn: str
) -> None:
    registry, held = Registry(), list[dict[str, int]]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as looking:
            held.append(statuses(looking))

    numbers = enqueue_many(db, work, range(40))
    never = timedelta(hours=1)
    with running(worker(registry, dsn, slots=3, prefetch=0, poll=never, reclaim_every=never)):
        for number in numbers:
            over(db, number)
    assert max(found["running"] for found in held) <= 3


@pytest.mark.parametrize("pooled", [False, True])
def test_upkeep_is_due_when_any_part_of_it_is(db: Connection, dsn: str, pooled: bool) -> None:
    hour, now = 3600.0, [1000.0]
    with closing(connect_worker(dsn, "w", LEASE, pooled)) as connection:
        upkeep = Upkeep(
            "w", lambda _: nullcontext(), lambda: now[0], print, hour, hour, pooled=pooled
        )
        assert upkeep.due()
        upkeep.do(connection, stopping=False)
        assert not upkeep.due()
        now[0] += REPLAN_EVERY
        assert upkeep.due() is not pooled  # only the plans of a session of one's own get old
        now[0] += hour
        assert upkeep.due()


def test_an_end_of_what_is_held_no_longer_makes_no_room(db: Connection, dsn: str) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    full = worker(registry, dsn, slots=2, prefetch=0)
    ended, *held = put(db, 5, registry["work"])[:3]
    attempts = {attempt.task: attempt for attempt in take(db, 3)}
    full._watchdog.hold([attempts[number] for number in held])
    full._unwritten = [(attempts[ended], Outcome("completed"))]
    with closing(full._start()) as connection:
        full._write_and_claim(connection)
    assert statuses(db) == {"completed": 1, "running": 2, "pending": 2}


def test_after_a_claim_of_large_payloads_the_next_ones_are_smaller(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.worker.MOST_PAYLOADS", 1_000)
    registry, claims = Registry(), list[int]()
    registry.kind("work", str)(ignore)
    numbers = enqueue_many(db, registry["work"], ["x" * 98] * 60)
    large = worker(
        registry, dsn, slots=1, prefetch=39, observe_claim=lambda tasks, _: claims.append(tasks)
    )
    with running(large):
        for number in numbers:
            over(db, number)
    assert claims[0] == 40
    assert max(claims[1:]) <= 10


@pytest.mark.parametrize("after", ["the write", "a second look that fails"])
def test_completions_and_a_claim_whose_reply_was_lost_are_settled_once_and_given_back(
    db: Connection, dsn: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def losing(*arguments: Any) -> tuple[set[int], list[Attempt]]:
        completed, attempts = complete_and_claim(*arguments)
        if attempts and not lost:
            lost.extend(attempt.task for attempt in attempts)
            if after == "the write":
                raise psycopg.OperationalError("the reply was lost")
            completed.clear()  # so that somebody looks
        return completed, attempts

    def looking(*arguments: Any) -> dict[Lease, Look]:
        if len(lost) == 1:
            lost.append(0)
            raise psycopg.OperationalError("nothing can be seen")
        return second_look(*arguments)

    monkeypatch.setattr("scheduler.worker.complete_and_claim", losing)
    monkeypatch.setattr("scheduler.settle.second_look", looking)
    seen: Seen = []
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.task)

    numbers = enqueue_many(db, work, range(4))
    never = timedelta(hours=1)
    one = worker(
        registry, dsn, slots=1, prefetch=0, poll=never, reclaim_every=never, observe=watch(seen)
    )
    with running(one):
        for number in numbers:
            over(db, number)
    assert sorted(ran) == numbers
    for number in numbers:
        expected = ["released", "completed"] if number == lost[0] else ["completed"]
        assert outcomes(db, number) == expected
    ended = [lease.task for what, lease, _ in seen if what == "settled"]
    assert Counter(ended)[numbers[0]] == 1
    assert [what for what, _, _ in seen if what in ("lease-lost", "refused")] == []


def test_a_claim_whose_lease_is_over_by_the_workers_clock_when_it_arrives_is_given_back(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []

    def claims(
        connection: Connection,
        owner: str,
        kinds: Mapping[str, timedelta],
        limit: int,
        sent: float,
        limited: Sequence[str],
        floors: Sequence[Floor],
    ) -> list[Attempt]:
        # As if this process had been stopped after it had looked at its clock.
        before = 0.0 if late else LEASE.total_seconds()
        attempts = claim(connection, owner, kinds, limit, sent - before, limited, floors)
        late.extend(attempt.task for attempt in attempts)
        return attempts

    monkeypatch.setattr("scheduler.worker.claim", claims)
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int, lease=LEASE, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.token)

    seen: Seen = []
    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, observe=watch(seen))):
        over(db, number)
    assert ran == [2]
    assert outcomes(db, number) == ["released", "completed"]
    assert [what for what, _, _ in seen if what == "lease-lost"] == []


def test_tasks_of_a_source_whose_record_is_locked_keep_no_slot_from_those_of_others(
    db: Connection, dsn: str
) -> None:
    registry, ran = Registry(), list[int]()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.task)

    free = enqueue(db, work, 0, delay=timedelta(days=1))
    limit_source(db, source_of(db), 9)
    counted = enqueue_many(db, work, range(3))
    with psycopg.connect(dsn) as client, running(worker(registry, dsn, slots=1)):
        client.execute("select from scheduler.sources for update")
        wait_for(lambda: sorted(ran) == counted, "the source's tasks to run")
        # Uncounted, since it came before the cap.
        db.execute("update scheduler.tasks set next_run_at = now() where id = %s", [free])
        over(db, free)
        assert statuses(db) == {"completed": 1, "running": 3}
        client.rollback()
        for number in counted:
            over(db, number)
    assert sorted(ran) == sorted([*counted, free])
    assert [outcomes(db, number) for number in counted] == [["completed"]] * 3


def test_what_is_locked_is_written_again_in_time_and_ever_more_seldom_while_all_of_it_is(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    now, locked, calls = [100.0], {1, 2}, list[list[int]]()
    one = worker(registry, dsn, monotonic=lambda: now[0])

    def settles(_: object, ended: Sequence[End], *rest: object) -> list[End]:
        calls.append([attempt.task for attempt, _ in ended])
        return [end for end in ended if end[0].task in locked]

    def writes(seconds: float, *tasks: int) -> list[int]:
        """What is tried after so many seconds, when these have just ended."""
        now[0] += seconds
        calls.append([])
        one._unwritten += [(take_one_of(task), Outcome("completed")) for task in tasks]
        one._write(cast(WorkerConnection, None))
        return calls[-1]

    monkeypatch.setattr("scheduler.worker.settle", settles)
    assert writes(0, 1) == [1]
    assert writes(0.015, 2) == [2]  # which does not put the first off
    assert writes(0.006) == [1, 2]
    assert writes(0.03, 3) == [3]  # which says nothing of the lock
    assert sorted(writes(0.011)) == [1, 2]
    assert writes(0.07) == []
    for _ in range(10):
        assert sorted(writes(1.001)) == [1, 2]
    assert writes(0.99) == []
    locked.remove(1)
    assert sorted(writes(0.02)) == [1, 2]
    assert writes(0.021) == [2]  # soon again, since the other one could be written


def test_a_transactional_completion_that_somebodys_lock_holds_up_is_tried_again_and_not_counted(
    effects: Connection, dsn: str
) -> None:
    db = effects
    registry = Registry()

    once = RetryPolicy(max_attempts=1)

    @registry.transactional("work", int, lease=timedelta(seconds=0.5), retry=once)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)

    @registry.kind("other", int)
    def other(attempt: Attempt, payload: int) -> None:
        """Is not counted: it came before the cap."""

    later = enqueue(db, other, 1, delay=timedelta(days=1))
    limit_source(db, source_of(db), 9)
    number = enqueue(db, work, 1)
    with psycopg.connect(dsn) as client:
        client.execute("select from scheduler.sources for update")
        with running(worker(registry, dsn, slots=1)):
            wait_for(lambda: len(outcomes(db, number)) > 1, "the completion to be held up twice")
            # Put off, or it would always be the oldest that is due.
            db.execute("update scheduler.tasks set next_run_at = now() where id = %s", [later])
            over(db, later)
            client.rollback()
            over(db, number)
    *before, last = outcomes(db, number)
    assert (set(before), last) == ({"snoozed"}, "completed")
    assert task(db, number).attempts == 1
    assert db.execute("select count(*) from effects").fetchone() == (1,)


def test_a_begin_that_gets_no_answer_ends_the_attempt_and_not_the_slot(
    effects: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, waited = Registry(), list[int]()

    @registry.transactional("work", int, lease=timedelta(hours=1), retry=QUICK_RETRY)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)

    def begin(connection: Connection, lease: Lease, length: timedelta) -> None:
        if not waited:
            waited.append(lease.task)
            connection.execute("select pg_sleep(600)")
        begin_attempt(connection, lease, length)

    monkeypatch.setattr("scheduler.slots.begin_attempt", begin)
    monkeypatch.setattr("scheduler.slots.CONNECT_TIMEOUT_SECONDS", 1.0)
    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn, slots=1)):
        over(effects, number)
    assert outcomes(effects, number) == ["failed", "completed"]


def test_a_month_whose_first_row_came_before_its_partition_stops_no_worker(
    db: Connection, dsn: str
) -> None:
    db.execute(
        "create or replace function scheduler.add_run_log_partitions(ahead integer) returns integer"
        " language plpgsql as $$ begin"
        " raise exception 'rows in the rest' using errcode = 'check_violation'; end $$"
    )
    registry = Registry()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        """Nothing to do."""

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        over(db, number)


def test_an_async_handler_whose_lease_was_lost_before_the_loop_came_to_it_does_not_start(
    db: Connection, dsn: str
) -> None:
    registry, held, go_on = Registry(), Event(), Event()
    ran: list[int] = []

    @registry.kind("hog", int)
    async def hog(attempt: Attempt, payload: int) -> None:
        held.set()
        go_on.wait(60)

    @registry.kind("work", int)
    async def work(attempt: Attempt, payload: int) -> None:
        ran.append(attempt.task)

    seen: Seen = []
    with running(worker(registry, dsn, slots=2, observe=watch(seen))):
        first = enqueue(db, hog, 1)
        assert held.wait(30)
        second = enqueue(db, work, 1)
        wait_for(
            lambda: any(what == "started" and one.task == second for what, one, _ in list(seen)),
            "the second to be sent to the loop",
        )
        assert cancel(db, [second]) == {second: "running"}
        wait_for(
            lambda: any(what == "lease-lost" for what, _, _ in list(seen)), "the worker to hear"
        )
        go_on.set()
        over(db, first)
    assert ran == []
    assert outcomes(db, second) == ["cancelled"]


def test_a_worker_starts_while_another_holds_the_limits_that_it_declares_as_they_are(
    db: Connection, dsn: str
) -> None:
    registry, ran = Registry(), Event()

    @registry.kind("work", int, limit=2)
    def work(attempt: Attempt, payload: int) -> None:
        """Another kind holds no limit."""

    @registry.kind("free", int)
    def free(attempt: Attempt, payload: int) -> None:
        ran.set()

    declare_limits(db, {"work": 2})
    with psycopg.connect(dsn) as claimer:
        claimer.execute("select from scheduler.kind_limits for update")
        declare_limits(db, {"work": 2})
        with running(worker(registry, dsn)):
            enqueue(db, free, 1)
            assert ran.wait(30)


def test_an_unreachable_database_is_an_error_at_the_start() -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with (
        closing(Reservation()) as nobody,
        pytest.raises(DatabaseUnreachableError, match="cannot connect to the database: "),
    ):
        worker(registry, f"host=127.0.0.1 port={nobody.port} user=postgres").run()


def test_a_worker_gives_up_when_the_database_stays_away(db: Connection, dsn: str) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    gone = worker(registry, dsn, give_up=timedelta(seconds=0.2))
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(dsn, dbname="postgres", autocommit=True) as elsewhere,
    ):
        run = pool.submit(gone.run)
        both = f"select 1 {SESSIONS} having count(*) >= 2".encode()  # so it is past its start
        wait_for(lambda: db.execute(both).fetchone(), "its sessions")
        elsewhere.execute(f"alter database {db.info.dbname} allow_connections false".encode())
        db.execute(f"select pg_terminate_backend(pid) {SESSIONS}".encode())
        with pytest.raises(DatabaseUnreachableError, match=r"has not answered for \d+ s"):
            run.result(30)


@pytest.mark.parametrize("settings", [{"slots": 0}, {"slots": 10_001}, {"prefetch": -1}])
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with pytest.raises(ValueError, match="slots must be from 1"):
        worker(registry, "", **settings)


def test_a_worker_without_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="the registry has no kinds"):
        worker(Registry(), "")


def test_a_failure_and_a_death_are_logged_with_task_attempt_and_error(
    db: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=RetryPolicy(2, base=MICROSECOND))
    def work(attempt: Attempt, payload: int) -> None:
        raise ValueError("no\0such thing")

    number = enqueue(db, work, 1)
    with caplog.at_level("WARNING", "scheduler"), running(worker(registry, dsn)):
        over(db, number, "dead")
    said = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.getMessage().startswith("ended")
    ]
    said = [(level, re.sub(r"owner=\S+", "owner=X", text)) for level, text in said]
    error = 'error="ValueError: no\N{REPLACEMENT CHARACTER}such thing"'
    words = f"ended task={number} kind=work attempt={{0}}/2 token={{0}} owner=X outcome=failed"
    assert said == [
        ("WARNING", f"{words.format(1)} now=pending {error}"),
        ("ERROR", f"{words.format(2)} now=dead {error}"),
    ]


def test_a_transactional_handler_that_swallows_a_database_error_is_told_what_it_did(
    db: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        with suppress(psycopg.Error):
            connection.execute("select 1 / 0")

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn)):
        over(db, number, "dead")
    assert "caught a database error and went on" in (task(db, number).last_error or "")


def test_a_task_s_error_names_its_causes_and_shows_the_handler_not_the_library() -> None:
    def inner(depth: int) -> None:
        if depth:
            inner(depth - 1)
        raise KeyError("the cause")

    def handler() -> None:
        try:
            inner(20)
        except KeyError as cause:
            raise RuntimeError("the error") from cause

    try:
        handler()
    except RuntimeError as error:
        text = describe(error)
    first, second, *rest = text.splitlines()
    assert (first, second) == ("RuntimeError: the error", "caused by KeyError: 'the cause'")
    assert "in handler" in "\n".join(rest)


@pytest.mark.parametrize("style", ["kind", "transactional"])
def test_a_handler_that_cannot_take_its_arguments_is_refused_at_once(style: str) -> None:
    register = getattr(Registry(), style)("work", int)
    with pytest.raises(TypeError, match="the handler of kind 'work' must take attempt, payload"):
        register(lambda attempt: None)


class Later(Snooze):
    """A snooze that forgot to say for how long."""

    def __init__(self) -> None:
        pass


def unprintable() -> BaseException:
    """An exception that the traceback module itself stumbles over."""
    return SyntaxError("m", ("f", 1, "a", "text"))  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(
    "error", [Later, unprintable, SystemExit], ids=["snooze", "syntax", "exit"]
)
def test_whatever_a_handler_raises_ends_its_attempt_and_not_its_slot(
    db: Connection, dsn: str, error: Any
) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int) -> None:
        if payload:
            raise error()

    numbers = enqueue_many(db, work, [1, 0])
    with running(worker(registry, dsn, slots=1)):
        over(db, numbers[0], "dead")
        over(db, numbers[1])


def test_an_observer_that_fails_ends_nothing(
    db: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()

    @registry.kind("work", int, lease=SHORT)
    def work(attempt: Attempt, payload: int) -> None:
        Event().wait(2 * SHORT.total_seconds())

    def fail(what: str, lease: Lease, detail: str) -> None:
        raise RuntimeError(f"cannot take {what}")

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, observe=fail)):
        over(db, number)
    assert outcomes(db, number) == ["completed"]
    assert "observer-failed told=\"('renewed'" in caplog.text


@pytest.mark.parametrize("style", ["kind", "transactional"])
def test_a_generator_is_refused_as_a_handler(style: str) -> None:
    def plain(attempt: Attempt, payload: int) -> Iterator[None]:
        yield

    async def asynchronous(attempt: Attempt, payload: int) -> Any:
        yield

    for handler in (plain, asynchronous):
        with pytest.raises(TypeError, match="a handler with `yield`"):
            getattr(Registry(), style)("work", int)(handler)


def test_a_future_that_a_handler_returns_is_not_taken_for_done(db: Connection, dsn: str) -> None:
    registry: Registry = Registry()

    def work(attempt: Attempt, payload: int) -> Any:
        return ThreadPoolExecutor(1).submit(int)

    made = registry.kind("work", int, retry=RetryPolicy(max_attempts=1))(work)
    number = enqueue(db, made, 1)
    with running(worker(registry, dsn)):
        over(db, number, "dead")


def test_a_transaction_may_idle_for_its_own_kind_s_lease_not_the_shortest(
    db: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.kind("short", int, lease=SHORT)
    def short(attempt: Attempt, payload: int) -> None:
        """Has the shortest lease."""

    @registry.transactional("long", int, lease=LEASE)
    def long(attempt: Attempt, payload: int, connection: Connection) -> None:
        Event().wait(3 * SHORT.total_seconds())

    number = enqueue(db, long, 1)
    with running(worker(registry, dsn)):
        over(db, number)
    assert outcomes(db, number) == ["completed"]


def test_an_outcome_that_the_database_refuses_becomes_a_failure_and_others_are_written(
    db: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int) -> None:
        if payload:
            snooze = Snooze(MICROSECOND)
            snooze._delay = timedelta(days=3_000_000)
            raise snooze

    numbers = enqueue_many(db, work, [1, 0])
    with running(worker(registry, dsn)):
        over(db, numbers[0], "dead")
        over(db, numbers[1])
    error = task(db, numbers[0]).last_error or ""
    assert error.startswith("the database refused to write that it snoozed")


@pytest.mark.parametrize("chain", ["commit and chain", "commit; begin"])
def test_a_transaction_that_a_handler_put_in_place_of_its_own_is_refused(
    effects: Connection, dsn: str, chain: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        effect(connection, attempt)
        connection.execute(chain.encode())

    number = enqueue(effects, work, 1)
    with running(worker(registry, dsn)):
        over(effects, number, "dead")
    assert "ended its transaction by itself" in (task(effects, number).last_error or "")


def test_a_handler_gets_a_session_as_if_it_were_new(effects: Connection, dsn: str) -> None:
    registry, seen = Registry(), list[Any]()
    effects.execute("create role actor_of_tests superuser")

    @registry.transactional("work", int)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        seen.extend(
            connection.execute(
                "select current_user, to_regclass('pg_temp.left_over'),"
                " (select count(*) from pg_locks where locktype = 'advisory'"
                "  and pid = pg_backend_pid())"
            )
        )
        connection.execute("create temp table left_over (x int)")
        connection.execute("select pg_advisory_lock(1)")
        connection.execute("set role actor_of_tests")
        connection.row_factory = dict_row  # type: ignore[assignment] # as an application may do

    numbers = enqueue_many(effects, work, [1, 2])
    with running(worker(registry, dsn, slots=1)):
        for number in numbers:
            over(effects, number)
    effects.execute("drop role actor_of_tests")
    assert seen == [("postgres", None, 0)] * 2


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("poll", timedelta(0), ValueError),
        ("poll", timedelta.max, ValueError),
        ("poll", 1, TypeError),
        ("reclaim_every", timedelta(seconds=-1), ValueError),
        ("grace", timedelta(seconds=-1), ValueError),
        ("give_up", timedelta(seconds=-1), ValueError),
        ("name", "a\0b", ValueError),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(
    setting: str, value: Any, error: type[Exception]
) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with pytest.raises(error, match=setting):
        worker(registry, "", **{setting: value})
