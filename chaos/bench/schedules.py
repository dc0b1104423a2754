"""`chaos bench schedules`: what declaring and planning cost with many schedules, and claims beside.

One session does what a worker's sessions do, with its functions, one after another:

- it declares all schedules, for the first time (`declare first`), and again, when nothing has
  changed (`declare again`), as each worker does when it starts;
- it looks for something to plan while nothing is due (`look idle`);
- all are due at once: it plans them, page by page as a worker does, each page a durable commit,
  until nothing is left (`plan all`);
- all are due again while their occurrences still wait, so that each look must pass over all of them
  and plans nothing (`look blocked`);
- it claims tasks as in `chaos bench growth`, while those occurrences wait.

All are daily: of the rules one half are intervals and the other half cron expressions, in UTC. Each
number of schedules has a fresh database every time. A look's figure is the median of several.
Afterwards each schedule must have exactly one occurrence, and every claim all that it asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TypeVar

import psycopg
from psycopg import Connection

from chaos.bench import WrongDrainError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.growth import claims_of
from chaos.bench.result import OURS, Key, Result, spreads
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Cron, Every, Registry
from scheduler.schedules import declare_schedules, plan_due
from scheduler.upkeep import PLAN_LIMIT

T = TypeVar("T")

BENCH = "schedules"
EMPTY = "empty"  # the template of every measurement
LOOKS = 9
_ALL_DUE = "update scheduler.schedules set next_at = scheduler.now() - interval '25 hours'"
_OCCURRENCES = (
    "select count(*), count(distinct schedule) from scheduler.tasks where schedule is not null"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """schedules: numbers of them. claims: in each cell, of `batch` tasks each."""

    schedules: tuple[int, ...]
    batch: int
    claims: int
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError or ClusterError."""
    clock = Clock(command)
    cells = [Key(OURS, "default", plan.batch, number) for number in plan.schedules]
    with postgres(settings=SETTINGS, durable=True) as server:
        clock.start(server)
        server.create_database(EMPTY)
        noop.prepare(server.dsn(EMPTY), plan.batch * plan.claims)
        measurements = in_turn(
            cells,
            plan.repeats,
            tell,
            lambda key: measure(server, EMPTY, key.at, plan.batch, plan.claims),
        )
        return clock.result(BENCH, "schedules", server, (), measurements)


def measure(
    server: Postgres, template: str, schedules: int, batch: int, claims: int
) -> dict[str, float]:
    """The figures of so many schedules in a fresh copy of the template."""
    database = "schedules"
    server.create_database(database, template=template)
    dsn = server.dsn(database)
    declared = registry(schedules)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            first, changed = _timed(lambda: declare_schedules(connection, declared))
            again, unchanged = _timed(lambda: declare_schedules(connection, declared))
            if len(changed) != schedules or unchanged:
                raise WrongDrainError(
                    f"of {schedules} schedules {len(changed)} were declared, and then"
                    f" {len(unchanged)} again"
                )
            _plan_all(connection)  # a new one is looked at once, to find when it is due
            connection.execute("vacuum (analyze)")
            idle = _look(connection)
            connection.execute(_ALL_DUE)
            planning, _ = _timed(lambda: _plan_all(connection))
            verify(connection, schedules)
            connection.execute(_ALL_DUE)
            connection.execute("vacuum (analyze)")
            blocked = _look(connection)
            verify(connection, schedules)
        return {
            "declare_first": first,
            "declare_again": again,
            "plan_all": planning,
            "look_idle": idle,
            "look_blocked": blocked,
            **claims_of(dsn, batch, claims),
        }
    finally:
        server.drop_database(database)


def registry(schedules: int) -> Registry:
    """The kind of the bench with so many schedules."""
    kinds, _ = noop.registry()
    for number in range(schedules):
        rule = Every(timedelta(days=1)) if number % 2 else Cron("0 3 * * *", "UTC")
        kinds.schedule(f"schedule-{number}", kinds[noop.KIND], {"n": number}, rule)
    return kinds


def verify(connection: Connection, schedules: int) -> None:
    """Raise WrongDrainError unless each schedule has one occurrence."""
    row = connection.execute(_OCCURRENCES).fetchone()
    assert row is not None
    planned, different = row
    if (planned, different) != (schedules, schedules):
        raise WrongDrainError(
            f"{schedules} schedules that were due once have {planned} occurrences, of {different}"
            " schedules"
        )


def sentences(result: Result) -> Iterator[str]:
    """What each costs with the most schedules, for each of them, and what a claim costs then."""
    for name, said in (
        ("declare_first", "declaring {n:,} schedules for the first time took"),
        ("declare_again", "declaring {n:,} schedules again took"),
        ("plan_all", "planning {n:,} schedules that were due at once took"),
        ("look_blocked", "a look at {n:,} schedules whose occurrences wait took"),
    ):
        cells = spreads(result, name)
        most = max(cells, key=lambda key: key.at)
        took = cells[most].median
        yield f"{said.format(n=most.at)} {took:,.0f} ms, {took / most.at * 1000:,.0f} us for each"
    claims = spreads(result, "claim_p50")
    least, most = min(claims, key=lambda key: key.at), max(claims, key=lambda key: key.at)
    yield (
        f"a claim with {most.at:,} schedules took {claims[most].median / claims[least].median:.2f}"
        f" of one with {least.at:,}"
    )


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    """How many milliseconds a call took, and what it returned."""
    began = time.perf_counter()
    found = call()
    return (time.perf_counter() - began) * 1000, found


def _plan_all(connection: Connection) -> None:
    while plan_due(connection, PLAN_LIMIT) == 0:
        pass


def _look(connection: Connection) -> float:
    """Milliseconds of a look that finds nothing to plan."""
    return median(_timed(lambda: plan_due(connection, PLAN_LIMIT))[0] for _ in range(LOOKS))
