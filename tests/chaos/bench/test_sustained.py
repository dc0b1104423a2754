"""The sustained drain, tiny; dead rows that stay; and drains that are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import Connection

from chaos.bench import BenchError, WrongDrainError, growth
from chaos.bench.filled import fill, finish, held_horizon
from chaos.bench.result import OURS, Key
from chaos.bench.setting import parse_setting
from chaos.bench.sustained import (
    CLEAN,
    FREE,
    HELD,
    UNFINISHED,
    Plan,
    dead_before,
    measure,
    prepare,
    sentences,
    verify,
)
from chaos.bench.worker import Seen
from chaos.cluster.postgres import Postgres

# One at a time, and more than any machine completes so in two seconds.
PLAN = Plan(parse_setting("1"), 1, backlog=20_000, past=300, seconds=2, window=1, repeats=1)
DEAD = dead_before(PLAN.past)
SMALL = replace(PLAN, backlog=10, past=5)


def dead_rows(connection: Connection) -> int:
    """What a vacuum leaves dead in the table of tasks."""
    connection.execute("select pg_stat_force_next_flush()")  # or our own counts come after it
    connection.execute("vacuum scheduler.tasks")
    [(number,)] = connection.execute(
        "select n_dead_tup from pg_stat_user_tables where relid = 'scheduler.tasks'::regclass"
    ).fetchall()
    return int(number)


def test_dead_rows_stay_while_an_old_transaction_is_open(db: Connection, dsn: str) -> None:
    fill(db, 50, 10)
    with held_horizon(dsn):
        finish(db, 50)
        assert dead_rows(db) == 50
    assert dead_rows(db) == 0
    [(due,)] = db.execute("select count(*) from scheduler.tasks where status = 'pending'")
    assert due == 10


def test_claims_pass_what_is_dead_and_get_what_is_due(db: Connection, dsn: str) -> None:
    fill(db, 50, 10)
    with held_horizon(dsn):
        finish(db, 50)
        found = growth.claims_of(dsn, batch=5, claims=2)
    assert found["claims"] == 2


@pytest.mark.slow
def test_each_way_has_its_windows(migrated: Postgres, tmp_path: Path) -> None:
    prepare(migrated, PLAN)
    try:
        for way in (FREE, HELD, DEAD):
            (tmp_path / way).mkdir()
            found = measure(migrated, PLAN, way, 1, tmp_path / way)
            assert [one.key for one in found] == [Key(OURS, way, 1, at) for at in (1, 2)]
            assert sum(one.figures["tasks_per_s"] for one in found) < PLAN.backlog
    finally:
        for template in (UNFINISHED, CLEAN):
            migrated.drop_database(template)


COMPLETE = (
    "update scheduler.tasks set status = 'completed', attempts = 1, lease_token = 1,"
    " finished_at = scheduler.now() where id {}"
)
LOG = (
    "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
    " finished_at, outcome) select id, 1, 'w/1', 1, scheduler.now(), scheduler.now() + {},"
    " 'completed' from scheduler.tasks where id {}"
)
NOW, LATER = "'0 s'::interval", "'1 s'::interval"


@pytest.mark.parametrize(
    ("bugs", "ran", "said"),
    [
        ([], 1, "handlers ran 1 times for 0 tasks"),
        ([COMPLETE.format("= 7")], 0, "0 tasks are done and 9 wait, of 10"),
        ([LOG.format(NOW, "= 7")], 1, "of a task that is not completed"),
        (
            [COMPLETE.format("= 7"), LOG.format(NOW, "= 7"), LOG.format(LATER, "= 7")],
            2,
            "more than one completion",
        ),
        (
            ["update scheduler.tasks set status = 'cancelled', finished_at = now() where id = 7"],
            0,
            "neither completed nor waiting",
        ),
        (["delete from scheduler.tasks where id = 7"], 0, "there are 14 tasks, not 15"),
        (
            [
                COMPLETE.format("= 7"),
                LOG.format(NOW, "= 7"),
                "update scheduler.run_log set outcome = 'failed'",
            ],
            0,
            "say something else than completed or released",
        ),
    ],
)
def test_a_sustained_drain_that_is_wrong_is_called_so(
    db: Connection, bugs: list[str], ran: int, said: str
) -> None:
    fill(db, SMALL.past, SMALL.backlog)
    finish(db, SMALL.past)
    verify(db, SMALL, [], FREE)  # nothing is done yet, which is no mistake
    for bug in bugs:
        db.execute(bug.encode())
    with pytest.raises(WrongDrainError, match=said):
        verify(db, SMALL, [Seen(ran=ran)], FREE)


def test_a_backlog_that_was_over_early_has_no_figure(db: Connection) -> None:
    fill(db, SMALL.past, SMALL.backlog)
    finish(db, SMALL.past)
    db.execute(COMPLETE.format("> 5").encode())
    db.execute(LOG.format(NOW, "> 5").encode())
    with pytest.raises(BenchError, match="give more --tasks"):
        verify(db, SMALL, [Seen(ran=10)], FREE)


def test_the_last_window_is_said_beside_the_first() -> None:
    rates = {FREE: (1000.0, 900.0), HELD: (1000.0, 500.0), DEAD: (400.0, 360.0)}
    medians = {
        Key(OURS, way, 10, at): rate
        for way, pair in rates.items()
        for at, rate in zip((10, 20), pair, strict=True)
    }
    free, held, dead = sentences(medians, "tasks/s")
    assert free.endswith("first window, 900 in the last: 0.90 of it")
    assert "500 in the last: 0.50 of it; in all 0.79 of the drain that is free" in held
    assert "in all 0.40 of the drain that is free" in dead
