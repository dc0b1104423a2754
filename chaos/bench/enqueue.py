"""`chaos bench enqueue`: how fast tasks get in, one a commit and in bulk, beside pgbench.

Client processes call `scheduler.enqueue_many` in autocommit mode, each call one durable commit, all
from one gate; pgbench calls the same function by the same statement, with payloads of the same
bytes. The time is the database's: from the first to the last row of the audit, which has one row a
call. Afterwards the tasks and the audit are counted.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import psycopg

import scheduler
from chaos.bench import BenchError, WrongDrainError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.contention import NO_PGBENCH
from chaos.bench.held import Held, live, pass_gate
from chaos.bench.limit import SESSION, defined, find_pgbench, plain
from chaos.bench.result import LIMIT, OURS, Key, Result
from chaos.bench.tell import Tell
from chaos.bench.turns import in_turn
from chaos.cluster.postgres import Postgres, postgres

EMPTY = "empty"  # the template of every measurement
LONGEST = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """batches: how many tasks a call enqueues. tasks: in all, for a batch of one and for others."""

    clients: tuple[int, ...]
    batches: tuple[int, ...]
    singles: int
    bulk: int
    repeats: int

    def calls(self, key: Key) -> int:
        """How many calls each client makes."""
        return max(1, (self.singles if key.batch == 1 else self.bulk) // key.batch // key.at)


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        server.create_database(EMPTY)
        scheduler.migrate(server.dsn(EMPTY))
        program = find_pgbench(server)
        systems = [OURS] if program is None else [OURS, LIMIT]
        cells = [
            Key(system, str(batch), batch, clients)
            for batch in plan.batches
            for clients in plan.clients
            for system in systems
        ]
        measurements = in_turn(
            cells,
            plan.repeats,
            tell,
            lambda key: measure(
                server, EMPTY, program, key, plan.calls(key), Path(mkdtemp(dir=scratch))
            ),
        )
        notes = [NO_PGBENCH] if program is None else []
        return clock.result("enqueue", "clients", server, notes, measurements)


def measure(
    server: Postgres,
    template: str,
    program: Path | None,
    key: Key,
    calls: int,
    directory: Path,
) -> dict[str, float]:
    """Enqueue into a fresh copy of the empty database, and count what is there."""
    database = "enqueue"
    server.create_database(database, template=template)
    dsn = server.dsn(database)
    try:
        if key.system == OURS:
            _ours(dsn, key, calls, directory)
        else:
            assert program is not None
            _pgbench(program, dsn, key, calls, directory)
        with psycopg.connect(dsn, autocommit=True) as connection:
            return _figures(connection, key, calls * key.at)
    finally:
        server.drop_database(database)


def work(dsn: str, name: str, batch: int, calls: int, directory: str) -> None:
    """A client process. Does not return."""

    def body() -> None:
        kind = noop.kind()
        payloads = [{"n": number} for number in range(batch)]
        with psycopg.connect(dsn, autocommit=True) as connection:
            pass_gate(Path(directory), name)
            for _ in range(calls):
                scheduler.enqueue_many(connection, kind, payloads)

    live(directory, name, body)


def _ours(dsn: str, key: Key, calls: int, directory: Path) -> None:
    names = [f"c{number}" for number in range(1, key.at + 1)]
    own = {"dsn": dsn, "batch": key.batch, "calls": calls}
    clients = Held("chaos.bench.enqueue", dict.fromkeys(names, own), directory)
    try:
        clients.assemble()
        clients.begin()
        clients.join(LONGEST)
    finally:
        clients.destroy()


def _pgbench(program: Path, dsn: str, key: Key, calls: int, directory: Path) -> None:
    retry = noop.kind().retry
    payloads = ",".join(f'"{{\\"n\\":{number}}}"' for number in range(key.batch))
    variables: dict[str, object] = {
        "kind": noop.KIND,
        "queue": noop.kind().queue,
        "priority": 1,
        "payloads": f"{{{payloads}}}",
        "delay": "0 s",
        "max_attempts": retry.max_attempts,
        "base": retry.base.total_seconds(),
        "factor": retry.factor,
        "cap": retry.cap.total_seconds(),
        "jitter": retry.jitter,
    }
    # A variable of pgbench cannot be null, which is what "now" is.
    statement = re.sub(r":run_at\b", "null", plain("enqueue"))
    script = directory / "enqueue.sql"
    script.write_text(f"{statement};\n")
    try:
        ran = subprocess.run(
            [
                *(str(program), "--no-vacuum", "--protocol=prepared", f"--file={script}"),
                *(f"--client={key.at}", f"--jobs={min(key.at, os.cpu_count() or 1)}"),
                *(f"--transactions={calls}",),
                *defined(variables),
                dsn,
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "PGOPTIONS": SESSION, "LC_ALL": "C"},
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"pgbench did not end within {LONGEST:.0f} s") from error
    if ran.returncode != 0 or "error" in ran.stderr:
        raise BenchError(f"pgbench failed; it says:\n{ran.stderr.strip()}")


def _figures(connection: psycopg.Connection, key: Key, calls: int) -> dict[str, float]:
    row = connection.execute(
        "select count(*), extract(epoch from max(at) - min(at))::double precision,"
        " (select count(*) from scheduler.tasks where payload ? 'n')"
        " from scheduler.audit where action = 'enqueue'"
    ).fetchone()
    assert row is not None
    audited, seconds, tasks = row
    if (audited, tasks) != (calls, calls * key.batch):
        raise WrongDrainError(
            f"{calls} calls of {key.system} with {key.batch} tasks each left {tasks} tasks and"
            f" {audited} rows in the audit"
        )
    # The first call's own time is not between the two rows, so neither is the call counted.
    rate = (audited - 1) / seconds if seconds else 0.0
    return {"tasks_per_s": rate * key.batch, "seconds": seconds, "tasks": tasks}
