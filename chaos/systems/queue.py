"""A queue of your own as a system under test, told by plain data and two functions.

What the harness has to find out about tasks it reads from the task table, through the same function
that reads the witness's rows. That is a look at the whole table each time: for some ten thousand
tasks, not for a million.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection, sql

from chaos.history.events import PENDING, RUNNING, Final, Row, Rules, Step, worker_of
from chaos.history.journal import Journal
from chaos.history.watched import Watched, micros
from chaos.systems.system import NotOfferedError, Operation, Order, WorkerSettings
from chaos.workload import Behaviour, Job, PlannedFailure, digest, perform

MOST_SHOWN = 100  # tasks that an operator looks at


class _Task(NamedTuple):
    row: Row
    payload: Any


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue whose tasks are rows of one table, each with its job as JSON.

    schema: SQL that creates its tables in an empty database. table: the task table; its `key` is
    set. log: the table that gets a row for each end of an attempt, in the transaction that ends it.
    payload: the column of the task table with the job, json or jsonb. steps, gives_back: what the
    queue promises, as in `chaos.history.events.Rules`. behaviours: what its workers can do.
    passed_over: for how many seconds later tasks of the same kind and priority may be claimed
    before a due one; None if no order is promised.

    insert: enqueues orders in the connection's transaction, and returns the tasks' ids in order.
    worker: runs tasks until SIGTERM. It is given the connection string, its name, its settings and
    its journal. It calls `attempt` for each task. A lease's owner is a text that begins with the
    worker's name and a slash, and is another for each claim; its database sessions have the
    worker's name as `application_name`. It may claim `slots` and `prefetch` tasks at once.

    Limits, schedules, keys, sources, priorities and operators are not for such a queue: write a
    `System` for one that has them.
    """

    schema: str
    table: Watched
    log: Watched
    payload: str
    steps: frozenset[Step]
    insert: Callable[[Connection, Sequence[Order]], list[int]]
    worker: Callable[[str, str, WorkerSettings, Journal], None]
    gives_back: frozenset[str] = frozenset()
    behaviours: tuple[Behaviour, ...] = ("quick", "slow", "flaky", "failing", "poison")
    passed_over: float | None = None

    @property
    def offers(self) -> frozenset[str]:
        """Behaviours only."""
        return frozenset(self.behaviours)

    def rules(self, settings: WorkerSettings) -> Rules:
        """Its steps; a claim takes at most slots and prefetch, which is told: it is not `paced`."""
        return Rules(
            self.steps,
            self.gives_back,
            settings.slots + (settings.prefetch or 0),
            passed_over=None if self.passed_over is None else round(self.passed_over * 1e6),
        )

    def install(self, dsn: str) -> None:
        """Run the schema."""
        with psycopg.connect(dsn) as connection:
            connection.execute(self.schema.encode())

    def watched(self) -> tuple[Watched, ...]:
        """The tasks and the log."""
        return self.table, self.log

    def cap(self, dsn: str, source: str, most: int) -> None:
        """Raises NotOfferedError."""
        raise NotOfferedError("this queue has no sources")

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Insert in one transaction."""
        # By itself a session whose COMMIT failed stays open.
        with closing(psycopg.connect(dsn)) as connection, connection:
            return self.insert(connection, orders)

    def enqueue_under_key(self, dsn: str, order: Order, keep: bool) -> tuple[int, bool]:
        """Raises NotOfferedError."""
        raise NotOfferedError("this queue has no keys")

    def find(self, dsn: str, numbers: Sequence[int]) -> dict[int, list[int]]:
        """By the number in the payload."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for row, payload in self._every(dsn):
            if payload["number"] in numbers:
                found[payload["number"]].append(row.task)
        return dict(found)

    def holders(self, dsn: str) -> dict[str, list[int]]:
        """The running tasks whose lease is not over by the database's clock, by owner."""
        held: defaultdict[str, list[int]] = defaultdict(list)
        with psycopg.connect(dsn, autocommit=True) as session:
            now, tasks = _now(session), self._all(session)
        for row, _ in tasks:
            if row.state == RUNNING and row.owner is not None and (row.expires or 0) > now:
                held[worker_of(row.owner)].append(row.task)
        return dict(held)

    def in_transaction(self, dsn: str) -> list[str]:
        """Sessions that idle in a transaction, by the name they bear."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(
                "select distinct application_name from pg_stat_activity"
                " where datname = current_database() and state = 'idle in transaction'"
            ).fetchall()
        return sorted(name for (name,) in found)

    def tasks(self, dsn: str, state: str) -> list[int]:
        """The newest of them."""
        found = [row.task for row, _ in self._every(dsn) if row.state == state]
        return sorted(found)[-MOST_SHOWN:]

    def operate(self, dsn: str, what: Operation, tasks: Sequence[int]) -> list[int]:
        """Raises NotOfferedError."""
        raise NotOfferedError("this queue has no operators")

    def lock_due(self, session: Connection, most: int) -> int:
        """Those that a plain queue would take first."""
        now = _now(session)
        due = [row for row, _ in self._all(session) if row.state == PENDING and row.due <= now]
        oldest = sorted(due, key=lambda row: (row.due, row.task))[:most]
        return session.execute(
            sql.SQL("select from {} where {} = any(%s) for update skip locked").format(
                sql.Identifier(*self.table.table.split(".")), sql.Identifier(self.table.key or "")
            ),
            [[row.task for row in oldest]],
        ).rowcount

    def unfinished(self, dsn: str) -> int:
        """Tasks that are pending or running."""
        return sum(row.state in (PENDING, RUNNING) for row, _ in self._every(dsn))

    def finals(self, dsn: str, payloads: dict[int, str]) -> list[Final]:
        """One plain SELECT of the whole table."""
        return [
            Final(
                row.task,
                row.state,
                row.token,
                row.attempts,
                row.error,
                payloads.get(row.task, ""),
                digest(payload),
            )
            for row, payload in self._every(dsn)
        ]

    def work(self, dsn: str, name: str, settings: WorkerSettings, journals: Path) -> None:
        """Run a worker with a journal of its own."""
        self.worker(dsn, name, settings, Journal(journals, name))

    def _every(self, dsn: str) -> list[_Task]:
        with psycopg.connect(dsn, autocommit=True) as session:
            return self._all(session)

    def _all(self, session: Connection) -> list[_Task]:
        """Every task as the witness would read it, with its payload."""
        columns = self.table.columns
        query = sql.SQL("select {}, {} from {} order by {}").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(one)) for one in columns),
            sql.Identifier(self.payload),
            sql.Identifier(*self.table.table.split(".")),
            sql.Identifier(self.table.key or ""),
        )
        tasks = []
        for *texts, payload in session.execute(query):
            row = self.table.read(dict(zip(columns, texts, strict=True)))
            assert isinstance(row, Row)  # the table has a key
            tasks.append(_Task(row, payload))
        return tasks


def attempt(
    journal: Journal, job: Job, number: int, task: int, token: int, owner: str
) -> str | None:
    """Do what a job says, in its attempt of this number, and note it; what it failed with, if so.

    For the worker of such a queue: completing or failing the task is left to it.
    """
    journal.note("started", task, token, owner)
    error = None
    try:
        perform(job, number, lambda: journal.note("effect", task, token, owner), _no_snooze, 0)
    except PlannedFailure as failure:
        error = str(failure)
    journal.note("finished", task, token, owner, "completed" if error is None else "failed")
    return error


def _no_snooze() -> Exception:
    return NotOfferedError("this queue has no snooze")


def _now(session: Connection) -> int:
    [(now,)] = session.execute("select clock_timestamp()::text").fetchall()
    return micros(now) or 0
