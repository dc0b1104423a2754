"""The doctor: all is well on a sound server, and each check tells its own illness."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from chaos.cluster.postgres import Postgres, postgres
from chaos.life.clock import Clock
from scheduler import Attempt, Registry, enqueue, migrate
from scheduler.dispatch import claim, new_owner
from scheduler.doctor import Finding, examine
from scheduler.doctor.queue import (
    expired_leases,
    lease_headroom,
    run_log_partitions,
    unknown_kinds,
)
from scheduler.doctor.rights import definer_functions, group_roles, role_grants
from scheduler.doctor.server import (
    autovacuum,
    clock_skew,
    connections,
    default_isolation,
    durability,
    encoding,
    judge_version,
    old_transactions,
    prepared_transactions,
    schema,
    worker_session,
)
from scheduler.doctor.server import clock as clock_source
from scheduler.finish import complete
from scheduler.roles import create_roles
from scheduler.session import connect_worker
from tests.scheduler.roles import drop_roles, logged_in, login

LEASE = timedelta(seconds=60)
NOW = timedelta(0)
REGISTRY = Registry()


@REGISTRY.kind("plain", int, lease=LEASE)
def plain(attempt: Attempt, payload: int) -> None:
    """Only enqueued."""


@REGISTRY.transactional("book", int, lease=LEASE)
def book(attempt: Attempt, payload: int, connection: Connection) -> None:
    """Only enqueued."""


@pytest.fixture
def granted(db: Connection, dsn: str) -> Connection:
    """A database with the group roles."""
    create_roles(dsn)
    return db


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A server set up as one should be; the tests' own is faster and forgets what it likes."""
    with postgres(durable=True, settings={"max_prepared_transactions": "5"}) as running:
        yield running


def finding(result: Finding, level: str, words: str) -> None:
    """The check found this, and if it is not well says what to do."""
    assert words in result.found
    assert (result.level, bool(result.advice)) == (level, level != "ok")


@pytest.mark.slow
def test_all_is_well_on_a_fresh_database_with_roles_until_durability_is_given_up(
    durable: Postgres,
) -> None:
    dsn = durable.dsn()
    migrate(dsn)
    create_roles(dsn)
    found = examine(dsn, REGISTRY)
    assert [it for it in found if it.level != "ok" or it.advice] == []
    assert len({it.check for it in found}) == len(found) == 20
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("begin")
        session.execute("create table prepared (id int)")
        session.execute("prepare transaction 'left'")
        finding(prepared_transactions(session), "ok", "none is older than 0:05:00")
        finding(prepared_transactions(session, NOW), "warn", "'left' of postgres for")
        session.execute("rollback prepared 'left'")
        session.execute("alter database postgres set synchronous_commit = off")
        finding(durability(session), "warn", "synchronous_commit=off (database postgres, every")
        session.execute("alter database postgres reset synchronous_commit")
        session.execute("set synchronous_commit = off")
        finding(durability(session), "warn", "this session: synchronous_commit=off")


def test_a_server_that_may_lose_everything_fails(db: Connection) -> None:
    finding(durability(db), "fail", "fsync and full_page_writes off")


@pytest.mark.parametrize(
    ("version", "level"), [(140011, "fail"), (150000, "ok"), (180003, "ok"), (190000, "warn")]
)
def test_a_version_that_is_not_supported_is_told(version: int, level: str) -> None:
    finding(judge_version(version), level, f"PostgreSQL {version // 10000}.{version % 10000}")


def test_a_database_that_cannot_be_reached_is_the_only_finding() -> None:
    [only] = examine("postgresql://127.0.0.1:1/nowhere")
    assert (only.check, only.level) == ("reachable", "fail")
    assert "refused" in only.found


def test_an_encoding_that_cannot_hold_everything_fails(server: Postgres, dsn: str) -> None:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0".encode()
        )
    try:
        with psycopg.connect(make_conninfo(dsn, dbname=name)) as ascii_only:
            finding(encoding(ascii_only), "fail", "SQL_ASCII")
    finally:
        server.drop_database(name)


def test_without_the_schema_what_needs_it_is_left_out(empty_dsn: str) -> None:
    found = examine(empty_dsn)
    assert (found[-1].check, found[-1].found) == ("schema", "there is no schema")
    assert found[-1].level == "fail"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("delete from scheduler.migrations where version > 1", "version 1, this package needs"),
        ("insert into scheduler.migrations values (999, 'future')", "version 999, this package"),
    ],
)
def test_another_version_s_schema_fails(db: Connection, change: str, words: str) -> None:
    db.execute(change.encode())
    finding(schema(db), "fail", words)


