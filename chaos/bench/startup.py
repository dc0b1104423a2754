"""`chaos bench startup`: how long a fleet takes from its start until every worker holds a task.

There are as many due tasks as workers, and each worker has one slot. The handler does not return
before the bench lets it, so that a worker holds one task and no more: when all tasks are running,
every worker has started, connected, looked at the schema and claimed. The time is from just before
the first worker is started to the last `claimed_at` (`claiming all`), and to the first (`claiming
first`); database and bench share the machine's clock. All share the machine's cores, too.

- `command`: each is started as in production, by `scheduler worker`, and its interpreter loads its
  code;
- `forked`: each is a process that has loaded its code already, and all are let go at once. What is
  left is what connecting and claiming take.

Afterwards the handlers are let go, and each task must have been completed once, each by another
worker.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import IO, Protocol

import psycopg
from psycopg import Connection

import scheduler
from chaos.bench import BenchError, WrongDrainError, hold, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.held import Held, live, pass_gate
from chaos.bench.result import OURS, Key, Result, spreads
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Worker

BENCH = "startup"
EMPTY = "empty"  # the template of every measurement
COMMAND, FORKED = "command", "forked"
LONGEST = 300.0  # seconds that a fleet may take
STOP_SECONDS = 60.0
LOOK_EVERY = 0.05
_WORKERS = (
    "select count(distinct regexp_replace(lease_owner, '/[^/]*$', '')) from scheduler.run_log"
)


class Fleet(Protocol):
    """Workers of one kind."""

    def assemble(self) -> None:
        """Whatever happens before the time begins."""

    def begin(self) -> None:
        """Start all."""

    def check(self) -> None:
        """Raise BenchError if one ended."""

    def end(self) -> None:
        """Stop all with SIGTERM."""

    def destroy(self) -> None:
        """End whatever is left, at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of workers."""

    workers: tuple[int, ...]
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    cells = [Key(OURS, way, 1, number) for number in plan.workers for way in (COMMAND, FORKED)]
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        server.create_database(EMPTY)
        scheduler.migrate(server.dsn(EMPTY))
        measurements = in_turn(
            cells,
            plan.repeats,
            tell,
            lambda key: measure(server, EMPTY, key.setting, key.at, Path(mkdtemp(dir=scratch))),
        )
        return clock.result(BENCH, "workers", server, (), measurements)


def measure(
    server: Postgres, template: str, way: str, workers: int, directory: Path
) -> dict[str, float]:
    """Start so many workers on a fresh copy of the empty database."""
    database = "startup"
    server.create_database(database, template=template)
    dsn = server.dsn(database)
    gate = directory / "handlers"
    fleet: Fleet = (Commands if way == COMMAND else Forked)(dsn, workers, gate, directory)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            tasks = [{"n": number} for number in range(workers)]
            scheduler.enqueue_many(connection, hold.app[hold.KIND], tasks)
            with _locked(gate):
                fleet.assemble()
                began = time.time()
                fleet.begin()
                _await_tasks(connection, fleet, "status = 'running'", workers)
                first, last = _claims(connection)
            _await_tasks(connection, fleet, "status = 'completed'", workers)
            fleet.end()
            verify(connection, workers)
        return {"claiming_all": last - began, "claiming_first": first - began}
    finally:
        fleet.destroy()
        server.drop_database(database)


def verify(connection: Connection, workers: int) -> None:
    """Raise WrongDrainError unless each task was done once, and each by another worker."""
    wrong = noop.violations(connection, workers)
    row = connection.execute(_WORKERS).fetchone()
    if row != (workers,):
        wrong.append(f"the tasks of {workers} workers were not done by as many")
    if wrong:
        raise WrongDrainError(f"the start of {workers} workers is wrong: {wrong}")


class Commands:
    """Workers that `scheduler worker` starts, each an interpreter of its own."""

    def __init__(self, dsn: str, workers: int, gate: Path, directory: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "scheduler", "worker", "chaos.bench.hold:app"),
            *("--database", dsn, "--slots", "1", "--log-level", "warning"),
        ]
        self._environment = {**os.environ, hold.GATE: str(gate)}
        self._count = workers
        self._said = directory / "said"
        self._log: IO[bytes] | None = None
        self._living: list[subprocess.Popen[bytes]] = []

    def assemble(self) -> None:
        """Only the file for what they log."""
        self._log = self._said.open("wb")

    def begin(self) -> None:
        """Start all, one after another."""
        for _ in range(self._count):
            self._living.append(
                subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                )
            )

    def check(self) -> None:
        """Raise BenchError, with what was logged, if one ended."""
        for process in self._living:
            if process.poll() is not None:
                log = self._said.read_text(errors="replace").strip()
                raise BenchError(f"a worker ended with {process.returncode}; the log says:\n{log}")

    def end(self) -> None:
        """Stop all. Raises BenchError if one does not end well."""
        for process in self._living:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._living:
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise BenchError(f"not all workers ended within {STOP_SECONDS:.0f} s") from error
            if code != 0:
                raise BenchError(f"a worker ended with {code} when it was stopped")

    def destroy(self) -> None:
        """Kill what is left."""
        for process in self._living:
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()


class Forked(Held):
    """Workers in processes that have loaded all code before the time begins."""

    def __init__(self, dsn: str, workers: int, gate: Path, directory: Path) -> None:
        names = [f"w{number}" for number in range(1, workers + 1)]
        own = {"dsn": dsn, "gate": str(gate)}
        super().__init__("chaos.bench.startup", dict.fromkeys(names, own), directory)

    def end(self) -> None:
        """Stop all."""
        self.terminate()
        self.join()


def work(dsn: str, name: str, gate: str, directory: str) -> None:
    """Such a process. Does not return."""

    def body() -> None:
        os.environ[hold.GATE] = gate
        worker = Worker(hold.app, dsn, name=name, slots=1)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        pass_gate(Path(directory), name)
        worker.run()

    live(directory, name, body)


def sentences(result: Result) -> Iterator[str]:
    """How long each fleet took."""
    every, first = (spreads(result, name) for name in ("claiming_all", "claiming_first"))
    for key, found in every.items():
        yield (
            f"{key.setting}, at {key.at} workers: all claimed after {found.median:.2f} s, the first"
            f" after {first[key].median:.2f} s"
        )


@contextmanager
def _locked(gate: Path) -> Iterator[None]:
    """Hold the handlers."""
    with gate.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _await_tasks(connection: Connection, fleet: Fleet, condition: str, number: int) -> None:
    """Wait until so many tasks are as the condition says."""
    query = f"select count(*) from scheduler.tasks where {condition}"
    deadline = time.monotonic() + LONGEST
    while connection.execute(query.encode()).fetchone() != (number,):
        fleet.check()
        if time.monotonic() > deadline:
            raise BenchError(f"not all of {number} workers held a task within {LONGEST:.0f} s")
        time.sleep(LOOK_EVERY)


def _claims(connection: Connection) -> tuple[float, float]:
    """When the first and the last task was claimed."""
    row = connection.execute(
        "select extract(epoch from min(claimed_at))::double precision,"
        " extract(epoch from max(claimed_at))::double precision from scheduler.tasks"
    ).fetchone()
    assert row is not None
    first, last = row
    return first, last
