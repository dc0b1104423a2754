"""Our own scheduler as a system under test, and what is planted in it."""

from __future__ import annotations

import logging
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

import scheduler
from chaos.history.events import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DISCARDED,
    PENDING,
    RUNNING,
    Final,
    Recurrence,
    Rules,
    Step,
    worker_of,
)
from chaos.history.journal import Journal
from chaos.history.watched import Watched
from chaos.mutants import Change, planted
from chaos.systems import rows
from chaos.systems.moments import Failpoints
from chaos.systems.replies import LostReplies
from chaos.systems.system import FEATURES, Operation, Order, RefusedError, WorkerSettings
from chaos.workload import Behaviour, Job, digest, perform
from scheduler import (
    Attempt,
    CapReachedError,
    Every,
    Kind,
    Priority,
    Registry,
    RetryPolicy,
    Snooze,
    Unique,
    Worker,
    pace,
)
from scheduler.access import limit_source
from scheduler.lease import Lease
from scheduler.roles import create_roles
from scheduler.session import HandlerConnection
from scheduler.wire import WorkerConnection

SNOOZE = timedelta(milliseconds=200)
RULES = Rules(
    steps=frozenset(
        {
            Step(PENDING, RUNNING, None),
            Step(RUNNING, RUNNING, None),
            Step(RUNNING, COMPLETED, "completed"),
            Step(RUNNING, PENDING, "failed"),
            Step(RUNNING, PENDING, "released"),
            Step(RUNNING, PENDING, "snoozed"),
            Step(RUNNING, PENDING, "reclaimed"),
            Step(RUNNING, DEAD, "failed"),
            Step(RUNNING, DEAD, "reclaimed"),
            Step(RUNNING, CANCELLED, "cancelled"),
            Step(PENDING, CANCELLED, None),
            Step(DEAD, PENDING, None),
            Step(DEAD, DISCARDED, None),
        }
    ),
    gives_back=frozenset({"released", "snoozed"}),
    claim_limit=0,  # what the workers of a run are set to
    snooze_delay=SNOOZE // timedelta(microseconds=1),
)

PLAIN: tuple[Behaviour, ...] = (
    *("quick", "slow", "flaky", "failing", "poison", "snoozing", "hog", "hostile"),
)
BACKOFF_BASE = timedelta(milliseconds=100)
BACKOFF_CAP = timedelta(seconds=1)
RECURRING = RetryPolicy(20, base=BACKOFF_BASE, cap=BACKOFF_CAP)  # others have their order's
OF_NO_CLIENT = -1  # the number of a job that recurs
# Seconds, and a poll at most: what docs/operations.md promises for tasks below floors.
FOUND_WITHIN = 1.0
UNDER_WAY = 0.5  # seconds more, for the look itself and for claims that were sent before it
IN_HAND = 0.03  # seconds that a client keeps a transaction open, so that its rivals meet it


