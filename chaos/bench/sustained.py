"""`chaos bench sustained`: whether a drain of a minute is as fast at its end as at its beginning.

Workers drain a backlog that is larger than they can finish, and are stopped after the given time.
The rate of each window is counted from the run log: completions between its begin and its end, from
the first claim on; a claim belongs to the window in which it began. All drains start from the same
tasks, of which a million that were due before the others are over, in three ways:

- `free`: those were vacuumed away, and nothing keeps vacuum from going on;
- `horizon held`: likewise, but an old transaction is open during the drain, so that no row that
  dies in it can be removed;
- `1,000,000 dead before`: that transaction began before the million ended, so that their dead rows
  stand before every task that is due.

Afterwards every task is either completed, once, or still waiting; and handlers ran as often as
tasks were completed. A backlog that was over too early is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg import Connection

import scheduler
from chaos.bench import BenchError, WrongDrainError, noop
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.crew import Workers
from chaos.bench.filled import fill, finish, held_horizon
from chaos.bench.result import OURS, Key, Measurement, Result
from chaos.bench.setting import Setting
from chaos.bench.statistics import percentile
from chaos.bench.tell import Tell
from chaos.bench.worker import Seen
from chaos.cluster.postgres import Postgres, postgres

BENCH = "sustained"
FREE, HELD = "free", "horizon held"
UNFINISHED, CLEAN = "unfinished", "clean"  # templates: before the past is over, and vacuumed after
FIRST_SECONDS = 120.0  # that may go by before the first task is done
LOOK_EVERY = 0.1

# Of the drained tasks, which come after those of the past.
CHECKS = (
    (
        "select count(*) from scheduler.tasks where status not in ('pending', 'completed')",
        "{n} tasks are neither completed nor waiting",
    ),
    (
        "select count(*) from scheduler.run_log where outcome not in ('completed', 'released')",
        "{n} rows of the run log say something else than completed or released",
    ),
    (
        "select count(*) from (select from scheduler.run_log where outcome = 'completed'"
        " group by task_id having count(*) > 1) as twice",
        "{n} tasks have more than one completion in the run log",
    ),
    (
        "select count(*) from scheduler.run_log as log where outcome = 'completed' and not exists"
        " (select from scheduler.tasks as task where task.id = log.task_id"
        " and task.status = 'completed' and task.lease_token = log.lease_token)",
        "{n} completions in the run log are of a task that is not completed",
    ),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """backlog: tasks that are due. past: tasks that are over. window: seconds of each."""

    setting: Setting
    workers: int
    backlog: int
    past: int
    seconds: int
    window: int
    repeats: int


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    ways = (FREE, HELD, dead_before(plan.past))
    measurements: list[Measurement] = []
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        prepare(server, plan)
        turns = [(repeat, way) for repeat in range(1, plan.repeats + 1) for way in ways]
        for done, (repeat, way) in enumerate(turns):
            key = Key(OURS, way, plan.setting.batch, plan.seconds)
            tell(done, len(turns), key, measurements[-1] if measurements else None)
            directory = Path(scratch) / str(done)
            directory.mkdir()
            measurements += measure(server, plan, way, repeat, directory)
        notes = (
            f"{plan.workers} workers with {plan.setting.name}, {plan.backlog:,} tasks due and"
            f" {plan.past:,} over before the drain",
        )
        return clock.result(BENCH, "seconds", server, notes, measurements)


def dead_before(past: int) -> str:
    """The way of a drain before which so many dead rows stand."""
    return f"{past:,} dead before"


def prepare(server: Postgres, plan: Plan) -> None:
    """Make the templates."""
    server.create_database(UNFINISHED)
    scheduler.migrate(server.dsn(UNFINISHED))
    with psycopg.connect(server.dsn(UNFINISHED), autocommit=True) as connection:
        fill(connection, plan.past, plan.backlog)
        connection.execute("vacuum (analyze)")
    server.create_database(CLEAN, template=UNFINISHED)
    with psycopg.connect(server.dsn(CLEAN), autocommit=True) as connection:
        finish(connection, plan.past)
        connection.execute("vacuum (analyze)")


def measure(
    server: Postgres, plan: Plan, way: str, repeat: int, directory: Path
) -> list[Measurement]:
    """Drain a fresh copy for so long; a measurement for each window, at its end."""
    database, dead = "sustained", way == dead_before(plan.past)
    server.create_database(database, template=UNFINISHED if dead else CLEAN)
    dsn = server.dsn(database)
    crew = Workers(dsn, plan.setting, plan.workers, directory)
    try:
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            ExitStack() as horizon,
        ):
            if way != FREE:
                horizon.enter_context(held_horizon(dsn))
            if dead:
                finish(connection, plan.past)
                connection.execute("analyze")  # what is measured is dead rows, not old statistics
            crew.assemble()
            connection.execute("checkpoint")
            crew.begin()
            _await_second(connection, crew, plan.seconds)
            seen = crew.end()
            verify(connection, plan, seen, way)
            windows = _windows(connection, plan, seen)
    finally:
        crew.destroy()
        server.drop_database(database)
    return [
        Measurement(Key(OURS, way, plan.setting.batch, at), repeat, figures, {})
        for at, figures in windows.items()
    ]


def verify(connection: Connection, plan: Plan, seen: list[Seen], way: str) -> None:
    """Raise WrongDrainError unless each task was done once or is still there, and BenchError if
    the workers ran out of tasks."""
    wrong = noop.failed(connection, CHECKS)
    total, waiting, done = _row(
        connection,
        "select (select count(*) from scheduler.tasks),"
        " (select count(*) from scheduler.tasks where status = 'pending'),"
        " (select count(*) from scheduler.run_log where outcome = 'completed')",
    )
    if (expected := plan.past + plan.backlog) != total:
        wrong.append(f"there are {total} tasks, not {expected}")
    if done + waiting != plan.backlog:
        wrong.append(f"{done} tasks are done and {waiting} wait, of {plan.backlog}")
    if (ran := sum(one.ran for one in seen)) != done:
        wrong.append(f"handlers ran {ran} times for {done} tasks")
    if wrong:
        raise WrongDrainError(f"the drain ({way}) is wrong, its speed means nothing: {wrong}")
    if waiting == 0:
        raise BenchError(
            f"the backlog of {plan.backlog:,} tasks was over before {plan.seconds} s were:"
            " give more --tasks"
        )


def sentences(medians: Mapping[Key, float], unit: str) -> Iterator[str]:
    """The last window beside the first, and each way beside the drain whose horizon is free."""
    rates = by_way(medians)
    for way, windows in rates.items():
        first, last = windows[min(windows)], windows[max(windows)]
        said = f"{way}: {first:,.0f} {unit} in the first window, {last:,.0f} in the last"
        if first:
            said += f": {last / first:.2f} of it"
        if way != FREE and FREE in rates:
            share = mean(windows.values()) / mean(rates[FREE].values())
            said += f"; in all {share:.2f} of the drain that is {FREE}"
        yield said


def by_way(medians: Mapping[Key, float]) -> dict[str, dict[int, float]]:
    """The rates of each way by the windows' ends."""
    rates: dict[str, dict[int, float]] = {}
    for key, value in medians.items():
        rates.setdefault(key.setting, {})[key.at] = value
    return rates


