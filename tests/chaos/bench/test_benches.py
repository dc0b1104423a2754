"""The further benches, tiny; the plan of the first; and what the command line refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from typer.testing import CliRunner

from chaos.bench import WrongDrainError, enqueue, growth, noop, schedules, scrape, startup
from chaos.bench.contention import Plan
from chaos.bench.limit import find_pgbench
from chaos.bench.result import LIMIT, ONE_COMMIT, OURS, Key, Measurement, Result
from chaos.bench.setting import parse_setting
from chaos.cli import app
from chaos.cluster.postgres import Postgres
from scheduler import enqueue_many
from scheduler.dispatch import claim
from scheduler.finish import complete
from scheduler.schedules import declare_schedules
from scheduler.upkeep import PLAN_LIMIT
from tests.chaos.bench.made_up import MACHINE
from tests.conftest import TEMPLATE


@pytest.mark.parametrize("system", [OURS, LIMIT])
def test_two_clients_enqueue_and_are_counted(
    migrated: Postgres, tmp_path: Path, system: str
) -> None:
    program = find_pgbench(migrated)
    found = enqueue.measure(migrated, TEMPLATE, program, Key(system, "3", 3, 2), 5, tmp_path)
    assert found["tasks"] == 2 * 5 * 3
    assert found["tasks_per_s"] == pytest.approx((10 - 1) * 3 / found["seconds"])


def test_a_task_too_many_makes_an_enqueue_wrong(migrated: Postgres, tmp_path: Path) -> None:
    migrated.create_database("not_empty", template=TEMPLATE)
    with psycopg.connect(migrated.dsn("not_empty"), autocommit=True) as connection:
        enqueue_many(connection, noop.kind(), [{"n": 1}])
    try:
        with pytest.raises(WrongDrainError, match="7 tasks and 4 rows"):
            enqueue.measure(migrated, "not_empty", None, Key(OURS, "2", 2, 1), 3, tmp_path)
    finally:
        migrated.drop_database("not_empty")


def test_claims_are_timed_and_must_get_all(db: Connection, dsn: str) -> None:
    enqueue_many(db, noop.kind(), [{"n": 1}] * 20)
    found = growth.claims_of(dsn, batch=5, claims=3)
    assert 0 < found["claim_p50"] <= found["claim_p99"]
    with pytest.raises(WrongDrainError, match="a claim of 6 got 5"):
        growth.claims_of(dsn, batch=6, claims=1)


@pytest.mark.parametrize("way", [startup.COMMAND, startup.FORKED])
def test_a_fleet_has_started_when_each_worker_holds_a_task(
    migrated: Postgres, tmp_path: Path, way: str
) -> None:
    found = startup.measure(migrated, TEMPLATE, way, 2, tmp_path)
    assert 0 < found["claiming_first"] <= found["claiming_all"]


def test_one_worker_that_did_the_tasks_of_two_is_no_fleet(db: Connection) -> None:
    enqueue_many(db, noop.kind(), [{"n": 1}] * 2)
    for owner in ("w1/a", "w1/b"):
        [attempt] = claim(db, owner, {noop.KIND: timedelta(minutes=1)}, 1, 0.0)
        complete(db, [attempt.lease])
    with pytest.raises(WrongDrainError, match="tasks of 2 workers were not done by as many"):
        startup.verify(db, 2)
    db.execute("update scheduler.run_log set lease_owner = 'w2/b' where lease_owner = 'w1/b'")
    startup.verify(db, 2)


@pytest.fixture
def some_due(migrated: Postgres) -> Iterator[str]:
    """A template with ten tasks."""
    migrated.create_database("some_due", template=TEMPLATE)
    with psycopg.connect(migrated.dsn("some_due"), autocommit=True) as connection:
        enqueue_many(connection, noop.kind(), [{"n": 1}] * 10)
    yield "some_due"
    migrated.drop_database("some_due")


def test_each_schedule_is_planned_once_and_timed(migrated: Postgres, some_due: str) -> None:
    # More than a page of them, and fewer occurrences than are claimed: both kinds of task are.
    found = schedules.measure(migrated, some_due, PLAN_LIMIT + 3, batch=6, claims=10)
    assert set(found) == {
        *("declare_first", "declare_again", "plan_all", "look_idle", "look_blocked"),
        *("claim_p50", "claim_p99", "claims"),
    }
    assert min(found.values()) > 0
    measured = Result(
        schedules.BENCH,
        "schedules",
        "",
        "",
        1.0,
        MACHINE,
        (),
        tuple(Measurement(Key(OURS, "default", 6, at), 1, found, {}) for at in (10, 20)),
    )
    said = list(schedules.sentences(measured))
    assert said[0].startswith("declaring 20 schedules for the first time took")
    assert said[-1] == "a claim with 20 schedules took 1.00 of one with 10"


def test_an_occurrence_too_few_or_many_makes_planning_wrong(db: Connection) -> None:
    declare_schedules(db, schedules.registry(2))
    for planned in (0, 4):
        for number in range(planned):
            db.execute(
                "insert into scheduler.tasks (kind, payload, status, next_run_at, max_attempts,"
                " backoff_base, backoff_factor, backoff_cap, backoff_jitter, enqueued_at,"
                " schedule, occurrence) values ('noop', '{}', 'pending', now(), 1, 1, 2, 60, 0,"
                " now(), %s, now())",
                [f"schedule-{number}"],
            )
        with pytest.raises(WrongDrainError, match=f"due once have {planned} occurrences"):
            schedules.verify(db, 2)


def test_a_scrape_of_a_queue_is_timed(dsn: str) -> None:
    found = scrape.measure(dsn, 300, 200)
    assert (found.finished, found.waiting) == (300, 200)
    assert 0 < found.seconds <= found.slowest


def test_repeats_are_interleaved_with_the_limits_beside_ours() -> None:
    settings = tuple(map(parse_setting, ("default", "1+99", "100")))
    plan = Plan(settings, (1, 4), repeats=2, tasks=None)
    cells = [(key.system, key.setting, key.at) for key in plan.cells(with_limit=True)]
    assert cells == [
        (system, setting, workers)
        for workers in (1, 4)
        for system, setting in (
            *((OURS, "default"), (OURS, "1+99"), (OURS, "100")),
            (LIMIT, "1"),  # always; the other only where ours has the batch
            *((LIMIT, "100"), (ONE_COMMIT, "100")),
            *((LIMIT, "500"), (ONE_COMMIT, "500")),
        )
    ]
    assert {key.system for key in plan.cells(with_limit=False)} == {OURS}
    assert plan.tasks_for(1) < plan.tasks_for(10) < plan.tasks_for(100) == plan.tasks_for(500)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["contention", "--workers", "0"], "--workers must be numbers from 1"),
        (["contention", "--batches", "many"], "'many' is no setting"),
        (["transactional", "--workers", "30"], "30 workers need 360 sessions"),
        (["growth", "--pending", "100"], "need more than 100 tasks"),
        (["schedules", "--schedules", "0"], "--schedules must be numbers from 1"),
        (["startup", "--workers", "1000"], "--workers must be numbers from 1 to 128"),
        (["sustained", "--seconds", "10"], "10 s must be two or more windows of 10 s"),
        (["enqueue", "--batches", "1000", "--bulk", "1500"], "at least two calls"),
        (["latency", "--workers", "x"], "--workers must be numbers"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["bench", *arguments])
    assert ran.exit_code == 2
    assert said in ran.output.replace("\n", " ")


@pytest.mark.parametrize(
    "bench",
    [
        *("contention", "transactional", "growth", "sustained", "schedules", "startup"),
        *("enqueue", "latency"),
    ],
)
def test_without_what_draws_the_page_nothing_is_measured_first(
    bench: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it measures before it looks")

    monkeypatch.setattr(f"chaos.bench.{bench}.run", measured)
    monkeypatch.delitem(sys.modules, "chaos.bench.page", raising=False)
    monkeypatch.setitem(sys.modules, "chaos.bench.plots", None)  # as where there is no matplotlib
    ran = CliRunner().invoke(app, ["bench", bench, "--out", str(tmp_path)])
    assert ran.exit_code == 4, ran.output
    assert "pip install 'leaseproof[bench]'" in " ".join(ran.output.split())
    assert not list(tmp_path.iterdir())
