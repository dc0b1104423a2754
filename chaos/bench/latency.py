"""`chaos bench latency`: how long after its enqueue a task starts, on a fleet with little to do.

Tasks are enqueued one by one at an even rate. Each carries the wall-clock time just before its call
to `enqueue`; its handler takes the same machine's clock in its first line. So the figure contains
the enqueue's own durable commit, the notification, the claim with its commit, and the hand-over to
the handler. It is exact to what two readings of one clock are; nothing is subtracted.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import psycopg

import scheduler
from chaos.bench import BenchError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.drain import verify
from chaos.bench.held import Held, live, pass_gate
from chaos.bench.result import OURS, Key, Result
from chaos.bench.setting import DEFAULT, parse_setting
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.bench.worker import Seen, make_worker
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Attempt, Registry

EMPTY = "empty"  # the template of every measurement
LONGEST = 60.0  # seconds that the bench waits for its workers


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: tasks a second, for so many seconds, with each of these numbers of workers."""

    workers: tuple[int, ...]
    rate: float
    seconds: float
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    batch = parse_setting(DEFAULT).batch
    cells = [Key(OURS, DEFAULT, batch, workers) for workers in plan.workers]
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        server.create_database(EMPTY)
        scheduler.migrate(server.dsn(EMPTY))

        def figures(key: Key) -> dict[str, float]:
            directory = Path(mkdtemp(dir=scratch))
            took = measure(server, EMPTY, key.at, plan.rate, plan.seconds, directory)
            return {
                "start_p50": percentile(took, 50),
                "start_p99": percentile(took, 99),
                "tasks": len(took),
            }

        measurements = in_turn(cells, plan.repeats, tell, figures)
        return clock.result("latency", "workers", server, (), measurements)


def measure(
    server: Postgres, template: str, workers: int, rate: float, seconds: float, directory: Path
) -> list[float]:
    """The latencies, in milliseconds, of all tasks in a fresh copy of an empty database."""
    database = "latency"
    server.create_database(database, template=template)
    dsn = server.dsn(database)
    names = [f"w{number}" for number in range(1, workers + 1)]
    fleet = Held("chaos.bench.latency", {name: {"dsn": dsn} for name in names}, directory)
    try:
        fleet.assemble()
        fleet.begin()
        tasks = max(1, int(rate * seconds))
        with psycopg.connect(dsn, autocommit=True) as connection:
            _await(lambda: _listening(connection) == workers, "the workers to listen")
            _enqueue(connection, tasks, rate)
            _await(lambda: not noop.open_tasks(connection), "the last tasks to be over")
            fleet.terminate()
            fleet.join()
            took = [
                latency
                for name in names
                for latency in json.loads((directory / f"{name}.json").read_text())
            ]
            verify(connection, tasks, [Seen(ran=len(took))], f"{workers} workers")
        return took
    finally:
        fleet.destroy()
        server.drop_database(database)


def work(dsn: str, name: str, directory: str) -> None:
    """A worker process with default settings. Does not return."""
    live(directory, name, lambda: _work(dsn, name, Path(directory)))


def _work(dsn: str, name: str, directory: Path) -> None:
    took: list[float] = []
    registry = Registry()

    def start(attempt: Attempt, payload: dict[str, int]) -> None:
        took.append((time.time_ns() - payload["n"]) / 1_000_000)

    registry.kind(noop.KIND, dict[str, int])(start)
    worker = make_worker(registry, dsn, name, parse_setting(DEFAULT))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    pass_gate(directory, name)
    worker.run()
    (directory / f"{name}.json").write_text(json.dumps(took))


def _listening(connection: psycopg.Connection) -> int:
    """How many workers have begun to listen: from then on a task is announced to them."""
    row = connection.execute(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and application_name like 'scheduler %' and state = 'idle' and query ilike 'listen %'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"waited {LONGEST:.0f} s in vain for {what}")
        time.sleep(0.05)


def _enqueue(connection: psycopg.Connection, tasks: int, rate: float) -> None:
    """One by one, each at its own time; a late one does not make the next one late."""
    kind = noop.kind()
    began = time.monotonic()
    for number in range(tasks):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        scheduler.enqueue(connection, kind, {"n": time.time_ns()})
