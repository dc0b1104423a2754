"""Migrations: from nothing to the newest schema, once, however many try at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from scheduler import Registry, SchemaError, Worker, migrate
from scheduler.migrate import applied_version, check_schema, migrations
from scheduler.tasks import clock_source
from tests.scheduler.working import ignore

NEWEST = migrations()[-1].version


def test_a_migrated_database_is_at_the_newest_version(empty_dsn: str) -> None:
    assert migrate(empty_dsn) == [migration.name for migration in migrations()]
    with psycopg.connect(empty_dsn) as connection:
        check_schema(connection)
        assert applied_version(connection) == NEWEST
        assert clock_source(connection) == "statement_timestamp()"


def test_a_second_migration_changes_nothing(empty_dsn: str) -> None:
    migrate(empty_dsn)
    assert migrate(empty_dsn) == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_of_many_that_migrate_at_once_one_does_the_work(empty_dsn: str, isolation: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f'alter database "{name}" set default_transaction_isolation = "{isolation}"'.encode()
        )
    with ThreadPoolExecutor(6) as pool:
        applied = [*pool.map(migrate, [empty_dsn] * 6)]
    assert sorted(applied) == [[]] * 5 + [[migration.name for migration in migrations()]]


def test_a_newer_schema_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into scheduler.migrations (version, name) values (9999, 'future')"
        )
    with pytest.raises(SchemaError, match=r"version 9999, newer than .* upgrade the package"):
        migrate(dsn)
    with (
        psycopg.connect(dsn) as connection,
        pytest.raises(SchemaError, match="upgrade the package"),
    ):
        check_schema(connection)


def test_a_missing_schema_is_refused_with_the_way_out(empty_dsn: str) -> None:
    with (
        psycopg.connect(empty_dsn) as connection,
        pytest.raises(SchemaError, match=r"no scheduler schema yet: run `scheduler migrate`"),
    ):
        check_schema(connection)


def test_a_worker_refuses_a_database_without_the_schema(empty_dsn: str) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with pytest.raises(SchemaError, match="run `scheduler migrate`"):
        Worker(registry, empty_dsn).run()


def test_a_migration_that_fails_half_way_leaves_nothing(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0001_good.sql").write_text("create table scheduler.good (id int)")
    (tmp_path / "0002_bad.sql").write_text("create table scheduler.bad (id int); select 1 / 0")
    known = migrations(tmp_path)
    # The package has a function of the name of the module.
    monkeypatch.setattr(sys.modules["scheduler.migrate"], "migrations", lambda: known)
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_dsn)
    with psycopg.connect(empty_dsn) as connection:
        left = connection.execute("select to_regnamespace('scheduler')").fetchone()
    assert left == (None,)


def test_a_migration_without_a_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first.sql").touch()
    with pytest.raises(SchemaError, match=r"first\.sql is not named like 0001_name.sql"):
        migrations(tmp_path)


def test_run_log_partitions_are_made_once_and_ahead(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        again = connection.execute("select scheduler.add_run_log_partitions(3)").fetchone()
        further = connection.execute("select scheduler.add_run_log_partitions(5)").fetchone()
    assert again == (0,)
    assert further == (2,)