def test_a_test_s_clock_fails(db: Connection, clock: Clock) -> None:
    finding(clock_source(db), "fail", "explorer_clock.reading")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("update scheduler.settings set value = 'mine'", "recorded is mine"),
        ("delete from scheduler.settings", "recorded is None"),
        (
            "create or replace function scheduler.now() returns timestamptz language sql stable"
            " return statement_timestamp() - interval '1 hour'",
            "'01:00:00'",
        ),
        (
            "create schema mine; create function mine.statement_timestamp() returns timestamptz"
            " return now(); set search_path = mine, pg_catalog; create or replace function"
            " scheduler.now() returns timestamptz language sql return statement_timestamp();"
            " reset search_path",
            "mine.statement_timestamp()",
        ),
    ],
    ids=["record", "no record", "late", "shadowed"],
)
def test_another_clock_fails(db: Connection, change: str, words: str) -> None:
    db.execute(change.encode())
    finding(clock_source(db), "fail", words)


def test_a_machine_whose_clock_is_off_is_told_so(db: Connection) -> None:
    finding(clock_skew(db, lambda: time.time() + 7200), "warn", "is -7")
    finding(clock_skew(db, lambda: time.time() - 7200), "warn", "is +7")


def test_a_skew_that_may_be_the_round_trip_s_is_none(db: Connection) -> None:
    now = time.time()
    readings = itertools.cycle([now - 1800, now + 1800])  # an hour for each round trip
    finding(clock_skew(db, lambda: next(readings)), "ok", "give or take 1800.000 s")


def test_another_default_isolation_is_told_with_where_it_stands(db: Connection, dsn: str) -> None:
    finding(default_isolation(db), "ok", "read committed")
    name = db.info.dbname
    db.execute(f"alter database {name} set default_transaction_isolation = serializable".encode())
    finding(default_isolation(db), "warn", f"=serializable (database {name}, every role)")
    with psycopg.connect(dsn) as session:
        finding(default_isolation(session), "warn", "this session: serializable")


def test_a_session_that_drops_a_worker_s_settings_fails(db: Connection, dsn: str) -> None:
    real = partial(connect_worker, dsn, "doctor", LEASE)
    # What a pooler hands out that does not pass a client's `options` on.
    bare = partial(psycopg.connect, dsn, autocommit=True)
    finding(worker_session(db, LEASE, real), "ok", "10 settings hold")
    finding(worker_session(db, LEASE, bare), "fail", "idle_in_transaction_session_timeout is 0")
    finding(worker_session(db, 2 * LEASE, real), "fail", "lock_timeout is 30s, not 1min")


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ("set (autovacuum_enabled = off)", "fail", "off on scheduler.tasks"),
        ("reset (autovacuum_vacuum_scale_factor)", "warn", "20% of scheduler.tasks is dead"),
        ("set (autovacuum_vacuum_scale_factor = 0.02)", "ok", "2% of scheduler.tasks is dead"),
    ],
)
def test_an_autovacuum_that_comes_late_or_never_is_told(
    db: Connection, change: str, level: str, words: str
) -> None:
    db.execute(f"alter table scheduler.tasks {change}".encode())
    finding(autovacuum(db), level, words)


def test_a_transaction_that_keeps_dead_rows_is_told(db: Connection, dsn: str) -> None:
    with psycopg.connect(dsn, application_name="report") as old:
        finding(old_transactions(db, NOW), "ok", "none is older")
        old.execute("select pg_current_xact_id()")
        finding(old_transactions(db), "ok", "none is older than 0:05:00")
        finding(old_transactions(db, NOW), "warn", "of postgres (report, idle in transaction)")


def test_a_role_that_does_not_see_others_sessions_is_told_so(db: Connection, dsn: str) -> None:
    with logged_in(db, dsn) as session:
        finding(old_transactions(session), "warn", "only this role's own sessions")


def test_too_little_room_for_connections_is_told(db: Connection) -> None:
    finding(connections(db), "ok", "on the server")
    db.execute(f"alter database {db.info.dbname} connection limit 1".encode())
    finding(connections(db), "warn", "of 1 to this database")


def test_missing_roles_are_told_and_their_grants_not_missed(db: Connection, dsn: str) -> None:
    drop_roles(db, dsn)
    finding(group_roles(db), "warn", "missing: scheduler_enqueue, scheduler_http")
    finding(role_grants(db), "ok", "0 grants, none to public")


@pytest.mark.parametrize(
    ("change", "back", "words"),
    [
        ("alter role scheduler_reader login", "alter role scheduler_reader nologin", "can log in"),
        (
            "grant scheduler_worker to scheduler_reader",
            "revoke scheduler_worker from scheduler_reader",
            "scheduler_reader is a member of scheduler_worker",
        ),
    ],
)
def test_a_group_role_with_powers_of_its_own_fails(
    granted: Connection, change: str, back: str, words: str
) -> None:
    finding(group_roles(granted), "ok", "5 roles")
    granted.execute(change.encode())
    try:
        finding(group_roles(granted), "fail", words)
    finally:
        granted.execute(back.encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("grant execute on function {0}.now to public", "too much: execute on function now to pub"),
        ("create function {0}.mine() returns int return 1", "execute on function mine to public"),
        ("grant usage on schema {0} to public", "too much: usage on schema scheduler to public"),
        ("grant delete on {0}.tasks to scheduler_worker", "delete on table tasks to scheduler_wor"),
        ("grant update (payload) on {0}.tasks to scheduler_worker", "update (payload) on table"),
        ("grant usage on sequence {0}.tasks_id_seq to scheduler_reader", "on sequence tasks_id_s"),
        (
            "grant select on {0}.tasks to scheduler_reader with grant option",
            "select with grant option on table tasks",
        ),
        ("create table {0}.more (); grant select on {0}.more to public", "select on table more"),
        ("revoke execute on function {0}.cancel from scheduler_operator", "missing: execute on f"),
        ("revoke update (status) on {0}.tasks from scheduler_worker", "missing: update (status)"),
    ],
)
def test_a_grant_too_many_or_too_few_fails(granted: Connection, change: str, words: str) -> None:
    finding(role_grants(granted), "ok", "none to public")
    granted.execute(change.format("scheduler").encode())
    finding(role_grants(granted), "fail", words)


