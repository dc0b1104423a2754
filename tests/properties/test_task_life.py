"""A task's whole life against a small model: any sequence of steps, the whole table after each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import Connection

from chaos.cluster.postgres import Postgres
from chaos.systems.mutants import MUTANTS, planted
from scheduler import Registry, RetryPolicy, cancel, discard, enqueue, requeue
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail, release, snooze
from scheduler.lease import Lease, reclaim, renew
from tests.clock import Clock

LEASE = timedelta(seconds=60)
RETRY = RetryPolicy(max_attempts=2, base=timedelta(seconds=10), factor=3.0)

spans = st.sampled_from([0, 1, 5, 10, 30, 59, 60, 61, 200]).map(lambda s: timedelta(seconds=s))
picks = st.integers(0, 1_000)


def ignore(attempt: object, payload: int) -> None:
    """Never run here."""


WORK = Registry().kind("work", int, lease=LEASE, retry=RETRY)(ignore)


@dataclass
class Model:
    """A task as it should be; `owner` and `expires` are set if and only if it runs."""

    status: str
    due: datetime
    attempts: int = 0
    token: int = 0
    owner: str | None = None
    expires: datetime | None = None

    def end(self, status: str) -> None:
        """Clear the lease."""
        self.status, self.owner, self.expires = status, None, None


class TaskLife(RuleBasedStateMachine):
    """Two databases' worth of truth: the real one and `tasks`, a dictionary."""

    db: Connection
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.db.execute("truncate scheduler.tasks, scheduler.run_log restart identity")
        self.tasks: dict[int, Model] = {}
        self.leases: list[Lease] = []  # all there ever were: the live, the crashed and the zombies
        self.log: list[tuple[int, int, str, str]] = []

    @initialize()
    def begin(self) -> None:
        """With work to do."""
        self.enqueue(timedelta(0))
        self.claim(1, "one")

    @rule(delay=spans)
    def enqueue(self, delay: timedelta) -> None:
        number = enqueue(self.db, WORK, 1, delay=delay)
        assert number not in self.tasks
        self.tasks[number] = Model("pending", self.clock.now + delay)

    @rule(limit=st.integers(1, 3), worker=st.sampled_from(["one", "two"]))
    def claim(self, limit: int, worker: str) -> None:
        due = sorted(
            (model.due, number)
            for number, model in self.tasks.items()
            if model.status == "pending" and model.due <= self.clock.now
        )
        owner = new_owner(worker)
        attempts = claim(self.db, owner, {"work": LEASE}, limit, 0.0)
        assert {attempt.task for attempt in attempts} == {number for _, number in due[:limit]}
        for attempt in attempts:
            model = self.tasks[attempt.task]
            model.status, model.owner = "running", owner
            model.expires = self.clock.now + LEASE
            model.attempts += 1
            model.token += 1
            assert attempt.lease == (attempt.task, model.token, owner)
            assert attempt.number == model.attempts
            self.leases.append(attempt.lease)

    # Every write may come from any lease there ever was; only one that is still held may count.

    def held(self, lease: Lease) -> Model | None:
        model = self.tasks[lease.task]
        return model if (model.token, model.owner) == (lease.token, lease.owner) else None

    def wrote(self, lease: Lease, outcome: str) -> None:
        self.log.append((*lease, outcome))

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def complete(self, pick: int) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        model = self.held(lease)
        assert complete(self.db, [lease]) == ({lease.task} if model else set())
        if model:
            model.end("completed")
            self.wrote(lease, "completed")

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def fail(self, pick: int) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        model = self.held(lease)
        answer = fail(self.db, [lease], ["no"])
        if model:
            model.end("dead" if model.attempts == RETRY.max_attempts else "pending")
            if model.status == "pending":
                model.due = self.clock.now + RETRY.delay(model.attempts, *lease[:2])
            self.wrote(lease, "failed")
        assert answer == ({lease.task: model.status} if model else {})

    @precondition(lambda self: self.leases)
    @rule(pick=picks, delay=spans)
    def snooze(self, pick: int, delay: timedelta) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        model = self.held(lease)
        assert snooze(self.db, [lease], [delay]) == ({lease.task} if model else set())
        if model:
            model.end("pending")
            model.attempts -= 1
            model.due = self.clock.now + delay
            self.wrote(lease, "snoozed")

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        model = self.held(lease)
        assert release(self.db, [lease]) == ({lease.task} if model else set())
        if model:
            model.end("pending")
            model.attempts -= 1
            self.wrote(lease, "released")

    @precondition(lambda self: self.leases)
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        model = self.held(lease)
        expires = self.clock.now + LEASE
        assert renew(self.db, [lease], [LEASE]) == ({lease: expires} if model else {})
        if model:
            model.expires = expires

    @precondition(lambda self: any(not self.held(lease) for lease in self.leases))
    @rule(pick=picks)
    def a_zombie_writes(self, pick: int) -> None:
        """Everything it can, preferably while another runs its task."""
        lost = [lease for lease in self.leases if not self.held(lease)]
        lost.sort(key=lambda lease: self.tasks[lease.task].status != "running")
        lease = lost[min(pick, len(lost) - 1) // 2]
        assert complete(self.db, [lease]) == release(self.db, [lease]) == set()
        assert snooze(self.db, [lease], [LEASE]) == set()
        assert fail(self.db, [lease], ["late"]) == {}
        assert renew(self.db, [lease], [LEASE]) == {}

    # A crash is no step: its lease is never used again, and time goes on.

    @rule(by=spans)
    def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    @rule()
    def reclaim(self) -> None:
        expired = {
            number: model
            for number, model in self.tasks.items()
            if model.expires is not None and model.expires < self.clock.now
        }
        taken = reclaim(self.db, 1_000)
        assert {each.lease.task for each in taken} == expired.keys()
        for each in taken:
            model = expired[each.lease.task]
            assert (each.lease.token, each.lease.owner) == (model.token, model.owner)
            model.end("dead" if model.attempts == RETRY.max_attempts else "pending")
            assert each.status == model.status
            self.wrote(each.lease, "reclaimed")

    @rule()
    def take_over(self) -> None:
        """Every holder crashes or sleeps past its lease, and another worker claims: zombies."""
        self.clock.advance(LEASE + timedelta(seconds=1))
        self.reclaim()
        self.claim(3, "two")

    # What people do.

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        number = 1 + pick % len(self.tasks)
        model = self.tasks[number]
        was = model.status
        answer = cancel(self.db, [number])
        assert answer == ({number: was} if was in ("pending", "running") else {})
        if answer:
            if was == "running":
                assert model.owner is not None
                self.wrote(Lease(number, model.token, model.owner), "cancelled")
            model.end("cancelled")

    @precondition(lambda self: any(model.status == "dead" for model in self.tasks.values()))
    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        dead = [number for number, model in self.tasks.items() if model.status == "dead"]
        number = dead[pick % len(dead)]
        assert requeue(self.db, [number]) == [number]
        model = self.tasks[number]
        model.status, model.attempts, model.due = "pending", 0, self.clock.now

    @precondition(lambda self: any(model.status == "dead" for model in self.tasks.values()))
    @rule(pick=picks)
    def discard(self, pick: int) -> None:
        dead = [number for number, model in self.tasks.items() if model.status == "dead"]
        number = dead[pick % len(dead)]
        assert discard(self.db, [number]) == [number]
        self.tasks[number].status = "discarded"

    @precondition(lambda self: self.tasks)
    @rule(pick=picks)
    def only_dead_tasks_are_requeued_or_discarded(self, pick: int) -> None:
        number = 1 + pick % len(self.tasks)
        if self.tasks[number].status != "dead":
            assert requeue(self.db, [number]) == discard(self.db, [number]) == []

    @invariant()
    def the_table_is_the_model(self) -> None:
        rows = self.db.execute(
            "select id, status, next_run_at, attempts, lease_token, lease_owner, lease_expires_at"
            " from scheduler.tasks"
        ).fetchall()
        assert {number: Model(*columns) for number, *columns in rows} == self.tasks

    @invariant()
    def the_run_log_has_each_ended_attempt_once(self) -> None:
        rows = self.db.execute(
            "select task_id, lease_token, lease_owner, outcome from scheduler.run_log"
        ).fetchall()
        assert sorted(rows) == sorted(self.log)


@pytest.fixture(scope="module")
def machine(migrated: Postgres) -> Iterator[type[TaskLife]]:
    """The machine over a database of its own, which its examples share."""
    name = f"test_{uuid4().hex}"
    migrated.create_database(name, template="scheduler_template")
    with closing(psycopg.connect(migrated.dsn(name), autocommit=True)) as connection:

        class Bound(TaskLife):
            db = connection
            clock = Clock(connection)

        yield Bound
    migrated.drop_database(name)


MODEST: dict[str, Any] = {"deadline": None, "database": None, "stateful_step_count": 30}


@pytest.mark.slow
def test_a_task_lives_as_the_model_says(machine: type[TaskLife]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=80, **MODEST))


# What one session alone cannot show, and what the model has no word for: the text of an error.
BEYOND = {"claim-without-lock", "keeps-the-first-error"}


@pytest.mark.parametrize("mutant", sorted(MUTANTS.keys() - BEYOND))
def test_the_machine_catches_a_planted_bug(machine: type[TaskLife], mutant: str) -> None:
    search = settings(
        max_examples=200,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        **MODEST,
    )
    with planted(MUTANTS[mutant]), pytest.raises((AssertionError, psycopg.Error)):
        run_state_machine_as_test(machine, settings=search)
