"""What the harness asks of a queue: the adapter that each system under test has.

To run and judge scenarios nothing else in the harness knows a system. `work` runs in a worker
process of its own; everything else in the harness's process. `chaos.systems.queue.Queue` makes one
of plain data and two functions; this is for those who need more.

What holds a lease is told by its owner, a text that begins with the worker's name and a slash, and
is another for each claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from psycopg import Connection

from chaos.history.events import Final, Rules
from chaos.history.watched import Watched
from chaos.workload import Behaviour, Job

Until = Literal["started", "finished"] | float
Missed = Literal["skip", "once", "all"]
Operation = Literal["cancel", "requeue", "discard"]


# What not every queue has. A scenario can ask for these, and for behaviours of tasks.
Feature = Literal[
    "keys", "sources", "priorities", "limits", "schedules", "operators", "lacks", "paced"
]
FEATURES: frozenset[str] = frozenset(get_args(Feature))


class NotOfferedError(Exception):
    """A scenario asks for what the system under test does not have; the message says what."""


class RefusedError(Exception):
    """The source has as many tasks outstanding as it may: nothing was enqueued."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job to enqueue, with how long it waits before it is due and how often it may be tried.

    key: the unique key to enqueue it under, if any. until: how long a task keeps that key: until it
    is `started` or `finished`, or through a period of so many seconds. rolls_back: whether the
    client first does the same in a transaction that it rolls back. source: as whom to enqueue it,
    if not as the run itself. priority: from 0, which can wait, to 3.
    """

    job: Job
    delay: float  # seconds
    max_attempts: int
    key: str | None = None
    until: Until = "finished"
    rolls_back: bool = False
    source: str | None = None
    priority: int = 1


class Timetable(NamedTuple):
    """A schedule: each `every` seconds a task that works for `seconds`.

    kind: a behaviour. missed: what becomes of the runs that nobody could start in time, as in
    `chaos.history.events.Recurrence`.
    """

    kind: Behaviour
    seconds: float
    every: int
    missed: Missed


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How the workers of a run are set up. Times in seconds.

    prefetch: how many tasks a worker may claim beyond its slots; None leaves that to the worker.
    limits: how many tasks of a kind may run at once, in all workers together. schedules: what
    recurs, by name. lacks: kinds that this worker's code does not know yet.
    """

    slots: int
    prefetch: int | None
    lease: float
    poll: float
    reclaim_every: float
    grace: float
    limits: Mapping[str, int] = field(default_factory=dict)
    schedules: Mapping[str, Timetable] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


@runtime_checkable
class System(Protocol):
    """A queue under test."""

    @property
    def offers(self) -> frozenset[str]:
        """What a scenario may ask of it: behaviours that its workers have, and FEATURES."""

    def rules(self, settings: WorkerSettings) -> Rules:
        """What it promises with workers set up so: its legal steps, how much a claim may take."""

    def install(self, dsn: str) -> None:
        """Create its tables in an empty database."""

    def watched(self) -> tuple[Watched, ...]:
        """The tables that the witness watches and how to read their rows."""

    def cap(self, dsn: str, source: str, most: int) -> None:
        """Let a source enqueue, and have so many tasks outstanding at most."""

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Enqueue orders of one source, all or none, and return the task ids in order.

        If it is not the run itself the transaction stays open for a moment, for others to meet it.
        Raises RefusedError if the source may not have so many outstanding.
        """

    def enqueue_under_key(self, dsn: str, order: Order, keep: bool) -> tuple[int, bool]:
        """Enqueue unless a task stands under the order's key: which one stands, and if it is new.

        If it is not to be kept the transaction stays open for a moment and is rolled back. Raises
        RefusedError as `enqueue` does.
        """

    def find(self, dsn: str, numbers: Sequence[int]) -> dict[int, list[int]]:
        """The ids of all tasks there are, by their job's number, of these jobs."""

    def holders(self, dsn: str) -> dict[str, list[int]]:
        """Which worker holds valid leases on which tasks, by worker name, at this moment."""

    def in_transaction(self, dsn: str) -> list[str]:
        """Which workers are in a transaction of a handler that does not ask the server anything at
        this moment, by name."""

    def tasks(self, dsn: str, state: str) -> list[int]:
        """Some of the tasks that are in this state now."""

    def operate(self, dsn: str, what: Operation, tasks: Sequence[int]) -> list[int]:
        """Cancel, requeue or discard tasks, as an operator does; which of them it was done to."""

    def lock_due(self, session: Connection, most: int) -> int:
        """Lock so many of the due tasks, the oldest, in the session's transaction; how many."""

    def unfinished(self, dsn: str) -> int:
        """How many tasks are neither over nor dead."""

    def finals(self, dsn: str, payloads: dict[int, str]) -> list[Final]:
        """Every task as it stands; `payloads` has the `digest` of what was enqueued, by id."""

    def work(self, dsn: str, name: str, settings: WorkerSettings, journals: Path) -> None:
        """Run tasks until SIGTERM, writing a journal named `name` in `journals`."""
