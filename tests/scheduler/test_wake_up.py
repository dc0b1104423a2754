"""An idle worker starts what is enqueued or falls due at once; a lost notification costs one poll.

The polls here are longer than any test may take, so what starts in time was not found by polling.
"""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import Attempt, Registry, Unique, Worker, enqueue, enqueue_unique
from scheduler.dispatch import next_due
from scheduler.keeper import Keeper
from scheduler.watchdog import Watchdog
from scheduler.wire import WorkerConnection
from tests.scheduler.working import WORKERS, listening, over, running, worker
from tests.waiting import wait_for

REGISTRY = Registry()
NEVER = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@REGISTRY.kind("work", int)
def work(attempt: Attempt, payload: int) -> None:
    """Does nothing."""


@REGISTRY.kind("other", int, queue="other")
def other(attempt: Attempt, payload: int) -> None:
    """Does nothing, in a queue of its own."""


def idle(dsn: str) -> Worker:
    """A worker that does not look by itself in the time of a test."""
    return worker(REGISTRY, dsn, poll=NEVER, reclaim_every=NEVER)


def test_an_idle_worker_starts_a_new_task_at_once(db: Connection, dsn: str) -> None:
    with running(idle(dsn)):
        listening(db)
        over(db, enqueue(db, work, 1))
        over(db, enqueue(db, other, 1))
        over(db, enqueue_unique(db, work, 1, Unique("key")).task)


def test_a_task_is_announced_when_its_transaction_commits(db: Connection, dsn: str) -> None:
    with running(idle(dsn)):
        listening(db)
        with psycopg.connect(dsn) as caller:
            number = enqueue(caller, work, 1)
            caller.commit()
        over(db, number)


def test_an_idle_worker_wakes_when_a_waiting_task_falls_due(db: Connection, dsn: str) -> None:
    number = enqueue(db, work, 1, delay=SECOND)
    with running(idle(dsn)):
        over(db, number)


def test_a_task_due_soon_shortens_a_sleep_that_has_begun(db: Connection, dsn: str) -> None:
    with running(idle(dsn)):
        listening(db)
        over(db, enqueue(db, work, 1, delay=SECOND))


def test_a_task_enqueued_while_nobody_listened_is_found_at_the_start(
    db: Connection, dsn: str
) -> None:
    number = enqueue(db, work, 1)
    with running(idle(dsn)):
        over(db, number)


def test_a_lost_notification_costs_one_poll(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(self: Keeper, connection: Connection) -> None:
        self._over.wait(0.05)

    monkeypatch.setattr(Keeper, "_listen", deaf)
    with running(worker(REGISTRY, dsn, poll=timedelta(seconds=0.3), reclaim_every=NEVER)):
        listening(db)
        over(db, enqueue(db, work, 1))


def test_a_keeper_whose_listen_gets_no_answer_makes_another_session(dsn: str) -> None:
    class Mute(WorkerConnection):
        """One whose first statement is never answered."""

        def execute(self, query: Any, *rest: Any, **named: Any) -> Any:
            return super().execute("select pg_sleep(600)", *rest, **named)

    made: list[Mute] = []

    def connect() -> WorkerConnection:
        made.append(Mute.connect(dsn, autocommit=True))
        return made[-1]

    watchdog = Watchdog(0.02, monotonic, lambda *_: None)
    keeper = Keeper(
        "w", connect, watchdog, monotonic, lambda *_: None, lambda: None, ["default"], 0.02, 0.2
    )
    watchdog.start()
    keeper.start()
    try:
        wait_for(lambda: len(made) > 1, "the keeper to give the first session up")
    finally:
        keeper.stop()
        keeper.join(30)
        watchdog.stop()
        watchdog.join(30)
    assert not keeper.is_alive()


def test_a_worker_listens_again_after_its_sessions_were_ended(db: Connection, dsn: str) -> None:
    with running(idle(dsn)):
        listening(db)
        gone = db.execute(
            f"select pg_terminate_backend(pid), pid from pg_stat_activity where {WORKERS}".encode()
        ).fetchall()
        pids = [pid for _, pid in gone]
        left = "select from pg_stat_activity where pid = any(%s)"
        wait_for(lambda: not db.execute(left, [pids]).fetchall(), "the sessions to end")
        listening(db)
        over(db, enqueue(db, work, 1))


def test_a_due_task_that_was_locked_when_a_worker_looked_is_started_once_it_is_free(
    db: Connection, dsn: str
) -> None:
    number = enqueue(db, work, 1)
    looks: list[int] = []
    looking = worker(
        *(REGISTRY, dsn),
        poll=NEVER,
        reclaim_every=NEVER,
        observe_claim=lambda tasks, seconds: looks.append(tasks),
    )
    with psycopg.connect(dsn) as other:
        other.execute("select from scheduler.tasks where id = %s for update", [number])
        with running(looking):
            # The first looks come with the start; then it goes on looking by itself.
            wait_for(lambda: len(looks) > 5, "the worker to look again")
            assert sum(looks) == 0
            other.rollback()
            over(db, number)


def test_the_next_due_time_is_the_earliest_of_what_this_worker_serves(
    db: Connection, clock: Clock
) -> None:
    kinds = {"work": SECOND}
    assert next_due(db, kinds) is None
    enqueue(db, work, 1, delay=60 * SECOND)
    enqueue(db, work, 1, delay=30 * SECOND)
    enqueue(db, other, 1, delay=SECOND)
    assert next_due(db, kinds) == 30
    assert next_due(db, {"work": SECOND, "other": SECOND}) == 1
    clock.advance(45 * SECOND)
    assert next_due(db, kinds) == -15


def test_only_tasks_due_soon_are_announced(db: Connection, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("listen scheduler_wake")
        enqueue(db, work, 1, delay=timedelta(minutes=1))
        enqueue(db, other, 1)
        assert [news.payload for news in listener.notifies(timeout=30, stop_after=1)] == ["other"]
