"""`chaos bench peers`: the cells, the order they are drained in, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from chaos.bench import WrongDrainError
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.peers.crew import enqueue, prepare
from chaos.bench.peers.drain import Cell, drain, url_of
from chaos.bench.peers.installed import MissingError, command, versions
from chaos.bench.peers.peer import Peer
from chaos.bench.peers.program import Rhythm
from chaos.bench.peers.said import BENCH
from chaos.bench.result import Measurement, Result
from chaos.bench.tell import Tell
from chaos.cluster.postgres import Postgres, postgres

# A client whose calls are fast now: its code is compiled, its statements are prepared.
WARM = 100
MOST_SINGLES = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. named: whether these were asked for by name, so that none may be missing."""

    peers: tuple[Peer, ...]
    workers: tuple[int, ...]
    tasks: int
    repeats: int
    named: bool

    def cells(self) -> list[Cell]:
        """One repeat, in its order: at each number of workers every system with each setting."""
        return [
            Cell(peer, setting, workers, min(self.tasks, setting.most or self.tasks))
            for workers in self.workers
            for peer in self.peers
            for setting in peer.settings
        ]


def run(plan: Plan, said_command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises MissingError, WrongDrainError, BenchError or ClusterError."""
    clock = Clock(said_command)
    commands, notes = commands_of(plan.peers, plan.named)
    plan = replace(plan, peers=tuple(peer for peer in plan.peers if peer.name in commands))
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        for peer in plan.peers:
            clock.note(versions(peer))
        measurements = _measure(plan, commands, server, Path(scratch), tell)
        return clock.result(BENCH, "workers", server, notes, measurements)


def commands_of(peers: Iterable[Peer], named: bool) -> tuple[dict[str, list[str]], list[str]]:
    """What runs each system that is installed, by its name; and the notes: what is missing, then
    what each setting is. Raises MissingError for one that was asked for."""
    commands: dict[str, list[str]] = {}
    missing: list[str] = []
    settings: list[str] = []
    for peer in peers:
        try:
            commands[peer.name] = command(peer)
        except MissingError as error:
            if named:
                raise
            missing.append(f"not measured: {error}")
            continue
        settings += [f"{peer.name} {setting.name}: {setting.said}" for setting in peer.settings]
    return commands, missing + settings


def _measure(
    plan: Plan,
    commands: Mapping[str, list[str]],
    server: Postgres,
    scratch: Path,
    tell: Tell,
) -> list[Measurement]:
    cells = plan.cells()
    done: list[Measurement] = []
    for repeat in range(1, plan.repeats + 1):
        templates: dict[tuple[str, str], tuple[str, dict[str, float]]] = {}
        for cell in cells:
            tell(len(done), len(cells) * plan.repeats, cell.key, done[-1] if done else None)
            own = commands[cell.peer.name]
            kind = (cell.peer.name, cell.setting.name)
            if kind not in templates:
                name = f"jobs_{len(templates)}"
                rhythm = Rhythm(WARM, min(plan.tasks, MOST_SINGLES), rate=0)
                singles = rhythm.tasks / one_by_one(
                    server, f"singles_{len(done)}", cell, own, rhythm
                )
                bulk = cell.tasks / template(server, name, cell, own)
                rates = {"enqueued_per_s": bulk, "single_enqueues_per_s": singles}
                templates[kind] = name, rates
            name, rates = templates[kind]
            database = f"drain_{len(done)}"
            directory = scratch / database
            directory.mkdir()
            server.create_database(database, template=name)
            drained = drain(server, database, cell, own, directory, repeat)
            done.append(replace(drained, figures={**drained.figures, **rates}))
            server.drop_database(database)
        for name, _ in templates.values():
            server.drop_database(name)
    return done


def template(server: Postgres, name: str, cell: Cell, own: list[str]) -> float:
    """Make a database with the cell's jobs, ready to be copied; how many seconds it took to enqueue
    them."""
    server.create_database(name)
    seconds = prepare(own, url_of(server, name), cell.setting, cell.tasks)
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
    return seconds


def one_by_one(server: Postgres, name: str, cell: Cell, own: list[str], rhythm: Rhythm) -> float:
    """Enqueue into a database of its own, each job by a call of one client; how many seconds that
    took. Raises WrongDrainError unless each job is there, by a commit of its own."""
    server.create_database(name)
    prepare(own, url_of(server, name), cell.setting, 0)
    seconds = enqueue(own, url_of(server, name), cell.setting, rhythm)
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        row = connection.execute(
            f"select count(*), count(distinct xmin::text) from {cell.peer.table}".encode()
        ).fetchone()
    server.drop_database(name)
    calls = rhythm.warm + rhythm.tasks
    if row != (calls, calls):
        raise WrongDrainError(
            f"{calls} calls of {cell.peer.name} left jobs and commits: {row}; their speed means"
            " nothing"
        )
    return seconds
