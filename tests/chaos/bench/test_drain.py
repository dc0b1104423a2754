"""Drains: small ones by real workers and by pgbench, and wrong ones that must be called so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from chaos.bench import BenchError, WrongDrainError, noop
from chaos.bench.contention import CYCLES
from chaos.bench.crew import Workers
from chaos.bench.drain import Crew, Place, claim_figures, drain, verify
from chaos.bench.limit import Pgbench, find_pgbench, gathered_both, gathered_claim
from chaos.bench.result import LIMIT, LIMITS, ONE_COMMIT, OURS, Key
from chaos.bench.setting import parse_setting
from chaos.bench.worker import Seen
from chaos.cluster.postgres import Postgres

TASKS = 200


@pytest.fixture(scope="module")
def place(migrated: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A template with two hundred tasks."""
    template = f"bench_{uuid4().hex}"
    migrated.create_database(template)
    noop.prepare(migrated.dsn(template), TASKS)
    yield Place(migrated, template, TASKS, tmp_path_factory.mktemp("bench"))
    migrated.drop_database(template)


@pytest.fixture
def copy(place: Place) -> Iterator[str]:
    """The name of a fresh copy of it."""
    name = f"drain_{uuid4().hex}"
    place.server.create_database(name, template=place.template)
    yield name
    place.server.drop_database(name)


@pytest.fixture
def drained(place: Place, copy: str) -> Iterator[Connection]:
    """A copy in which everything is done, as it must be."""
    with psycopg.connect(place.server.dsn(copy), autocommit=True) as connection:
        connection.execute(
            "update scheduler.tasks set status = 'completed', attempts = 1, lease_token = 1,"
            " finished_at = scheduler.now()"
        )
        connection.execute(
            "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt,"
            " claimed_at, finished_at, outcome) select id, 1, 'w/1', 1, scheduler.now(),"
            " scheduler.now(), 'completed' from scheduler.tasks"
        )
        yield connection


def one(connection: Connection, statement: str) -> None:
    connection.execute(statement.encode())


def test_a_drain_that_is_right_has_no_violations(drained: Connection) -> None:
    assert noop.violations(drained, TASKS) == []
    assert not noop.open_tasks(drained)
    verify(drained, TASKS, [Seen(ran=150), Seen(ran=50)], "a test")


def test_a_task_that_was_given_back_and_claimed_again_is_right(drained: Connection) -> None:
    one(drained, "update scheduler.run_log set lease_token = 2 where task_id = 7")
    one(drained, "update scheduler.tasks set lease_token = 2 where id = 7")
    assert len(noop.violations(drained, TASKS)) == 1  # a claim that nothing came of
    one(
        drained,
        "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
        " finished_at, outcome) values (7, 1, 'w/1', 1, now(), now(), 'released')",
    )
    assert noop.violations(drained, TASKS) == []


LOG = "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
LOG += " finished_at, outcome) select {}, lease_owner, attempt, claimed_at, {} from"
LOG += " scheduler.run_log order by task_id limit 1"


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ("delete from scheduler.run_log where task_id = 7", "no completion in the run log"),
        (
            LOG.format("task_id, 2", "finished_at + interval '1 ms', 'completed'"),
            "more than one completion",
        ),
        (LOG.format("task_id, 1", "finished_at + interval '1 ms', 'failed'"), "something else"),
        (LOG.format("9999, 1", "finished_at, 'completed'"), "are of no task"),
        ("update scheduler.run_log set lease_token = 3 where task_id = 7", "under their token"),
        (
            "update scheduler.run_log set outcome = 'released' where task_id = 7",
            "no completion in the run log",
        ),
        ("update scheduler.tasks set lease_token = 2 where id = 7", "more or less often"),
        (
            "update scheduler.run_log set claimed_at = claimed_at + interval '1 s'"
            " where task_id = 7",
            "finished before",
        ),
        (
            "update scheduler.tasks set status = 'pending', finished_at = null where id = 7",
            "not completed",
        ),
        ("update scheduler.tasks set attempts = 2 where id = 7", "not completed by their first"),
        ("delete from scheduler.tasks where id = 7", "there are 199 tasks"),
    ],
)
def test_a_drain_that_is_wrong_is_called_so(drained: Connection, bug: str, said: str) -> None:
    one(drained, bug)
    with pytest.raises(WrongDrainError, match=said):
        verify(drained, TASKS, [Seen(ran=TASKS)], "a test")


def test_a_handler_that_ran_twice_makes_a_drain_wrong(drained: Connection) -> None:
    with pytest.raises(WrongDrainError, match="handlers ran 201 times"):
        verify(drained, TASKS, [Seen(ran=150), Seen(ran=51)], "a test")


def test_two_workers_drain_two_hundred_tasks(place: Place, copy: str, tmp_path: Path) -> None:
    crew = Workers(place.server.dsn(copy), parse_setting("2+18"), 2, tmp_path)
    found = drain(place, copy, crew, Key(OURS, "2+18", 20, 2), 1)
    figures = found.figures
    assert figures["tasks"] == TASKS
    assert figures["tasks_per_s"] == pytest.approx(TASKS / figures["seconds"])
    assert round(figures["claims_per_s"] * figures["seconds"]) >= TASKS / 20
    assert 0 < figures["claim_p50"] <= figures["claim_p99"]
    assert figures["updates"] == 2 * TASKS
    assert figures["worker_cpu"] >= 0
    assert figures["wal_per_task"] > 0