class Leaseproof:
    """The adapter for our scheduler, as it is or with one change: a bug, or one that is none."""

    def __init__(self, change: Change | None = None) -> None:
        self.change = change

    @property
    def offers(self) -> frozenset[str]:
        """Everything there is."""
        return frozenset(get_args(Behaviour)) | FEATURES

    def rules(self, settings: WorkerSettings) -> Rules:
        """The transition table of the scheduler's first migration; how much a claim may take, and
        for how long it may pass a task over."""
        return replace(
            RULES,
            claim_limit=settings.slots
            + (pace.MOST if settings.prefetch is None else settings.prefetch),
            limits=settings.limits,
            schedules={
                name: Recurrence(timetable.every * 1_000_000, timetable.missed)
                for name, timetable in settings.schedules.items()
            },
            passed_over=round(_passed_over(settings) * 1_000_000),
        )

    def install(self, dsn: str) -> None:
        """Migrate, and create the table that transactional handlers write to."""
        with planted(self.change):
            scheduler.migrate(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "create table effects (task bigint not null, token bigint not null,"
                " id bigint generated always as identity primary key)"
            )

    def watched(self) -> tuple[Watched, ...]:
        """Tasks without their payloads, the run log, and the effects."""
        return (
            Watched(
                "scheduler.tasks",
                (
                    *("id", "kind", "status", "next_run_at", "attempts", "max_attempts"),
                    *("lease_token", "lease_owner", "lease_expires_at", "claimed_at"),
                    *("backoff_base", "backoff_factor", "backoff_cap", "backoff_jitter"),
                    *("last_error", "source", "counted", "unique_key", "unique_until"),
                    *("schedule", "occurrence", "priority"),
                ),
                rows.row,
                key="id",
            ),
            Watched(
                "scheduler.run_log",
                (
                    *("task_id", "lease_token", "lease_owner", "attempt"),
                    *("claimed_at", "finished_at", "outcome", "error"),
                ),
                rows.ended,
            ),
            Watched("public.effects", ("id", "task", "token"), rows.effect),
        )

    def cap(self, dsn: str, source: str, most: int) -> None:
        """A source is a role that logs in, and a member of the group role that may enqueue."""
        create_roles(dsn)
        with psycopg.connect(dsn) as connection:
            role = sql.Identifier(source)
            connection.execute(sql.SQL("create role {} login").format(role))
            connection.execute(sql.SQL("grant scheduler_enqueue to {}").format(role))
            limit_source(connection, source, most)

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Enqueue through the scheduler's client, in one transaction."""
        with _as_source(dsn, orders[0].source) as connection:
            tasks = [
                scheduler.enqueue(
                    connection,
                    _kind(order),
                    order.job,
                    delay=timedelta(seconds=order.delay),
                    priority=Priority(order.priority),
                )
                for order in orders
            ]
            if orders[0].source is not None:
                time.sleep(IN_HAND)
        return tasks

    def enqueue_under_key(self, dsn: str, order: Order, keep: bool) -> tuple[int, bool]:
        """Enqueue through the scheduler's client, in a transaction of its own."""
        until = order.until if isinstance(order.until, str) else timedelta(seconds=order.until)
        unique = Unique(order.key or "", until)
        with _as_source(dsn, order.source) as connection:
            answer = scheduler.enqueue_unique(
                connection,
                _kind(order),
                order.job,
                unique,
                delay=timedelta(seconds=order.delay),
                priority=Priority(order.priority),
            )
            if not keep:
                time.sleep(IN_HAND)
                connection.rollback()
        return answer

    def find(self, dsn: str, numbers: Sequence[int]) -> dict[int, list[int]]:
        """The number is in the payload."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number, task in connection.execute(
                "select (payload ->> 'number')::int, id from scheduler.tasks"
                " where (payload ->> 'number')::int = any(%s) order by id",
                [list(numbers)],
            ):
                found[number].append(task)
        return dict(found)

    def holders(self, dsn: str) -> dict[str, list[int]]:
        """Read off the running rows: an owner is the worker's name and a nonce."""
        held: defaultdict[str, list[int]] = defaultdict(list)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for owner, task in connection.execute(
                "select lease_owner, id from scheduler.tasks"
                " where status = 'running' and lease_expires_at > scheduler.now()"
            ):
                held[worker_of(owner)].append(task)
        return dict(held)

    def in_transaction(self, dsn: str) -> list[str]:
        """A session bears its worker's name, and only handlers leave a transaction idle."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(
                "select distinct substr(application_name, length('scheduler ') + 1)"
                " from pg_stat_activity where datname = current_database()"
                " and application_name like 'scheduler %' and state = 'idle in transaction'"
            ).fetchall()
        return sorted(name for (name,) in found)

    def tasks(self, dsn: str, state: str) -> list[int]:
        """The newest few: what an operator looks at."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(
                "select id from scheduler.tasks where status = %s order by id desc limit 100",
                [state],
            ).fetchall()
        return [task for (task,) in found]

    def operate(self, dsn: str, what: Operation, tasks: Sequence[int]) -> list[int]:
        """Through the scheduler's own functions."""
        with closing(psycopg.connect(dsn)) as connection, connection:
            match what:
                case "cancel":
                    return list(scheduler.cancel(connection, tasks))
                case "requeue":
                    return scheduler.requeue(connection, tasks)
                case "discard":
                    return scheduler.discard(connection, tasks)

    def lock_due(self, session: Connection, most: int) -> int:
        """In the order in which a claim of one kind would take them."""
        locked = session.execute(
            "select from scheduler.tasks"
            " where status = 'pending' and next_run_at <= scheduler.now()"
            " order by next_run_at, id limit %s for update skip locked",
            [most],
        )
        return locked.rowcount

    def unfinished(self, dsn: str) -> int:
        """Tasks that are pending or running."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(
                "select count(*) from scheduler.tasks where status in ('pending', 'running')"
            ).fetchone()
        return int(row[0]) if row is not None else 0

    def finals(self, dsn: str, payloads: dict[int, str]) -> list[Final]:
        """One plain SELECT of the whole table."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            rows = connection.execute(
                "select id, status, lease_token, attempts, last_error, payload"
                " from scheduler.tasks order by id"
            ).fetchall()
        return [
            Final(task, status, token, attempts, error, payloads.get(task, ""), digest(payload))
            for task, status, token, attempts, error, payload in rows
        ]

    def work(self, dsn: str, name: str, settings: WorkerSettings, journals: Path) -> None:
        """Run a `Worker` whose every step goes into the journal."""
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        journal = Journal(journals, name)
        with planted(self.change):
            registry = _registry(journal, settings)

            def observe(what: str, lease: Lease, detail: str) -> None:
                if what == "settled" and detail == "dead":
                    detail = "failed"  # as the run log has it: dead is what became of the task
                if what == "claimed":
                    detail = str(time.time_ns() // 1000)
                if what == "reclaimed":
                    detail = detail.rpartition(" ")[2]  # of the kind and the task's new status
                journal.note(what, lease.task, lease.token, lease.owner, detail)

            worker = _Worker(
                LostReplies(journals, name, journal),
                Failpoints(journals, name, journal, settings.lease),
                registry,
                dsn,
                name=name,
                slots=settings.slots,
                prefetch=settings.prefetch,
                poll=timedelta(seconds=settings.poll),
                reclaim_every=timedelta(seconds=settings.reclaim_every),
                grace=timedelta(seconds=settings.grace),
                observe=observe,
            )
            signal.signal(signal.SIGTERM, lambda *_: worker.stop())
            worker.run()


class _Worker(Worker):
    """A worker whose sessions can be made to lose replies, and which can be caught in a write."""

    def __init__(
        self, replies: LostReplies, failpoints: Failpoints, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._replies = replies
        self._failpoints = failpoints

    def _connect(self) -> WorkerConnection:
        return self._failpoints.on(self._replies.on(super()._connect()))

    def _connect_handlers(self) -> HandlerConnection:
        return self._replies.on(super()._connect_handlers())


def _passed_over(settings: WorkerSettings) -> float:
    """For how many seconds a due task may be passed over."""
    # A claim of limited kinds commits apart. A worker that is stopped before that has its rows
    # locked until the server ends its session, a lease later, and others have to pass them over.
    locked = settings.lease if settings.limits else 0.0
    return min(settings.poll, FOUND_WITHIN) + UNDER_WAY + locked


@contextmanager
def _as_source(dsn: str, source: str | None) -> Iterator[Connection]:
    """A transaction of this source, or of the run itself."""
    dsn = make_conninfo(dsn, **({"user": source} if source else {}))
    try:
        # By itself a session whose COMMIT failed stays open.
        with closing(psycopg.connect(dsn)) as session, session:
            yield session
    except CapReachedError as error:
        raise RefusedError(str(error)) from error


def _registry(journal: Journal, settings: WorkerSettings) -> Registry:
    registry = Registry()
    lease, limits = timedelta(seconds=settings.lease), settings.limits

    def run(attempt: Attempt, job: Job) -> None:
        def effect() -> None:
            journal.note("effect", attempt.task, attempt.token, attempt.owner)

        perform(job, attempt.number, effect, lambda: Snooze(SNOOZE), attempt.token - 1)

    def run_in_transaction(attempt: Attempt, job: Job, connection: Connection) -> None:
        def effect() -> None:
            connection.execute(
                "insert into effects (task, token) values (%s, %s)", [attempt.task, attempt.token]
            )

        perform(job, attempt.number, effect, lambda: Snooze(SNOOZE), attempt.token - 1)

    for behaviour in PLAIN:
        if behaviour in settings.lacks:
            continue
        limit = limits.get(behaviour)
        registry.kind(behaviour, Job, lease=lease, retry=RECURRING, limit=limit)(run)
    if "transactional" not in settings.lacks:
        limit = limits.get("transactional")
        registry.transactional("transactional", Job, lease=lease, retry=RECURRING, limit=limit)(
            run_in_transaction
        )
    for name, (kind, seconds, every, missed) in settings.schedules.items():
        job = Job(OF_NO_CLIENT, kind, seconds, 0)
        rule = Every(timedelta(seconds=every))
        registry.schedule(name, registry[kind], job, rule, missed=missed)
    return registry


def _kind(order: Order) -> Kind[Job]:
    def never(attempt: Attempt, job: Job) -> None:
        raise AssertionError("this kind only enqueues")

    retry = RetryPolicy(order.max_attempts, base=BACKOFF_BASE, cap=BACKOFF_CAP)
    return Registry().kind(order.job.behaviour, Job, retry=retry)(never)
