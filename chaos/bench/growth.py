"""`chaos bench growth`: what a claim costs when much is pending, or much lies in the future.

One session claims from queues of different lengths in turn, so that all see the same machine. What
is measured is the claim's call, with its round trip; the session does not wait for the disk
(`synchronous_commit` off), since a flush costs the same whatever the queue's length is. Each repeat
begins with a vacuum. Nothing is completed, and every claim must get all that it asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg import Connection

import scheduler
from chaos.bench import WrongDrainError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.result import OURS, Key, Measurement, Result
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Priority
from scheduler.dispatch import claim, new_owner

DUE, FUTURE = "due", "due+future"
LEASES = {noop.KIND: timedelta(seconds=noop.LEASE_SECONDS)}
LATER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    pending: numbers of due tasks, the smallest first. future: tasks of high priority that are not
    due, beside the smallest number. claims: in each repeat, of `batch` tasks each.
    """

    pending: tuple[int, ...]
    future: int
    batch: int
    claims: int
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError or ClusterError."""
    clock = Clock(command)
    with postgres(settings=SETTINGS, durable=True) as server:
        clock.start(server)
        queues = _fill(server, plan)
        measurements: list[Measurement] = []
        for repeat in range(1, plan.repeats + 1):
            for key, dsn in queues.items():
                last = measurements[-1] if measurements else None
                tell(len(measurements), len(queues) * plan.repeats, key, last)
                figures = claims_of(dsn, plan.batch, plan.claims)
                measurements.append(Measurement(key, repeat, figures, {}))
        return clock.result("growth", "pending tasks", server, (), measurements)


def _fill(server: Postgres, plan: Plan) -> dict[Key, str]:
    queues = {}
    kinds = [(DUE, number, 0) for number in plan.pending]
    if plan.future:
        kinds.append((FUTURE, plan.pending[0], plan.future))
    for setting, due, future in kinds:
        database = f"growth_{due}_{future}"
        server.create_database(database)
        dsn = server.dsn(database)
        scheduler.migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            _enqueue(connection, due, None, Priority.NORMAL)
            _enqueue(connection, future, LATER, Priority.HIGH)
        queues[Key(OURS, setting, plan.batch, due)] = dsn
    return queues


def _enqueue(
    connection: Connection, tasks: int, delay: timedelta | None, priority: Priority
) -> None:
    payloads: Iterable[dict[str, int]] = ({"n": number} for number in range(tasks))
    scheduler.enqueue_many(connection, noop.kind(), payloads, delay=delay, priority=priority)


def claims_of(dsn: str, batch: int, claims: int) -> dict[str, float]:
    """Claim so many times. Raises WrongDrainError if a claim got less than it asked for."""
    took: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum (analyze) scheduler.tasks")
        connection.execute("set synchronous_commit = off")
        for _ in range(claims):
            began = time.perf_counter()
            got = claim(connection, new_owner("bench"), LEASES, batch, 0.0)
            took.append((time.perf_counter() - began) * 1000)
            if len(got) != batch:
                raise WrongDrainError(f"a claim of {batch} got {len(got)} while more were due")
    return {"claim_p50": percentile(took, 50), "claim_p99": percentile(took, 99)}
