"""One drain by the yardstick that all systems share: see the top of this package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import psycopg

from chaos.bench import BenchError, WrongDrainError, measure
from chaos.bench.peers.crew import Crew
from chaos.bench.peers.peer import Peer, Setting
from chaos.bench.peers.tally import Tally
from chaos.bench.result import Key, Measurement
from chaos.cluster.postgres import Postgres

LONGEST = 900.0  # seconds that a drain may take
LOOK_EVERY = 0.02
NO_BATCH = 0  # cells of this bench are not told apart by the size of a claim


class Cell(NamedTuple):
    """A system with a setting, so many workers and so many jobs."""

    peer: Peer
    setting: Setting
    workers: int
    tasks: int

    @property
    def key(self) -> Key:
        """In a result."""
        return Key(self.peer.name, self.setting.name, NO_BATCH, self.workers)


def url_of(server: Postgres, database: str) -> str:
    """What every driver understands."""
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def drain(
    server: Postgres,
    database: str,
    cell: Cell,
    command: list[str],
    directory: Path,
    repeat: int,
    longest: float = LONGEST,
) -> Measurement:
    """Drain `database`, which is a copy of the system's template made for it.

    Raises WrongDrainError if it was not done right, BenchError if it did not end.
    """
    crew = Crew(command, url_of(server, database), cell.setting, cell.workers, directory)
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        # The looks must not read what is done again and again: each system has an index for them.
        connection.execute("set enable_seqscan = off")
        try:
            crew.assemble()
            connection.execute("checkpoint")
            wal = measure.wal_position(connection)
            server_cpu, worker_cpu = measure.cpu_of_server(server.pid), crew.cpu()
            crew.begin()
            ended = await_end(connection, cell.peer, crew, longest)
            server_cpu = measure.cpu_of_server(server.pid) - server_cpu
            worker_cpu = crew.cpu() - worker_cpu
            wal = measure.wal_position(connection) - wal
            tallies = crew.end()
        finally:
            crew.destroy()
        connection.execute("reset enable_seqscan")
        verify(connection, cell, tallies)
    seconds = ended - began(tallies)
    return Measurement(
        cell.key,
        repeat,
        {
            "tasks_per_s": cell.tasks / seconds,
            "seconds": seconds,
            "tasks": cell.tasks,
            "worker_cpu": worker_cpu,
            "server_cpu": server_cpu,
            "wal_per_task": wal / cell.tasks,
        },
        {},
    )


def began(tallies: list[Tally]) -> float:
    """When the first handler began, in whichever process."""
    return min(one.began for one in tallies)


def verify(connection: psycopg.Connection, cell: Cell, tallies: list[Tally]) -> None:
    """Raise WrongDrainError unless each job was done once, as far as tables and handlers tell."""
    wrong = []
    if is_open(connection, cell.peer):
        wrong.append("a job is open again")
    for check in cell.peer.checks:
        row = connection.execute(check.sql.encode(), {"tasks": cell.tasks}).fetchone()
        assert row is not None
        if row[0]:
            wrong.append(check.sentence.format(n=row[0]))
    if (ran := sum(one.ran for one in tallies)) != cell.tasks:
        wrong.append(f"handlers ran {ran} times for {cell.tasks} jobs")
    if wrong:
        what = f"{cell.key.system} {cell.key.setting} at {cell.workers}"
        raise WrongDrainError(f"what {what} did is wrong, its speed means nothing: {wrong}")


def is_open(connection: psycopg.Connection, peer: Peer) -> bool:
    """Whether a job is not done."""
    row = connection.execute(peer.open.encode()).fetchone()
    return row is not None and bool(row[0])


def await_end(connection: psycopg.Connection, peer: Peer, crew: Crew, longest: float) -> float:
    """When a look found every job done."""
    deadline = time.monotonic() + longest
    due = time.monotonic()
    while is_open(connection, peer):
        crew.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{peer.name} did not end within {longest:.0f} s")
        due = max(due + LOOK_EVERY, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    return time.time()
