"""`chaos bench growth`: what a claim costs when much is pending, in the future or in the past.

One session claims from queues of different lengths in turn, so that all see the same machine. What
is measured is the claim's call, with its round trip; the session does not wait for the disk
(`synchronous_commit` off), since a flush costs the same whatever the queue's length is. Otherwise
it is a worker's session, which claims as a worker does: from its floors, that is from the second
claim on behind the tasks that it has claimed; and a look for what lies below counts to the claim
after it. Each repeat begins with a vacuum and without floors. Nothing is completed, and every claim
must get all that it asked for.

Beside the smallest number of due tasks there are, each in a queue of its own: tasks of high
priority that are not due yet (`future`), tasks that are over (`finished`), and the dead rows of
tasks that were due earlier and ended while an old transaction holds the horizon, so that no vacuum
can remove them (`dead`). A repeat ends early where claims are so slow that it would take
longer than half a minute; the figure `claims` says how many there were.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg import Connection

import scheduler
from chaos.bench import WrongDrainError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.filled import fill, finish, held_horizon
from chaos.bench.result import OURS, Key, Result
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Priority
from scheduler.dispatch import claim, new_owner
from scheduler.floors import Floors, find_floors
from scheduler.session import connect_worker

DUE, FUTURE, FINISHED, DEAD = "due", "future", "finished", "dead"
LONGEST = 30.0  # seconds of a repeat in one queue, if it has
FEWEST = 10  # claims
LEASES = {noop.KIND: timedelta(seconds=noop.LEASE_SECONDS)}
LATER = timedelta(days=1)
POLL = timedelta(seconds=1)  # a worker's, unless told


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    pending: numbers of due tasks, the smallest first. Beside the smallest number, future: tasks of
    high priority that are not due, finished: tasks that are over, dead: rows that cannot go away.
    claims: in each repeat, of `batch` tasks each, at most.
    """

    pending: tuple[int, ...]
    future: int
    finished: int
    dead: int
    batch: int
    claims: int
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError or ClusterError."""
    clock = Clock(command)
    with postgres(settings=SETTINGS, durable=True) as server, ExitStack() as horizons:
        clock.start(server)
        queues = _fill(server, plan, horizons)
        measurements = in_turn(
            list(queues),
            plan.repeats,
            tell,
            lambda key: claims_of(queues[key], plan.batch, plan.claims),
        )
        return clock.result("growth", "pending tasks", server, (), measurements)


def _fill(server: Postgres, plan: Plan, horizons: ExitStack) -> dict[Key, str]:
    """A database for each cell. Where its horizon is held, that is until the stack ends."""
    queues: dict[Key, str] = {}
    besides = ((FUTURE, plan.future), (FINISHED, plan.finished), (DEAD, plan.dead))
    cells = [(DUE, due, 0) for due in plan.pending]
    cells += [(what, plan.pending[0], number) for what, number in besides if number]
    for what, due, number in cells:
        database = f"growth_{len(queues)}"
        server.create_database(database)
        setting = DUE if what == DUE else beside(number, what)
        queues[Key(OURS, setting, plan.batch, due)] = dsn = server.dsn(database)
        scheduler.migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            if what == FUTURE:
                _enqueue_future(connection, number)
            over = number if what in (FINISHED, DEAD) else 0
            fill(connection, over, due)
            if what == DEAD:
                horizons.enter_context(held_horizon(dsn))
            finish(connection, over)
    return queues


def beside(number: int, what: str) -> str:
    """The setting of a queue that has so many of these beside its due tasks."""
    return f"due + {number:,} {what}"


def _enqueue_future(connection: Connection, tasks: int) -> None:
    payloads = ({"n": number} for number in range(tasks))
    scheduler.enqueue_many(connection, noop.kind(), payloads, delay=LATER, priority=Priority.HIGH)


def claims_of(dsn: str, batch: int, claims: int) -> dict[str, float]:
    """Claim so many times, or for as long as a repeat may take.

    Raises WrongDrainError if a claim got less than it asked for.
    """
    took: list[float] = []
    floors = Floors(POLL, time.monotonic)
    with connect_worker(dsn, "bench", LEASES[noop.KIND]) as connection:
        connection.execute("vacuum (analyze) scheduler.tasks")
        connection.execute("set synchronous_commit = off")
        last = time.monotonic() + LONGEST
        while len(took) < claims and (len(took) < FEWEST or time.monotonic() < last):
            began = time.monotonic()
            if floors.old():
                floors.replace(find_floors(connection, LEASES, floors.age), began)
            got = claim(connection, new_owner("bench"), LEASES, batch, 0.0, floors=floors.known())
            floors.claimed(got, began)
            took.append((time.monotonic() - began) * 1000)
            if len(got) != batch:
                raise WrongDrainError(f"a claim of {batch} got {len(got)} while more were due")
    return {
        "claim_p50": percentile(took, 50),
        "claim_p99": percentile(took, 99),
        "claims": len(took),
    }
