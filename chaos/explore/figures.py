"""The explorer's own speed, measured: `chaos explore --figures`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psycopg

from chaos.cluster.postgres import Postgres, postgres
from chaos.explore import scheduler_actors as act
from chaos.explore.explore import SERVER, explore_program
from chaos.explore.run import Bounds
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.mutants import MUTANTS, planted

SPEED_SCHEDULES = 300
# Two workers of four statements: claim, renew, complete, reclaim; eight steps each.
FOUR = replace(
    PROGRAMS["completions"].program,
    actors={name: partial(act.four_statements, owner=f"{name}/1") for name in ("a", "b")},
)


def lines() -> Iterator[str]:
    """One line a figure, each measured as it is asked for."""
    load = os.getloadavg()[0]
    yield f"{os.cpu_count()} cores, load {load:.1f} before; fsync off; invariants on"
    with postgres(settings=SERVER) as server:
        yield f"a bare round trip takes {_round_trip(server):.0f} us here"
        yield f"two workers of four statements: {_speed(server):.0f} schedules/s"
        yield f"three workers claim two tasks: {_claims(server)}"
        yield f"a double claim without locks: found in schedule {_double_claim(server)}"


def _database(server: Postgres, name: str) -> str:
    server.create_database(name)
    return server.dsn(name)


def _round_trip(server: Postgres, times: int = 1000) -> float:
    """Microseconds: what the machine gives, to judge the other figures by."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        began = time.perf_counter()
        for _ in range(times):
            connection.execute("select 1")
        return (time.perf_counter() - began) / times * 1_000_000


def _speed(server: Postgres) -> float:
    bounds = Bounds(preemptions=None, schedules=SPEED_SCHEDULES)
    found = explore_program(FOUR, bounds, _database(server, "speed"))
    return found.certificate.schedules / found.certificate.seconds


def _claims(server: Postgres) -> str:
    known = PROGRAMS["claims"]
    began = time.perf_counter()
    found = explore_program(known.program, known.bounds, _database(server, "claims"))
    seconds = time.perf_counter() - began
    return (
        f"all {found.certificate.schedules} schedules with up to 2 preemptions and 1 crash in"
        f" {seconds:.1f} s ({found.outcome})"
    )


def _double_claim(server: Postgres) -> int:
    program = PROGRAMS["completions"].program
    with planted(MUTANTS["claim-without-lock"]):
        found = explore_program(
            program, Bounds(preemptions=None), _database(server, "double_claim")
        )
    return found.certificate.schedules
