"""Our own scheduler as a system under test, and its mutants."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg import Connection

import scheduler
from chaos.history.events import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DISCARDED,
    PENDING,
    RUNNING,
    Effect,
    Ended,
    Final,
    Policy,
    Row,
    Rules,
    Step,
)
from chaos.history.journal import Journal
from chaos.history.witness import Watched, micros
from chaos.systems.mutants import Mutant, planted
from chaos.systems.system import Order, WorkerSettings
from chaos.workload import Behaviour, Job, perform
from scheduler import Attempt, Kind, Registry, RetryPolicy, Snooze, Worker
from scheduler.lease import Lease

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


class Leaseproof:
    """The adapter for our scheduler; with a mutant, for that scheduler with one bug in it."""

    def __init__(self, mutant: Mutant | None = None) -> None:
        self._mutant = mutant

    @property
    def name(self) -> str:
        """`leaseproof`, or `leaseproof:<mutant>`."""
        return "leaseproof" if self._mutant is None else f"leaseproof:{self._mutant.name}"

    def rules(self, settings: WorkerSettings) -> Rules:
        """The transition table of the scheduler's first migration; a claim fills free slots."""
        return replace(RULES, claim_limit=settings.slots + settings.prefetch)

    def install(self, dsn: str) -> None:
        """Migrate, and create the table that transactional handlers write to."""
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
                    "last_error",
                ),
                _row,
                key="id",
            ),
            Watched(
                "scheduler.run_log",
                (
                    *("task_id", "lease_token", "lease_owner", "attempt"),
                    *("claimed_at", "finished_at", "outcome", "error"),
                ),
                _ended,
            ),
            Watched("public.effects", ("id", "task", "token"), _effect),
        )

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Enqueue through the scheduler's client, in one transaction."""
        with psycopg.connect(dsn) as connection:
            return [
                scheduler.enqueue(
                    connection, _kind(order), order.job, delay=timedelta(seconds=order.delay)
                )
                for order in orders
            ]

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
            Final(task, status, token, attempts, error, payloads.get(task, ""), _digest(payload))
            for task, status, token, attempts, error, payload in rows
        ]

    def digest(self, job: Job) -> str:
        """A hash of the payload's canonical JSON."""
        return _digest(job.payload())

    def work(self, dsn: str, name: str, settings: WorkerSettings, journals: Path) -> None:
        """Run a `Worker` whose every step goes into the journal."""
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        journal = Journal(journals, name)
        with planted(self._mutant):
            registry = _registry(journal, timedelta(seconds=settings.lease))

            def observe(what: str, lease: Lease, detail: str) -> None:
                journal.note(what, lease.task, lease.token, lease.owner, detail)

            worker = Worker(
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


def worker_of(owner: str) -> str:
    """The name of the worker in a lease owner."""
    return owner.rsplit("/", 1)[0]


def _registry(journal: Journal, lease: timedelta) -> Registry:
    registry = Registry()

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
        registry.kind(behaviour, Job, lease=lease)(run)
    registry.transactional("transactional", Job, lease=lease)(run_in_transaction)
    return registry


def _kind(order: Order) -> Kind[Job]:
    def never(attempt: Attempt, job: Job) -> None:
        raise AssertionError("this kind only enqueues")

    retry = RetryPolicy(order.max_attempts, base=BACKOFF_BASE, cap=BACKOFF_CAP)
    return Registry().kind(order.job.behaviour, Job, retry=retry)(never)


def _digest(payload: object) -> str:
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row(values: Mapping[str, str | None]) -> Row:
    return Row(
        task=int(_text(values, "id")),
        kind=_text(values, "kind"),
        state=_text(values, "status"),
        due=_time(values, "next_run_at"),
        attempts=int(_text(values, "attempts")),
        max_attempts=int(_text(values, "max_attempts")),
        token=int(_text(values, "lease_token")),
        owner=values["lease_owner"],
        expires=micros(values["lease_expires_at"]),
        claimed_at=micros(values["claimed_at"]),
        policy=Policy(
            float(_text(values, "backoff_base")),
            float(_text(values, "backoff_factor")),
            float(_text(values, "backoff_cap")),
            float(_text(values, "backoff_jitter")),
        ),
        error=values["last_error"],
    )


def _ended(values: Mapping[str, str | None]) -> Ended:
    return Ended(
        task=int(_text(values, "task_id")),
        token=int(_text(values, "lease_token")),
        owner=_text(values, "lease_owner"),
        attempt=int(_text(values, "attempt")),
        claimed_at=_time(values, "claimed_at"),
        finished_at=_time(values, "finished_at"),
        outcome=_text(values, "outcome"),
        error=values["error"],
    )


def _effect(values: Mapping[str, str | None]) -> Effect:
    return Effect(int(_text(values, "task")), int(_text(values, "token")))


def _text(values: Mapping[str, str | None], column: str) -> str:
    value = values[column]
    if value is None:
        raise ValueError(f"column {column} is null, which its table forbids")
    return value


def _time(values: Mapping[str, str | None], column: str) -> int:
    value = micros(_text(values, column))
    if value is None:
        raise ValueError(f"column {column} has no time")
    return value
