"""What any worker does for all of them, whoever held or made it: brings expired leases back, plans
what recurs, makes the run log's next partitions; and has its own statements planned anew.

Each thing is due at times of its own. Any number of workers may do it at once: the statements skip
what another has locked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import psycopg

from scheduler.events import event
from scheduler.lease import reclaim
from scheduler.migrate import MONTHS_AHEAD
from scheduler.schedules import plan_due
from scheduler.session import REPLAN_EVERY, replan
from scheduler.watchdog import Observe
from scheduler.wire import WorkerConnection

log = logging.getLogger("scheduler")

SHORTEST_IDLE = 0.01  # seconds between looks while all that is due is locked by others
RECLAIM_LIMIT = 500
PLAN_LIMIT = 50  # schedules; planning computes, so that many take a good part of a second
PARTITIONS_AGAIN = 60.0  # seconds until the run log is looked at again when others were using it
PARTITIONS_EVERY = 6 * 3600.0  # seconds between looks at the run log's partitions


class Upkeep:
    """The times of one worker's upkeep.

    bounded: limits how long a call on the connection may take; around each step.
    poll, reclaim_every: seconds, as in `Worker`. pooled: as there.
    """

    def __init__(
        self,
        worker: str,
        bounded: Callable[[WorkerConnection], AbstractContextManager[None]],
        monotonic: Callable[[], float],
        observe: Observe,
        poll: float,
        reclaim_every: float,
        pooled: bool,
    ) -> None:
        self._worker = worker
        self._bounded = bounded
        self._monotonic = monotonic
        self._observe = observe
        self._poll = poll
        self._reclaim_every = reclaim_every
        self._pooled = pooled
        self._next_reclaim = 0.0
        self._next_replan = 0.0
        self._next_plan = 0.0
        self._next_partitions = 0.0

    def do(self, connection: WorkerConnection, stopping: bool) -> None:
        """Do what is due; a worker that is stopping plans nothing new. Raises psycopg.Error."""
        now = self._monotonic()
        if now >= self._next_partitions:
            self._next_partitions = now + self._add_partitions(connection)
        if now >= self._next_replan and not self._pooled:
            self._next_replan = now + REPLAN_EVERY
            with self._bounded(connection):
                replan(connection)
        if now >= self._next_reclaim:
            self._next_reclaim = now + self._reclaim_every
            self._reclaim(connection)
        if now >= self._next_plan and not stopping:
            self._next_plan = now + self._plan(connection)

    def due(self) -> bool:
        """Whether there is something to do, perhaps."""
        return self.due_in() == 0

    def due_in(self) -> float:
        """The seconds until there is something to do, perhaps."""
        times = [self._next_reclaim, self._next_plan, self._next_partitions]
        if not self._pooled:
            times.append(self._next_replan)
        return max(0.0, min(times) - self._monotonic())

    def _add_partitions(self, connection: WorkerConnection) -> float:
        """Make the run log's next partitions; returns for how long that need not be looked at."""
        with self._bounded(connection):
            try:
                connection.execute("select scheduler.add_run_log_partitions(%s)", [MONTHS_AHEAD])
            except (psycopg.errors.LockNotAvailable, psycopg.errors.CheckViolation):
                # The latter if the month's first row went to the rest since that was looked at.
                return PARTITIONS_AGAIN
        return PARTITIONS_EVERY

    def _reclaim(self, connection: WorkerConnection) -> None:
        with self._bounded(connection):
            for taken in reclaim(connection, RECLAIM_LIMIT):
                event(
                    log,
                    logging.WARNING,
                    "reclaimed",
                    task=taken.lease.task,
                    kind=taken.kind,
                    by=self._worker,
                    previous_owner=taken.lease.owner,
                    token=taken.lease.token,
                    now=taken.status,
                )
                self._observe("reclaimed", taken.lease, f"{taken.kind} {taken.status}")

    def _plan(self, connection: WorkerConnection) -> float:
        """Plan what recurs; returns for how long there is nothing more to plan."""
        with self._bounded(connection):
            due = plan_due(connection, PLAN_LIMIT)
        return self._poll if due is None else min(self._poll, max(due, SHORTEST_IDLE))
