"""The explorer's front door: explore a program, or replay one schedule of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from psycopg import Connection

from chaos.cluster.postgres import postgres
from chaos.explore.certificate import Certificate, certificate
from chaos.explore.errors import ExplorerError
from chaos.explore.program import Actor, Endings, Program
from chaos.explore.run import Bounds, Trace, run
from chaos.explore.schedule import parse
from chaos.explore.search import Tally, minimise, recheck, search
from chaos.explore.stage import Stage
from chaos.invariants.verdict import Outcome

# The explorer's own server: nothing happens in it that no step made happen.
SERVER = {
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "track_activities": "off",
    "track_counts": "off",
    "update_process_title": "off",
}


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result. `failure` is the simplest schedule that fails, if one does."""

    program: Program
    certificate: Certificate
    failure: Trace | None

    @property
    def outcome(self) -> Outcome:
        """`fail`, or what the certificate says."""
        return self.certificate.outcome

    def __str__(self) -> str:
        lines = [self.outcome, *(f"  {line}" for line in self.certificate.lines())]
        return "\n".join(lines if self.failure is None else [*lines, str(self.failure)])


def explore(
    setup: Callable[[Connection], object],
    actors: Mapping[str, Actor],
    invariant: Callable[[Connection], object] | None = None,
    *,
    at_end: Callable[[Connection, Endings], object] | None = None,
    install: Callable[[Connection], object] | None = None,
    advance: Callable[[Connection, timedelta], object] | None = None,
    autocommit: bool = False,
    bounds: Bounds | None = None,
    dsn: str | None = None,
) -> Exploration:
    """Run the actors in every order that the bounds allow; see `Program` for the arguments.

    Without `dsn` a PostgreSQL server is started for it. With one the database is used as it is:
    by a superuser, and alone. Raises ExplorerError if the exploration cannot be carried out.
    """
    program = Program(setup, actors, invariant, at_end, install, advance, autocommit)
    return explore_program(program, bounds or Bounds(), dsn)


def explore_program(
    program: Program,
    bounds: Bounds,
    dsn: str | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Exploration:
    """Like `explore`, for a `Program`; `progress` is called now and then."""
    if program.invariant is None and program.at_end is None:
        raise ExplorerError("nothing is checked: give an `invariant`, an `at_end`, or both")
    if bounds.advances and program.advance is None:
        raise ExplorerError("`advances` need the program to say how to `advance` the clock")
    tally = Tally()
    with database(dsn) as found, Stage(found, program) as stage:
        began = time.perf_counter()
        failing = search(stage, bounds, tally, progress)
        seconds = time.perf_counter() - began
        if failing is not None:
            failing = minimise(stage, failing)
            recheck(stage, failing, tally)
        tally.degraded |= stage.degraded
        proof = certificate(
            tally,
            bounds,
            tuple(program.actors),
            stage.server_version,
            seconds,
            failing is not None,
        )
    return Exploration(program, proof, failing)


def replay(
    program: Program, schedule: str, dsn: str | None = None, *, strict: bool = True
) -> Trace:
    """Run one schedule, then each actor to its end; the trace says what happened.

    Without `strict`, steps that cannot be taken are passed over: code that was corrected may wait
    for a lock where it used to go on. Raises ScheduleError for those otherwise.
    """
    steps = parse(schedule)
    with database(dsn) as found, Stage(found, program) as stage:
        return run(stage, steps, Bounds(), strict)


@contextmanager
def database(dsn: str | None) -> Iterator[str]:
    """The database to explore in: the one that was given, or one of a new server."""
    if dsn is not None:
        yield dsn
        return
    with postgres(settings=SERVER) as server:
        yield server.dsn()
