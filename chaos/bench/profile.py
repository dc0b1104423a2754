"""`chaos bench profile`: where one kind of drain spends its time, statement by statement.

The same drain as in the contention bench, on a server that also counts with `pg_stat_statements`
(planning included, which costs a little: these figures are for looking into, not for quoting).
What one change would bring can be tried without writing it: `before` is SQL for the copy that is
about to be drained, `options` are settings for the workers' sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from chaos.bench import drain as one_drain
from chaos.bench.computer import SETTINGS
from chaos.bench.crew import Workers
from chaos.bench.drain import Place, drain
from chaos.bench.result import OURS, Key, Measurement
from chaos.bench.setting import Setting
from chaos.bench.tell import Tell
from chaos.cluster.postgres import postgres

COUNTING = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_planning": "on",
}
# A statement is known by the first line of its file, which is a comment.
_STATEMENTS = """
select substring(query from '^--\\s*([^\\n]*)'), sum(calls)::bigint, sum(rows)::bigint,
    sum(total_exec_time), sum(plans)::bigint, sum(total_plan_time),
    sum(shared_blks_hit + shared_blks_read)::bigint, sum(wal_records)::bigint,
    sum(wal_bytes)::bigint
from pg_stat_statements
where query like '--%' and dbid = (select oid from pg_database where datname = current_database())
group by 1
order by sum(total_exec_time + total_plan_time) desc
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One cell, several times."""

    setting: Setting
    workers: int
    tasks: int
    repeats: int
    options: str
    before: str


class Statement(NamedTuple):
    """What the server counted for one statement in one drain. Times in milliseconds."""

    what: str
    calls: int
    rows: int
    exec_ms: float
    plans: int
    plan_ms: float
    blocks: int
    wal_records: int
    wal_bytes: int


class Profile(NamedTuple):
    """One drain, and its statements, the most expensive first."""

    drained: Measurement
    statements: tuple[Statement, ...]


def run(plan: Plan, tell: Tell) -> list[Profile]:
    """Profile so many drains. Raises WrongDrainError, BenchError, ClusterError or psycopg.Error."""
    key = Key(OURS, plan.setting.name, plan.setting.batch, plan.workers)
    profiles: list[Profile] = []
    with (
        postgres(settings={**SETTINGS, **COUNTING}, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        place = one_drain.prepare(server, plan.tasks, Path(scratch))
        for repeat in range(1, plan.repeats + 1):
            tell(repeat - 1, plan.repeats, key, profiles[-1].drained if profiles else None)
            profiles.append(_profile(plan, place, key, repeat))
    return profiles


def _profile(plan: Plan, place: Place, key: Key, repeat: int) -> Profile:
    database = f"drain_{repeat}"
    place.server.create_database(database, template=place.template)
    directory = place.scratch / database
    directory.mkdir()
    dsn = place.server.dsn(database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension pg_stat_statements")
        if plan.before:
            connection.execute(plan.before.encode())
    workers = make_conninfo(dsn, options=plan.options) if plan.options else dsn
    crew = Workers(workers, plan.setting, plan.workers, directory)
    drained = drain(place, database, crew, key, repeat)
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(_STATEMENTS.encode()).fetchall()
    place.server.drop_database(database)
    return Profile(drained, tuple(Statement(*row) for row in rows))


def per_task(profiles: list[Profile], figure: str) -> tuple[float, float, float]:
    """A CPU figure in microseconds a task: median, least and greatest."""
    values = [
        one.drained.figures[figure] / one.drained.figures["tasks"] * 1_000_000 for one in profiles
    ]
    return median(values), min(values), max(values)


def statements(profiles: list[Profile]) -> list[Statement]:
    """Each statement with the median of each of its numbers, the most expensive first."""
    by_name: dict[str, list[Statement]] = {}
    for profile in profiles:
        for one in profile.statements:
            by_name.setdefault(one.what, []).append(one)
    medians = [
        Statement(
            what, *(median(column) for column in zip(*(one[1:] for one in seen), strict=True))
        )
        for what, seen in by_name.items()
    ]
    return sorted(medians, key=lambda one: -(one.exec_ms + one.plan_ms))
