"""`chaos bench latency`: how long after its enqueue a task starts, on a fleet with little to do.

Ours, and other queues where they are installed, alike:

- One client enqueues tasks one by one at an even rate, by the system's own call. Each carries the
  clock just before that call; its handler takes the same machine's clock in its first line. So the
  figure contains the enqueue's own durable commit, the notification or the wait for the next poll,
  the claim with its commit, and the hand-over to the handler. It is exact to what two readings of
  one clock are; nothing is subtracted.
- The clock is the monotonic one, which all processes of a machine share: setting the time does not
  move it.
- The fleet is W worker processes that have connected and are quiet: for 2 s no session has come or
  gone. The first 2 s of tasks then are not counted: until then a runtime compiles, and a pool opens
  its connections.
- A server of the bench's own with durable commits, and for each measurement a fresh copy of the
  database in which the system was installed. Cells are measured in turn: every one once, then every
  one again. A figure is the median of its repeats, with the least and the greatest beside it.
- `enqueued per s` is the rate that the client kept. Afterwards each task must have been done once,
  as far as tables and handlers tell; otherwise there is no figure.

Each system is measured as it comes (`default`) and with what its documentation says that lets a job
start soon (`best`), where it says something. What that is stands in the notes of the result. A
setting that cannot keep up with a few jobs a second is not measured: its jobs would wait for each
other. A client is a program of the system's own language; versions are pinned as for
`chaos bench peers`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import psycopg

from chaos.bench import BenchError, WrongDrainError
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.peers.crew import Crew, enqueue, prepare
from chaos.bench.peers.drain import Cell, await_end, url_of, verify
from chaos.bench.peers.installed import versions
from chaos.bench.peers.peer import Peer
from chaos.bench.peers.program import Rhythm
from chaos.bench.peers.run import commands_of
from chaos.bench.peers.tally import read_starts
from chaos.bench.result import FIGURES, Key, Result, spreads
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.cluster.postgres import Postgres, postgres

BENCH = "latency"
PERCENTILES = {"start_p50": 50, "start_p99": 99}
LONGEST = 120.0  # seconds that the bench waits for the fleet, and for the last tasks
WARM_SECONDS = 2.0
QUIET_SECONDS = 2.0
LOOK_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: tasks a second, for so many seconds, with each of these numbers of workers. named:
    whether these systems were asked for by name, so that none may be missing."""

    peers: tuple[Peer, ...]
    workers: tuple[int, ...]
    rate: float
    seconds: float
    repeats: int
    named: bool

    @property
    def rhythm(self) -> Rhythm:
        """Of one measurement."""
        warm, counted = (max(1, int(self.rate * each)) for each in (WARM_SECONDS, self.seconds))
        return Rhythm(warm, counted, self.rate)


def run(plan: Plan, said_command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises MissingError, WrongDrainError, BenchError or ClusterError."""
    clock = Clock(said_command)
    idle = [peer._replace(settings=peer.idle) for peer in plan.peers]
    commands, notes = commands_of(idle, plan.named)
    rhythm = plan.rhythm
    cells = {
        cell.key: cell
        for workers in plan.workers
        for peer in idle
        if peer.name in commands
        for setting in peer.settings
        for cell in [Cell(peer, setting, workers, rhythm.warm + rhythm.tasks)]
    }
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        for peer in idle:
            if peer.name in commands:
                clock.note(versions(peer))
        templates: dict[tuple[str, str], str] = {}

        def figures(key: Key) -> dict[str, float]:
            cell, own = cells[key], commands[key.system]
            kind = (key.system, key.setting)
            if kind not in templates:
                templates[kind] = f"empty_{len(templates)}"
                server.create_database(templates[kind])
                prepare(own, url_of(server, templates[kind]), cell.setting, 0)
            directory = Path(mkdtemp(dir=scratch))
            return measure(server, templates[kind], cell, own, rhythm, directory)

        measurements = in_turn(list(cells), plan.repeats, tell, figures)
        return clock.result(BENCH, "workers", server, notes, measurements)


def measure(
    server: Postgres, template: str, cell: Cell, command: list[str], rhythm: Rhythm, directory: Path
) -> dict[str, float]:
    """What a fleet of the cell did with tasks at this rhythm, in a fresh copy of the template."""
    database = "latency"
    server.create_database(database, template=template)
    url = url_of(server, database)
    crew = Crew(command, url, cell.setting, cell.workers, directory)
    try:
        crew.assemble()
        with psycopg.connect(server.dsn(database), autocommit=True) as connection:
            crew.begin()
            await_quiet(connection, crew, cell.workers)
            seconds = enqueue(command, url, cell.setting, rhythm)
            await_end(connection, cell.peer, crew, LONGEST)
            verify(connection, cell, crew.end())
    finally:
        crew.destroy()
        server.drop_database(database)
    took = latencies(directory, cell, rhythm)
    return {
        **{name: percentile(took, percent) for name, percent in PERCENTILES.items()},
        "enqueued_per_s": rhythm.tasks / seconds,
        "tasks": rhythm.tasks,
    }


def latencies(directory: Path, cell: Cell, rhythm: Rhythm) -> list[float]:
    """Of the tasks that count, in milliseconds. Raises WrongDrainError if one did not tell."""
    starts = read_starts(directory)
    if len(starts) != cell.tasks:
        raise WrongDrainError(
            f"{len(starts)} of {cell.tasks} tasks of {cell.key.system} say when they started"
        )
    return [(one.began - one.sent) / 1_000_000 for one in starts[rhythm.warm :]]


def await_quiet(connection: psycopg.Connection, crew: Crew, workers: int) -> None:
    """Until each worker has connected, and no session has come or gone for a while."""
    deadline = time.monotonic() + LONGEST
    last, since = _sessions(connection), time.monotonic()
    while len(last) < workers or time.monotonic() < since + QUIET_SECONDS:
        crew.check()
        if time.monotonic() > deadline:
            raise BenchError(f"the workers were not quiet within {LONGEST:.0f} s")
        time.sleep(LOOK_EVERY)
        if (now := _sessions(connection)) != last:
            last, since = now, time.monotonic()


def _sessions(connection: psycopg.Connection) -> set[int]:
    """Those of others in this database."""
    rows = connection.execute(
        "select pid from pg_stat_activity where datname = current_database()"
        " and backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    return {pid for (pid,) in rows}


def sentences(result: Result) -> Iterator[str]:
    """For each percentile and number of workers all systems, the soonest first, each with the
    setting with which it is soonest."""
    for name in PERCENTILES:
        medians = {key: found.median for key, found in spreads(result, name).items()}
        for at in sorted({key.at for key in medians}):
            soonest: dict[str, Key] = {}
            for key in sorted((key for key in medians if key.at == at), key=medians.__getitem__):
                soonest.setdefault(key.system, key)
            said = ", ".join(
                f"{key.system} ({key.setting}) {medians[key]:.2f}" for key in soonest.values()
            )
            yield f"{name.replace('_', ' ')} at {at:,} {result.axis}, {FIGURES[name].unit}: {said}"
