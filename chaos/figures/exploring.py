"""How fast the explorer is, and the state machine of a task's life.

Each runs what it is there for, with all its invariants. Speed alone does not count: a search with
anything missing does not hold, nor does a machine that saw something wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import median
from typing import NamedTuple

import psycopg

from chaos.cluster.postgres import Postgres, postgres
from chaos.explore import scheduler_actors as act
from chaos.explore.certificate import Certificate
from chaos.explore.explore import SERVER, explore_program
from chaos.explore.program import Program
from chaos.explore.run import Bounds
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.hunt.machine import Worlds, alarm
from chaos.life.machine import TaskLife
from chaos.mutants import MUTANTS, planted

LEAST_SCHEDULES = 150  # a second
MOST_SECONDS = 60.0  # for all schedules of the claims
MOST_TRIES = 5  # schedules until the double claim is found
LEAST_STEPS = 100  # a second, of the state machine

RUN = 300  # schedules that the first speed is measured over, each time
TIMES = 7  # one time alone differs by a quarter from the next, on whatever else a machine does
# Two workers of four statements: claim, renew, complete, reclaim; eight steps each.
FOUR = replace(
    PROGRAMS["completions"].program,
    actors={name: partial(act.four_statements, owner=f"{name}/1") for name in ("a", "b")},
)


class Figure(NamedTuple):
    """What was measured, what came of it, what is asked for, and whether that holds."""

    what: str
    came: str
    asked: str
    held: bool


class Measured(NamedTuple):
    """All figures, and by what to judge them: the server, and the microseconds of a round trip."""

    server: str
    round_trip: float
    figures: Sequence[Figure]


def measure(tell: Callable[[str], None] = lambda text: None) -> Measured:
    """Measure one after the other. Raises ClusterError, ExplorerError and psycopg.Error."""
    figures = []
    with postgres(settings=SERVER) as server:
        version, trip = round_trip(server)
        for one in FIGURES:
            figures.append(one(server))
            tell(f"{figures[-1].what}: {figures[-1].came}")
    return Measured(version, trip, figures)


def round_trip(server: Postgres, times: int = 1000) -> tuple[str, float]:
    """The server's version, and how many microseconds it takes to answer."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        began = time.perf_counter()
        for _ in range(times):
            connection.execute("select 1")
        took = (time.perf_counter() - began) / times * 1_000_000
        return connection.info.parameter_status("server_version") or "unknown", took


def two_workers(server: Postgres) -> Figure:
    """How many schedules a second of two workers of four statements."""
    bounds = Bounds(preemptions=None, schedules=RUN)
    return speed([_explored(server, f"two_workers_{n}", FOUR, bounds) for n in range(TIMES)])


def three_workers(server: Postgres) -> Figure:
    """How long all schedules of three workers take that claim two tasks."""
    known = PROGRAMS["claims"]
    return all_claims(_explored(server, "three_workers", known.program, known.bounds))


def double_claim(server: Postgres) -> Figure:
    """How many schedules it takes to find a claim that locks nothing."""
    program = PROGRAMS["completions"].program
    with planted(MUTANTS["claim-without-lock"]):
        found = _explored(server, "double_claim", program, Bounds(preemptions=None))
    return tries(found)


def task_life(server: Postgres) -> Figure:
    """How many steps a second the state machine takes, from its first to its last example."""
    with closing(Worlds(partial(_database, server, "task_life"))) as worlds:
        with worlds.genuine({}):
            pass  # it is made now, and that is no step
        began, before = time.perf_counter(), TaskLife.steps
        wrong = alarm(worlds)
        return life(TaskLife.steps - before, time.perf_counter() - began, wrong)


FIGURES = (two_workers, three_workers, double_claim, task_life)


def speed(found: Sequence[Certificate]) -> Figure:
    """The first figure: the median of searches that are cut short on purpose. None of their
    schedules may fail."""
    rates = sorted(one.schedules / one.seconds for one in found)
    rate = median(rates)
    failed = any(one.outcome == "fail" for one in found)
    unsure = sorted(set(chain.from_iterable(one.degraded for one in found)))
    wrong = "one failed" if failed else "; ".join(unsure)
    return Figure(
        "two workers of four statements",
        f"{rate:.0f} schedules/s ({rates[0]:.0f} to {rates[-1]:.0f})"
        + (f", but {wrong}" if wrong else ""),
        f"{LEAST_SCHEDULES} or more",
        not wrong and rate >= LEAST_SCHEDULES,
    )


def all_claims(found: Certificate) -> Figure:
    """The second, of a search that must pass."""
    bounds, fine = found.bounds, found.outcome == "pass"
    lacks = "; ".join([f", but {found.outcome}", *found.missing()])
    return Figure(
        f"three workers claim two tasks: all schedules with up to {bounds.preemptions} preemptions"
        f" and {bounds.crashes} crash",
        f"{found.schedules} in {found.seconds:.1f} s" + ("" if fine else lacks),
        f"within {MOST_SECONDS:.0f} s",
        fine and found.seconds <= MOST_SECONDS,
    )


def tries(found: Certificate) -> Figure:
    """The third, of a search that must fail."""
    fine = found.outcome == "fail"
    return Figure(
        "a double claim without locks",
        f"found in schedule {found.schedules}" if fine else "not found",
        f"within {MOST_TRIES} schedules",
        fine and found.schedules <= MOST_TRIES,
    )


def life(steps: int, seconds: float, wrong: str) -> Figure:
    """The fourth, of a machine that must see nothing wrong."""
    rate = steps / seconds
    return Figure(
        "the state machine of a task's life",
        f"{rate:.0f} steps/s" + (f", but {wrong.splitlines()[0]}" if wrong else ""),
        f"{LEAST_STEPS} or more",
        not wrong and rate >= LEAST_STEPS,
    )


def page(measured: Measured) -> list[str]:
    """The figures as lines of Markdown: what they were measured with, and a table."""
    figures = measured.figures
    return [
        f"PostgreSQL {measured.server} with fsync off: no crash of the server is explored. A round"
        f" trip that does nothing took {measured.round_trip:.0f} µs. All invariants were judged.",
        "",
        "| figure | measured | asked for | |",
        "|---|---|---|---|",
        *(f"| {f.what} | {f.came} | {f.asked} | {_verdict(f.held)} |" for f in figures),
        "",
        f"{sum(f.held for f in figures)} of {len(figures)} figures are as asked for:"
        f" {_verdict(held(measured))}.",
    ]


def held(measured: Measured) -> bool:
    """Whether all are as asked for."""
    return all(figure.held for figure in measured.figures)


def _verdict(holds: bool) -> str:
    return "held" if holds else "NOT held"


def _explored(server: Postgres, name: str, program: Program, bounds: Bounds) -> Certificate:
    return explore_program(program, bounds, _database(server, name)).certificate


def _database(server: Postgres, name: str) -> str:
    server.create_database(name)
    return server.dsn(name)
