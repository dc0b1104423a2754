"""One drain: a crew empties a fresh copy of the prepared tasks while it is measured, then verified.

The crew is what differs between systems; everything that is measured is the same for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import psycopg

from chaos.background import Background
from chaos.bench import BenchError, WrongDrainError, measure, noop
from chaos.bench.result import Key, Measurement
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.bench.worker import Seen
from chaos.cluster.postgres import Postgres

LONGEST = 900.0  # seconds that a drain may take
LOOK_EVERY = 0.02


class Crew(Protocol):
    """The processes of one system that drain one database."""

    @property
    def sessions(self) -> str:
        """A LIKE pattern of the application names of its sessions."""

    def assemble(self) -> None:
        """Start everything up to the first claim."""

    def begin(self) -> None:
        """Let all claim."""

    def asked_in_vain(self) -> bool:
        """Whether a claim got nothing by now. Raises BenchError if a process ended."""

    def pids(self) -> list[int]:
        """Its processes."""

    def end(self) -> list[Seen]:
        """Stop it all; what its processes saw, or nothing if they cannot tell."""

    def destroy(self) -> None:
        """End whatever is left, at once."""


Violations = Callable[[psycopg.Connection, int], list[str]]


class Place(NamedTuple):
    """Where a drain happens: a server, the template with the tasks, and a scratch directory.

    violations: says what is wrong with a finished drain of so many tasks.
    """

    server: Postgres
    template: str
    tasks: int
    scratch: Path
    violations: Violations = noop.violations


def prepare(server: Postgres, tasks: int, scratch: Path) -> Place:
    """Make the template with so many tasks."""
    template = f"tasks_{tasks}"
    server.create_database(template)
    noop.prepare(server.dsn(template), tasks)
    return Place(server, template, tasks, scratch)


def in_turn(
    cells: Sequence[Key],
    repeats: int,
    place_of: Callable[[Key], Place],
    crew_of: Callable[[Key, str, Path], Crew],
    tell: Tell,
) -> list[Measurement]:
    """Drain every cell once, then every cell again; each time a fresh copy of its template.

    A crew is made of the cell's key, the copy's DSN and a directory of its own.
    """
    done: list[Measurement] = []
    for repeat in range(1, repeats + 1):
        for key in cells:
            tell(len(done), len(cells) * repeats, key, done[-1] if done else None)
            place = place_of(key)
            database = f"drain_{len(done)}"
            directory = place.scratch / database
            directory.mkdir()
            place.server.create_database(database, template=place.template)
            crew = crew_of(key, place.server.dsn(database), directory)
            done.append(drain(place, database, crew, key, repeat))
            place.server.drop_database(database)
    return done


def drain(place: Place, database: str, crew: Crew, key: Key, repeat: int) -> Measurement:
    """Let the crew drain `database`, which is a copy of the template made for it.

    Raises WrongDrainError if the tables are not as they must be, BenchError if it did not end.
    """
    dsn = place.server.dsn(database)
    waits = measure.WaitEvents(dsn, crew.sessions)
    try:
        crew.assemble()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("checkpoint")
            wal = measure.wal_position(connection)
            server_cpu = measure.cpu_of_server(place.server.pid)
            crew_cpu = measure.cpu_of(crew.pids())
            with Background("wait events", measure.LOOK_EVERY, waits.look):
                crew.begin()
                _await_end(connection, crew)
            server_cpu = measure.cpu_of_server(place.server.pid) - server_cpu
            crew_cpu = measure.cpu_of(crew.pids()) - crew_cpu
            wal = measure.wal_position(connection) - wal
        seen = crew.end()
    finally:
        waits.close()
        crew.destroy()
    with psycopg.connect(dsn, autocommit=True) as connection:
        what = f"{key.system} {key.setting} at {key.at}"
        verify(connection, place.tasks, seen, what, place.violations)
        times = measure.times_of(connection)
        written = measure.written(connection)
    seconds = times.ended - times.began
    return Measurement(
        key,
        repeat,
        {
            "tasks_per_s": place.tasks / seconds,
            "claims_per_s": times.claims / seconds,
            **claim_figures(seen, times.ended),
            "seconds": seconds,
            "tasks": place.tasks,
            "worker_cpu": crew_cpu,
            "server_cpu": server_cpu,
            **written._asdict(),
            "wal_per_task": wal / place.tasks,
        },
        waits.shares(),
    )


def verify(
    connection: psycopg.Connection,
    tasks: int,
    seen: list[Seen],
    what: str,
    violations: Violations = noop.violations,
) -> None:
    """Raise WrongDrainError unless each task was done exactly once."""
    wrong = violations(connection, tasks)
    if seen and (ran := sum(one.ran for one in seen)) != tasks:
        wrong.append(f"handlers ran {ran} times for {tasks} tasks")
    if wrong:
        raise WrongDrainError(f"the drain of {what} is wrong, its speed means nothing: {wrong}")


def claim_figures(seen: list[Seen], ended: float) -> dict[str, float]:
    """Latencies (milliseconds) of the claims that got something, and how many did not while there
    was work: those that began before the last task was finished."""
    claims = [
        (took, got)
        for one in seen
        for began, took, got in zip(one.began, one.took, one.got, strict=True)
        if began <= ended
    ]
    if not claims:
        return {}
    took = [seconds * 1000 for seconds, got in claims if got]
    return {
        "claim_p50": percentile(took, 50),
        "claim_p99": percentile(took, 99),
        "empty_claims": sum(1 for _, got in claims if not got),
    }


def _await_end(connection: psycopg.Connection, crew: Crew) -> None:
    """Wait until nothing is left, without asking the server before somebody found nothing."""
    deadline = time.monotonic() + LONGEST
    while not crew.asked_in_vain() or noop.open_tasks(connection):
        if time.monotonic() > deadline:
            raise BenchError(f"a drain did not end within {LONGEST:.0f} s")
        time.sleep(LOOK_EVERY)
