"""The further benches, tiny; the plan of the first; and what the command line refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from typer.testing import CliRunner

from chaos.bench import WrongDrainError, enqueue, growth, latency, noop, scrape
from chaos.bench.contention import Plan
from chaos.bench.limit import find_pgbench
from chaos.bench.result import LIMIT, OURS, Key
from chaos.bench.setting import parse_setting
from chaos.cli import app
from chaos.cluster.postgres import Postgres
from scheduler import enqueue_many
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


def test_every_task_of_an_idle_fleet_has_a_latency(migrated: Postgres, tmp_path: Path) -> None:
    took = latency.measure(migrated, TEMPLATE, 2, 50.0, 0.2, tmp_path)
    assert len(took) == 10
    assert min(took) > 0


def test_claims_are_timed_and_must_get_all(db: Connection, dsn: str) -> None:
    enqueue_many(db, noop.kind(), [{"n": 1}] * 20)
    found = growth.claims_of(dsn, batch=5, claims=3)
    assert 0 < found["claim_p50"] <= found["claim_p99"]
    with pytest.raises(WrongDrainError, match="a claim of 6 got 5"):
        growth.claims_of(dsn, batch=6, claims=1)


def test_a_scrape_of_a_queue_is_timed(dsn: str) -> None:
    found = scrape.measure(dsn, 300, 200)
    assert (found.finished, found.waiting) == (300, 200)
    assert 0 < found.seconds <= found.slowest


def test_repeats_are_interleaved_with_the_limit_beside_ours() -> None:
    settings = tuple(map(parse_setting, ("default", "1+99")))
    plan = Plan(settings, (1, 4), repeats=2, tasks=None)
    cells = [(key.system, key.setting, key.at) for key in plan.cells(with_limit=True)]
    assert cells == [
        (system, setting, workers)
        for workers in (1, 4)
        for system, setting in (
            *((OURS, "default"), (OURS, "1+99")),
            *((LIMIT, "1"), (LIMIT, "10"), (LIMIT, "100")),
        )
    ]
    assert {key.system for key in plan.cells(with_limit=False)} == {OURS}
    assert plan.tasks_for(1) < plan.tasks_for(10) < plan.tasks_for(100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["contention", "--workers", "0"], "--workers must be numbers from 1"),
        (["contention", "--batches", "many"], "'many' is no setting"),
        (["transactional", "--workers", "30"], "30 workers need 360 sessions"),
        (["growth", "--pending", "100"], "need more than 100 tasks"),
        (["sustained", "--seconds", "10"], "10 s must be two or more windows of 10 s"),
        (["enqueue", "--batches", "1000", "--bulk", "1500"], "at least two calls"),
        (["latency", "--workers", "x"], "--workers must be numbers"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["bench", *arguments])
    assert ran.exit_code == 2
    assert said in ran.output.replace("\n", " ")


@pytest.mark.parametrize("bench", ["contention", "transactional", "growth", "enqueue", "latency"])
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