def pgbench(place: Place, copy: str, system: str, batch: int, clients: int, to: Path) -> Crew:
    program = find_pgbench(place.server)
    assert program is not None
    return Pgbench(program, place.server.dsn(copy), CYCLES[system](batch), clients, to)


@pytest.mark.parametrize("system", LIMITS)
def test_pgbench_drains_them_with_the_same_statements(
    place: Place, copy: str, tmp_path: Path, system: str
) -> None:
    crew = pgbench(place, copy, system, batch=20, clients=2, to=tmp_path)
    found = drain(place, copy, crew, Key(system, "20", 20, 2), 1)
    assert found.figures["updates"] == 2 * TASKS
    assert round(found.figures["claims_per_s"] * found.figures["seconds"]) >= TASKS / 20
    assert "claim_p50" not in found.figures


@pytest.mark.parametrize(("system", "commits"), [(LIMIT, 20), (ONE_COMMIT, 11)])
def test_pgbench_has_two_commits_a_cycle_or_one(
    place: Place, copy: str, tmp_path: Path, system: str, commits: int
) -> None:
    # Ten batches. With one commit a cycle the last completions go along with a claim of nothing.
    crew = pgbench(place, copy, system, batch=20, clients=1, to=tmp_path)
    with psycopg.connect(place.server.dsn(copy), autocommit=True) as connection:
        note_updates(connection, "pg_current_xact_id()::text")
        drain(place, copy, crew, Key(system, "20", 20, 1), 1)
        noted = connection.execute("select count(distinct what) from noted").fetchone()
    assert noted == (commits,)


@pytest.mark.parametrize("system", LIMITS)
def test_pgbench_completes_later_what_was_locked(
    place: Place, copy: str, tmp_path: Path, system: str
) -> None:
    crew = pgbench(place, copy, system, batch=200, clients=1, to=tmp_path)
    with psycopg.connect(place.server.dsn(copy), autocommit=True) as connection:
        # A claim that came too late holds the locks of what it looked at, to its own end.
        one(
            connection,
            "create function hold() returns trigger language plpgsql as"
            " $$ begin if new.id % 50 = 0 and not exists (select from held where id = new.id)"
            " then insert into held values (new.id); return null; end if; return new; end $$",
        )
        one(connection, "create table held (id bigint primary key)")
        one(
            connection,
            "create trigger hold before update on scheduler.tasks for each row"
            " when (new.status = 'completed') execute function hold()",
        )
    found = drain(place, copy, crew, Key(system, "200", 200, 1), 1)
    assert found.figures["tasks"] == TASKS  # verified: each was completed in the end


@pytest.mark.parametrize("system", [OURS, *LIMITS])
def test_pgbench_plans_its_statements_as_a_worker_does(
    place: Place, copy: str, tmp_path: Path, system: str
) -> None:
    crew: Crew
    if system == OURS:
        crew = Workers(place.server.dsn(copy), parse_setting("20"), 1, tmp_path)
    else:
        crew = pgbench(place, copy, system, batch=20, clients=1, to=tmp_path)
    with psycopg.connect(place.server.dsn(copy), autocommit=True) as connection:
        note_updates(connection, "current_setting('plan_cache_mode')")
        drain(place, copy, crew, Key(system, "20", 20, 1), 1)
        modes = connection.execute("select distinct what from noted").fetchall()
    assert modes == [("force_generic_plan",)]


def note_updates(connection: Connection, what: str) -> None:
    """Have each update of a task note this expression in the table `noted`."""
    one(connection, "create table noted (what text)")
    one(
        connection,
        "create function note() returns trigger language plpgsql as $$ begin"
        f" insert into noted values ({what}); return null; end $$",
    )
    one(
        connection,
        "create trigger note after update on scheduler.tasks for each row execute function note()",
    )


def test_a_worker_that_dies_is_said(place: Place, copy: str, tmp_path: Path) -> None:
    crew = Workers("host=127.0.0.1 port=1 connect_timeout=2", parse_setting("1"), 1, tmp_path)
    with pytest.raises(BenchError, match="DatabaseUnreachableError"):
        drain(place, copy, crew, Key(OURS, "1", 1, 1), 1)


def test_a_statement_of_another_form_is_not_gathered_by_guess() -> None:
    with pytest.raises(BenchError, match="no longer one UPDATE"):
        gathered_claim("select 1")
    with pytest.raises(BenchError, match="no longer one SELECT"):
        gathered_both("select 1")


def test_only_claims_of_the_drain_count() -> None:
    seen = [Seen(began=[1.0, 2.0, 3.0], took=[0.001, 0.002, 9.0], got=[5, 0, 0], ran=5)]
    assert claim_figures(seen, ended=2.5) == {
        "claim_p50": 1.0,
        "claim_p99": 1.0,
        "empty_claims": 1,
    }
    assert claim_figures([], ended=2.5) == {}


def test_a_setting_is_read_as_it_is_said() -> None:
    assert parse_setting("1+99") == ("1+99", 1, 99)
    assert parse_setting("10").batch == 10
    assert parse_setting("default") == ("default", 10, 490)  # at most so many in advance
    for wrong in ("", "0", "1+", "-1", "1+99+1", "99999", "one"):
        with pytest.raises(ValueError, match="is no setting"):
            parse_setting(wrong)
