"""What the harness asks of a queue: the adapter that each system under test has.

Nothing else in the harness knows a system. `work` runs in a worker process of its own; everything
else in the harness's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.history.events import Final, Rules
from chaos.history.witness import Watched
from chaos.workload import Job


@dataclass(frozen=True, slots=True)
class Order:
    """A job to enqueue, with how long it waits before it is due and how often it may be tried."""

    job: Job
    delay: float  # seconds
    max_attempts: int


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How the workers of a run are set up. Times in seconds."""

    slots: int
    prefetch: int
    lease: float
    poll: float
    reclaim_every: float
    grace: float


class System(Protocol):
    """A queue under test."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def rules(self, settings: WorkerSettings) -> Rules:
        """What it promises with workers set up so: its legal steps, how much a claim may take."""

    def install(self, dsn: str) -> None:
        """Create its tables in an empty database."""

    def watched(self) -> tuple[Watched, ...]:
        """The tables that the witness watches and how to read their rows."""

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Enqueue, all or none, and return the task ids in order."""

    def holders(self, dsn: str) -> dict[str, list[int]]:
        """Which worker holds valid leases on which tasks, by worker name, at this moment."""

    def unfinished(self, dsn: str) -> int:
        """How many tasks are neither over nor dead."""

    def finals(self, dsn: str, payloads: dict[int, str]) -> list[Final]:
        """Every task as it stands; `payloads` has the digest of what was enqueued, by id."""

    def digest(self, job: Job) -> str:
        """A digest of a job's payload, as `finals` would compute it."""

    def work(self, dsn: str, name: str, settings: WorkerSettings, journals: Path) -> None:
        """Run tasks until SIGTERM, writing a journal named `name` in `journals`."""