@pytest.mark.parametrize(
    "search_path", ["reset search_path", "set search_path = public, pg_catalog, pg_temp"]
)
def test_a_definer_function_without_a_fixed_search_path_fails(
    db: Connection, search_path: str
) -> None:
    finding(definer_functions(db), "ok", "functions of postgres, search_path pinned")
    db.execute(f"alter function scheduler.cancel {search_path}".encode())
    finding(definer_functions(db), "fail", "without the pinned search_path: cancel")


def test_a_definer_function_of_somebody_else_fails(db: Connection, dsn: str) -> None:
    with login(db, dsn) as member:
        stranger = psycopg.conninfo.conninfo_to_dict(member)["user"]
        db.execute(f"alter function scheduler.cancel owner to {stranger}".encode())
        finding(definer_functions(db), "fail", f"cancel of {stranger}")


def test_a_transactional_kind_that_runs_nearly_as_long_as_its_lease_is_told(
    db: Connection, clock: Clock
) -> None:
    def run(kind: Callable[[], int], seconds: float) -> None:
        kind()
        leases = {"plain": LEASE, "book": LEASE}
        attempts = claim(db, new_owner("w"), leases, 10, 0.0)
        clock.advance(timedelta(seconds=seconds))
        complete(db, [attempt.lease for attempt in attempts])

    finding(lease_headroom(db, REGISTRY), "ok", "nothing ran in a day")
    run(lambda: enqueue(db, plain, 1), 300)
    run(lambda: enqueue(db, book, 1), 12)
    finding(lease_headroom(db, REGISTRY), "ok", "book 0.20 (1 runs), plain 5.00 (1 runs)")
    run(lambda: enqueue(db, book, 1), 57)
    finding(lease_headroom(db, REGISTRY), "warn", "book 0.94 (2 runs)")
    clock.advance(timedelta(days=2))
    finding(lease_headroom(db, REGISTRY), "ok", "nothing ran in a day")


def test_tasks_of_kinds_that_the_application_lacks_are_told(db: Connection) -> None:
    enqueue(db, plain, 1)
    finding(unknown_kinds(db, REGISTRY), "ok", "known kinds")
    enqueue(db, Registry().kind("gone", int)(lambda attempt, payload: None), 1)
    finding(unknown_kinds(db, REGISTRY), "warn", "'gone' (1 tasks)")


def test_expired_leases_that_nobody_takes_back_fail(db: Connection, dsn: str, clock: Clock) -> None:
    enqueue(db, plain, 1)
    claim(db, new_owner("w"), {"plain": LEASE}, 1, 0.0)
    clock.advance(LEASE + timedelta(seconds=59))
    finding(expired_leases(db), "ok", "0 expired over 0:01:00 ago")
    clock.advance(timedelta(seconds=2))
    assert expired_leases(db).advice == "start a worker"
    with connect_worker(dsn, "stuck", LEASE):
        finding(expired_leases(db), "fail", "1 expired over 0:01:00 ago, 1 worker sessions")
        assert "their logs" in expired_leases(db).advice


def test_rows_that_no_monthly_partition_took_are_told(db: Connection) -> None:
    finding(run_log_partitions(db), "ok", "in its month's")
    db.execute(
        "insert into scheduler.run_log (task_id, lease_token, lease_owner, attempt, claimed_at,"
        " finished_at, outcome) values (1, 1, 'w', 1, '2020-02-03Z', '2020-02-03Z', 'completed')"
    )
    finding(run_log_partitions(db), "warn", "1 rows in run_log_rest, the first of 2020-02-03")


def test_a_reader_may_ask_the_doctor_and_one_without_grants_is_told_what_was_not_seen(
    granted: Connection, dsn: str
) -> None:
    with login(granted, dsn, "scheduler_reader") as member:
        unseen = [it for it in examine(member, REGISTRY) if "could not be looked at" in it.found]
    assert unseen == []
    with login(granted, dsn) as member:
        last = examine(member)[-1]
    assert (last.check, last.level) == ("schema", "warn")
    assert "permission denied for schema scheduler" in last.found