def _await_second(connection: Connection, crew: Workers, seconds: int) -> None:
    """Wait until so many seconds have gone by since the first claim, by the database's clock."""
    deadline = time.monotonic() + FIRST_SECONDS
    while True:
        # Asked by the rows' order of writing, or each look would read all of a growing table.
        age = _row(
            connection,
            "select extract(epoch from scheduler.now() - (select claimed_at from"
            " scheduler.run_log limit 1))::double precision",
        )[0]
        crew.check()
        if age is None and time.monotonic() > deadline:
            raise BenchError(f"no task was done within {FIRST_SECONDS:.0f} s")
        if age is not None and age > seconds + LOOK_EVERY:
            return
        time.sleep(LOOK_EVERY if age is None else min(1.0, seconds + 2 * LOOK_EVERY - age))


def _windows(connection: Connection, plan: Plan, seen: list[Seen]) -> dict[int, dict[str, float]]:
    """The figures of each window, by its end in seconds."""
    began: float = _row(
        connection,
        "select extract(epoch from min(claimed_at))::double precision from scheduler.run_log",
    )[0]
    counted = connection.execute(
        "select floor((extract(epoch from finished_at) - %s) / %s)::integer, count(*)"
        " from scheduler.run_log where outcome = 'completed' group by 1",
        [began, plan.window],
    )
    done: dict[int, int] = dict(counted.fetchall())
    figures = {}
    for number in range(plan.seconds // plan.window):
        claims = [
            took * 1000
            for one in seen
            for at, took, got in zip(one.began, one.took, one.got, strict=True)
            if got and max(0, int((at - began) // plan.window)) == number
        ]
        figures[(number + 1) * plan.window] = {
            "tasks_per_s": done.get(number, 0) / plan.window,
            **({"claim_p50": percentile(claims, 50)} if claims else {}),
            **({"claim_p99": percentile(claims, 99)} if claims else {}),
        }
    return figures


def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row
