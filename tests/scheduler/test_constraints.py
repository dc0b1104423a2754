"""The table refuses what must not be, whoever writes it: every constraint, by its illegal rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import Postgres
from tests.scheduler.working import put

ILLEGAL = [
    ("status_is_known", "status = 'lost'"),
    ("kind_is_short", "kind = ''"),
    ("kind_is_short", "kind = repeat('x', 101)"),
    ("queue_is_short", "queue = ''"),
    ("queue_is_short", "queue = repeat('x', 101)"),
    ("priority_is_a_level", "priority = -1"),
    ("priority_is_a_level", "priority = 4"),
    ("key_has_a_scope", "unique_key = 'k'"),
    ("key_has_a_scope", "unique_until = 'finished'"),
    ("key_has_a_scope", "unique_key = 'k', unique_until = 'later'"),
    ("occurrence_is_of_a_schedule", "schedule = 'nightly'"),
    ("occurrence_is_of_a_schedule", "occurrence = now()"),
    ("running_iff_leased", "lease_owner = 'me'"),
    ("running_iff_leased", "lease_expires_at = now()"),
    ("running_iff_leased", "claimed_at = now()"),
    ("running_iff_leased", "status = 'running', attempts = 1, lease_token = 1"),
    (
        "running_was_claimed",
        "status = 'running', attempts = 1, lease_owner = 'me', lease_expires_at = now(),"
        " claimed_at = now()",
    ),
    (
        "running_was_claimed",
        "status = 'running', lease_token = 1, lease_owner = 'me', lease_expires_at = now(),"
        " claimed_at = now()",
    ),
    ("attempts_within_cap", "attempts = -1"),
    ("attempts_within_cap", "max_attempts = 0"),
    (
        "attempts_within_cap",
        "attempts = max_attempts + 1, status = 'completed', finished_at = now()",
    ),
    ("pending_has_an_attempt_left", "attempts = max_attempts"),
    (
        "dead_is_exhausted_and_says_why",
        "status = 'dead', finished_at = now(), attempts = max_attempts",
    ),
    (
        "dead_is_exhausted_and_says_why",
        "status = 'dead', finished_at = now(), attempts = 1, last_error = 'no'",
    ),
    ("finished_iff_over", "finished_at = now()"),
    ("finished_iff_over", "status = 'completed'"),
    ("finished_iff_over", "status = 'cancelled'"),
    ("finished_iff_over", "status = 'discarded'"),
    ("finished_iff_over", "status = 'dead', attempts = max_attempts, last_error = 'no'"),
    ("time_is_readable", "next_run_at = 'infinity'"),
    ("time_is_readable", "next_run_at = '-infinity'"),
    ("time_is_readable", "next_run_at = '0001-01-01 00:00+00 BC'"),
    ("time_is_readable", "next_run_at = '10000-01-01 00:00+00'"),
    ("time_is_readable", "schedule = 'nightly', occurrence = 'infinity'"),
    ("backoff_is_bounded", "backoff_base = 0"),
    ("backoff_is_bounded", "backoff_base = 1e-305"),
    ("backoff_is_bounded", "backoff_base = 'NaN'"),
    ("backoff_is_bounded", "backoff_factor = 0.5"),
    ("backoff_is_bounded", "backoff_cap = backoff_base / 2"),
    ("backoff_is_bounded", "backoff_cap = 31536001"),
    ("backoff_is_bounded", "backoff_cap = 'NaN'"),
    ("backoff_is_bounded", "backoff_jitter = -0.1"),
    ("backoff_is_bounded", "backoff_jitter = 0.6"),
]


@pytest.fixture(scope="module")
def shared(migrated: Postgres) -> Iterator[Connection]:
    """One database for all cases: each rolls back what it does."""
    name = f"test_{uuid4().hex}"
    migrated.create_database(name, template="scheduler_template")
    with closing(psycopg.connect(migrated.dsn(name), autocommit=True)) as connection:
        yield connection
    migrated.drop_database(name)


@pytest.fixture
def table(shared: Connection) -> Iterator[Connection]:
    """A connection in a transaction, with one pending task."""
    with shared.transaction(force_rollback=True):
        put(shared)
        yield shared


def refusal(table: Connection, change: str) -> str | None:
    """The name of a constraint that refuses the change."""
    with pytest.raises(psycopg.errors.CheckViolation) as refused, table.transaction():
        table.execute(f"update scheduler.tasks set {change}".encode())
    return refused.value.diag.constraint_name


def constraints(table: Connection) -> list[tuple[str, str]]:
    """The CHECK constraints of the table and of its columns' types: whose each is, and its name."""
    return table.execute(
        "select case when contypid = 0 then 'table ' || conrelid::regclass"
        " else 'domain ' || contypid::regtype end, conname"
        " from pg_constraint where contype = 'c' and (conrelid = 'scheduler.tasks'::regclass"
        " or contypid in ("
        "select atttypid from pg_attribute where attrelid = 'scheduler.tasks'::regclass))"
    ).fetchall()


@pytest.mark.parametrize(("constraint", "change"), ILLEGAL)
def test_an_illegal_row_is_refused(table: Connection, constraint: str, change: str) -> None:
    assert refusal(table, change) in {name for _, name in constraints(table)}
    # A row can break several; the named one must refuse it alone.
    for whose, name in constraints(table):
        if name != constraint:
            table.execute(f"alter {whose} drop constraint {name}".encode())
    assert refusal(table, change) == constraint


def test_every_constraint_has_an_illegal_row(table: Connection) -> None:
    assert {name for _, name in constraints(table)} == {constraint for constraint, _ in ILLEGAL}


def test_an_unknown_outcome_is_refused_in_the_run_log(table: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        table.execute(
            "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
            " finished_at, outcome) values (1, 1, 'me', 1, now(), now(), 'vanished')"
        )
    assert refused.value.diag.constraint_name == "outcome_is_known"


def test_an_id_cannot_be_chosen(table: Connection) -> None:
    with pytest.raises(psycopg.errors.GeneratedAlways):
        table.execute("update scheduler.tasks set id = 7")
