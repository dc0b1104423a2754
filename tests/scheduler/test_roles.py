"""The group roles: each can do what it is for, logged in for real, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from chaos.cluster.postgres import Postgres
from scheduler import (
    AccessError,
    Attempt,
    Registry,
    RetryPolicy,
    SchemaError,
    Snooze,
    Unique,
    cancel,
    dead_letters,
    discard,
    enqueue,
    enqueue_many,
    enqueue_unique,
    migrate,
    requeue,
)
from scheduler.access import limit_source, restrict_kind, restrictions, sources
from scheduler.dispatch import claim, new_owner, release_claims
from scheduler.lease import second_look
from scheduler.roles import create_roles, grants, missing_roles, printed_roles, roles
from scheduler.tasks import counts, get, runs
from tests.scheduler.roles import drop_roles, logged_in, login
from tests.scheduler.working import LEASE, SHORT, outcomes, over, running, statuses, worker
from tests.waiting import wait_for

REGISTRY = Registry()


@REGISTRY.kind("work", int, retry=RetryPolicy(max_attempts=1))
def work(attempt: Attempt, payload: int) -> None:
    """Fails for 1, does nothing for others."""
    if payload == 1:
        raise ValueError("one")


@pytest.fixture
def granted(db: Connection, dsn: str) -> Connection:
    """A database with the group roles."""
    create_roles(dsn)
    return db


@pytest.fixture
def bare(db: Connection, dsn: str) -> Connection:
    """A database on a server without the group roles."""
    drop_roles(db, dsn)
    return db


# What must be refused


EVERYBODY = [
    "insert into scheduler.tasks (kind) values ('work')",
    "delete from scheduler.tasks",
    "truncate scheduler.tasks",
    "truncate scheduler.run_log",
    "update scheduler.tasks set payload = '2'",
    "update scheduler.tasks set kind = 'other'",
    "update scheduler.tasks set max_attempts = 100",
    "update scheduler.tasks set source = 'shop'",
    "delete from scheduler.run_log",
    "update scheduler.run_log set outcome = 'completed'",
    "update scheduler.run_log_rest set outcome = 'completed'",
    "insert into scheduler.audit (at, action, source, role, tasks)"
    " values (now(), 'cancel', 'me', 'me', 1)",
    "update scheduler.audit set role = 'me'",
    "delete from scheduler.audit",
    "update scheduler.settings set value = 'mine'",
    "insert into scheduler.settings values ('clock', 'mine')",
    "insert into scheduler.sources (name, max_outstanding) values ('x', 1)",
    "update scheduler.sources set max_outstanding = null",
    "delete from scheduler.sources",
    "insert into scheduler.kind_sources values ('work', 'x')",
    "delete from scheduler.kind_sources",
    "update scheduler.kind_limits set max_running = 100",
    "delete from scheduler.kind_limits",
    "insert into scheduler.migrations (version, name) values (999, 'mine')",
    "select nextval('scheduler.tasks_id_seq')",
    "create table scheduler.mine (id int)",
    "create or replace function scheduler.now() returns timestamptz"
    " return '-infinity'::timestamptz",
    "alter table scheduler.tasks disable trigger all",
    "alter function scheduler.enqueue security invoker",
    "select scheduler.take_share('x', -1)",
    "select scheduler.check_kind('work', 'x')",
    "select scheduler.check_payload('1')",
    "select scheduler.source_of('x')",
    "select scheduler.wake('default', now())",
    "set role postgres",
    "set session authorization postgres",
    "set session_replication_role = replica",
    "create role mine",
    "grant execute on function scheduler.take_share to public",
]
NO_WRITER = [
    "update scheduler.tasks set status = 'completed'",
    "update scheduler.tasks set lease_token = 0",
    "update scheduler.sources set outstanding = 0",
    "update scheduler.kind_limits set lockable = false",
    "insert into scheduler.run_log (task_id) values (1)",
    "select from scheduler.tasks for update",
    "select scheduler.declare_limits('{work}', '{1}')",
    "select scheduler.add_run_log_partitions(1)",
    "select scheduler.retry_delay(1, 1, 1, 0, 1, 1, 1)",
]
NO_AUDITOR = [
    "select * from scheduler.audit",
    "select * from scheduler.kind_sources",
    "select max_outstanding from scheduler.sources",
    "select name from scheduler.migrations",
]
NO_READER = [
    *NO_AUDITOR,
    "select * from scheduler.settings",
    "select error from scheduler.run_log",
    "copy scheduler.run_log to stdout",
]
CREATE_TOKEN = (
    "select scheduler.create_token('mine', decode(repeat('00', 32), 'hex'), 'x', '{read}', null)"
)
NO_KEEPER = [
    CREATE_TOKEN,
    "select scheduler.limit_source('x', 1)",
    "select scheduler.restrict_kind('work', '{}')",
    "select scheduler.revoke_token('mine')",
    "select name from scheduler.tokens",
]
NO_OPERATOR = [
    *NO_KEEPER,
    "select scheduler.cancel('{1}')",
    "select scheduler.requeue('{1}')",
    "select scheduler.discard('{1}')",
    "select scheduler.pause_schedules('{one}')",
    "select scheduler.resume_schedules('{one}')",
    "select scheduler.run_schedule('one')",
]
NO_SERVER = ["select digest from scheduler.tokens", "select scheduler.find_token('x')"]
ENQUEUE = "select scheduler.enqueue('work', 'default', 1::smallint, '{1}', null, '0', 1, 1, 1, 1, 0"
NO_ENQUEUE = [
    f"{ENQUEUE})",
    "select scheduler.enqueue_unique('work', 'default', 1::smallint, '1', null, '0', 1, 1, 1, 1, 0,"
    " 'key', 'finished', null)",
]
REFUSED = {
    "scheduler_enqueue": [
        *(*EVERYBODY, *NO_WRITER, *NO_READER, *NO_OPERATOR, *NO_SERVER),
        *("select id from scheduler.tasks", "set role scheduler_http"),
    ],
    "scheduler_http": [
        *(*EVERYBODY, *NO_WRITER, *NO_AUDITOR, *NO_KEEPER),
        *("select digest from scheduler.tokens", "set role scheduler_operator"),
    ],
    "scheduler_worker": [*EVERYBODY, *NO_READER, *NO_OPERATOR, *NO_ENQUEUE, *NO_SERVER],
    "scheduler_operator": [
        *(*EVERYBODY, *NO_WRITER, *NO_ENQUEUE, *NO_SERVER),
        *(CREATE_TOKEN, "set role scheduler_worker"),
    ],
    "scheduler_reader": [*EVERYBODY, *NO_WRITER, *NO_OPERATOR, *NO_ENQUEUE, *NO_SERVER],
}


@pytest.mark.parametrize("group", REFUSED)
def test_what_a_role_is_not_for_is_refused(granted: Connection, dsn: str, group: str) -> None:
    enqueue(granted, work, 7)
    granted.execute("insert into scheduler.kind_limits values ('work', 1)")
    limit_source(granted, "x", 1)
    allowed = []
    with logged_in(granted, dsn, group) as session:
        for statement in REFUSED[group]:
            try:
                session.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            allowed.append(statement)
    assert allowed == []


def test_the_same_statements_work_for_the_owner(granted: Connection) -> None:
    """So what the roles are refused for is their rights, not a mistake in the statement."""
    owners_too = {
        "insert into scheduler.tasks (kind) values ('work')": psycopg.errors.NotNullViolation,
        "insert into scheduler.run_log (task_id) values (1)": psycopg.errors.NotNullViolation,
        "insert into scheduler.settings values ('clock', 'mine')": psycopg.errors.UniqueViolation,
        "update scheduler.audit set role = 'me'": psycopg.DatabaseError,
        "delete from scheduler.audit": psycopg.DatabaseError,
    }
    for statement in dict.fromkeys(s for group in REFUSED.values() for s in group):
        if statement.startswith("copy"):
            continue
        with granted.transaction(force_rollback=True):
            if statement in owners_too:
                with pytest.raises(owners_too[statement]):
                    granted.execute(statement.encode())
            else:
                granted.execute(statement.encode())


def test_a_worker_cannot_lower_a_token_and_the_owner_can(granted: Connection, dsn: str) -> None:
    enqueue(granted, work, 7)
    [attempt] = claim(granted, new_owner("w"), {"work": LEASE}, 1, 0.0)
    with logged_in(granted, dsn, "scheduler_worker") as session:
        session.execute("update scheduler.tasks set lease_token = lease_token + 1")
        with pytest.raises(psycopg.DatabaseError, match="may not go down"):
            session.execute("update scheduler.tasks set lease_token = 1")
    granted.execute("update scheduler.tasks set lease_token = 1")
    assert second_look(granted, [attempt.lease])[attempt.lease].held


# Tricks


def test_a_source_is_who_logged_in_whatever_role_is_set(granted: Connection, dsn: str) -> None:
    with login(granted, dsn, "scheduler_enqueue", "scheduler_operator") as member:
        with psycopg.connect(member, autocommit=True) as session:
            session.execute("set role scheduler_enqueue")
            enqueue(session, work, 7)
            session.execute("set role scheduler_operator")
            with pytest.raises(AccessError, match="grant scheduler_enqueue to the role login_"):
                enqueue(session, work, 7)
            limit_source(session, "x", 1)
            me = session.info.user
        assert granted.execute("select source from scheduler.tasks").fetchall() == [(me,)]
        audited = granted.execute("select role from scheduler.audit order by id").fetchall()
        assert audited == [(me,), (me,)]


def test_only_the_http_role_states_another_source(granted: Connection, dsn: str) -> None:
    stated = f"{ENQUEUE}, 'shop')".encode()
    with (
        logged_in(granted, dsn, "scheduler_enqueue") as session,
        pytest.raises(psycopg.DatabaseError, match="may not enqueue as source shop"),
    ):
        session.execute(stated)
    with logged_in(granted, dsn, "scheduler_http") as session:
        session.execute(stated)
        http = session.info.user
    assert granted.execute("select source, role from scheduler.audit").fetchall() == [
        ("shop", http)
    ]


SHADOWS = """
create function {0}.pg_has_role(name, text, text) returns boolean return true;
create function {0}.octet_length(text) returns integer return 1;
create function {0}.same(name, text) returns boolean return true;
create operator {0}.= (function = {0}.same, leftarg = name, rightarg = text);
create function {0}.same(text, text) returns boolean return true;
create operator {0}.= (function = {0}.same, leftarg = text, rightarg = text);
create table {0}.pg_roles (rolname text);
create table {0}.kind_sources (kind text);
insert into {0}.pg_roles values ('scheduler_http');
set search_path = {0}, pg_catalog;
set standard_conforming_strings = off;
"""


def test_objects_that_shadow_the_catalog_s_change_nothing(granted: Connection, dsn: str) -> None:
    restrict_kind(granted, "work", ["shop"])
    stated, plain = f"{ENQUEUE}, 'shop')".encode(), f"{ENQUEUE})".encode()
    with login(granted, dsn, "scheduler_enqueue") as member:
        user = psycopg.conninfo.conninfo_to_dict(member)["user"]
        granted.execute(f"create schema mine authorization {user}".encode())

        def tricked() -> Connection:
            session = psycopg.connect(member, autocommit=True)
            for statement in SHADOWS.format("mine").split(";"):
                if statement.strip() and (first or not statement.strip().startswith("c")):
                    session.execute(statement.encode())
            return session

        first = True
        with tricked() as session:
            for statement, why in (
                (stated, "may not enqueue as source shop"),
                (plain, "may not enqueue tasks of kind work"),
            ):
                with pytest.raises(psycopg.DatabaseError, match=why):
                    session.execute(statement)
            with pytest.raises(psycopg.DatabaseError, match="looks like a secret"):
                session.execute(plain.replace(b"'{1}'", b"""array['{"client_secret" : 1}']"""))
        first = False
        # The trick is a real one: without the pinned search_path it works.
        for function in ("enqueue", "source_of", "check_kind"):
            granted.execute(f"alter function scheduler.{function} reset search_path".encode())
        with tricked() as session:
            session.execute(stated)
    assert granted.execute("select source from scheduler.tasks").fetchall() == [("shop",)]


def test_partitions_have_the_same_bounds_whatever_the_caller_s_dates_look_like(
    granted: Connection, dsn: str
) -> None:
    def bounds() -> list[tuple[str]]:
        return granted.execute(
            "select pg_get_expr(relpartbound, oid) from pg_class where relispartition"
            " and relname like 'run_log_2%%' and relkind = 'r' order by relname"
        ).fetchall()

    granted.execute("set timezone = 'UTC'")
    with logged_in(granted, dsn, "scheduler_worker") as session:
        session.execute("set datestyle = 'SQL, DMY'")
        session.execute("set timezone = 'Asia/Kolkata'")
        before = len(bounds())
        session.execute("select scheduler.add_run_log_partitions(8)")
        for ahead in ("-1", "121", "null"):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="0 to 120 months"):
                session.execute(f"select scheduler.add_run_log_partitions({ahead})".encode())
    made = bounds()
    assert len(made) == before + 5
    assert all(bound.count("-01 00:00:00+00'") == 2 for (bound,) in made)


# What must work


def test_a_client_enqueues(granted: Connection, dsn: str) -> None:
    for group in ("scheduler_enqueue", "scheduler_http"):
        with logged_in(granted, dsn, group) as session:
            enqueue_many(session, work, [7, 8])
            enqueue_unique(session, work, 7, Unique(group))
            session.execute("select scheduler.now()")
    assert statuses(granted) == {"pending": 6}


def test_a_reader_looks_and_an_operator_acts_too(granted: Connection, dsn: str) -> None:
    [dead, waiting] = enqueue_many(granted, work, [1, 7])
    with running(worker(REGISTRY, dsn)):
        over(granted, dead, "dead")
        over(granted, waiting)
    for group in ("scheduler_reader", "scheduler_operator"):
        with logged_in(granted, dsn, group) as session:
            assert get(session, dead) is not None
            assert [run.outcome for run in runs(session, dead)] == ["failed"]
            assert [count.status for count in counts(session)] == ["completed", "dead"]
            assert [letter.id for letter in dead_letters(session)] == [dead]
            assert sources(session) == []
            assert restrictions(session) == []
            session.execute("select from scheduler.audit, scheduler.settings")
            session.execute("select from scheduler.migrations, scheduler.kind_limits")
    with logged_in(granted, dsn, "scheduler_operator") as session:
        assert requeue(session, [dead]) == [dead]
        assert cancel(session, [dead]) == {dead: "pending"}
        assert discard(session, [dead]) == []
        limit_source(session, "shop", 1)
        restrict_kind(session, "work", ["shop"])


def test_a_worker_with_nothing_but_its_role_and_the_application_s_table_runs_everything(
    granted: Connection, dsn: str
) -> None:
    registry = Registry()
    granted.execute("create table book (entry int)")
    snoozed = Event()

    @registry.transactional("book", int)
    def book(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("insert into book values (%s)", [payload])

    @registry.kind("few", int, limit=1)
    def few(attempt: Attempt, payload: int) -> None:
        if payload == 0 and not snoozed.is_set():
            snoozed.set()
            raise Snooze(timedelta(0))

    @registry.kind("poison", int, retry=RetryPolicy(2, timedelta(milliseconds=1)))
    def poison(attempt: Attempt, payload: int) -> None:
        raise ValueError("poison")

    @registry.kind("left", int, lease=SHORT)
    def left(attempt: Attempt, payload: int) -> None:
        """Left behind by another worker."""

    with login(granted, dsn, "scheduler_worker") as member:
        user = psycopg.conninfo.conninfo_to_dict(member)["user"]
        granted.execute(f"grant insert on book to {user}".encode())
        limit_source(granted, "postgres", 100)
        behind = enqueue(granted, left, 1)
        claim(granted, new_owner("dead"), {"left": timedelta(milliseconds=1)}, 1, 0.0)
        served = worker(registry, member, poll=timedelta(hours=1), slots=2)
        with running(served):
            over(granted, behind)
            wait_for(
                lambda: granted.execute(
                    "select true from pg_stat_activity where usename = %s and query ~ 'listen'",
                    [user],
                ).fetchone(),
                "the worker to listen",
            )
            # The next look is an hour away: these are found because of the notification.
            booked = enqueue(granted, book, 1)
            fews = enqueue_many(granted, few, range(4))
            bad = enqueue(granted, poison, 1)
            over(granted, booked)
            over(granted, bad, "dead")
            for task in fews:
                over(granted, task)
        assert outcomes(granted, behind) == ["reclaimed", "completed"]
        assert outcomes(granted, fews[0]) == ["snoozed", "completed"]
        assert outcomes(granted, bad) == ["failed", "failed"]
        assert granted.execute("select entry from book").fetchall() == [(1,)]
        assert [source.outstanding for source in sources(granted)] == [1]  # the dead letter's
        with psycopg.connect(member, autocommit=True) as session:
            waiting = enqueue(granted, left, 1)
            owner = new_owner("lost")
            claim(session, owner, {"left": LEASE}, 1, 0.0)
            assert release_claims(session, [owner]) == [waiting]


def test_a_worker_whose_role_lacks_a_right_says_so_and_ends(granted: Connection, dsn: str) -> None:
    granted.execute("revoke update (status) on scheduler.tasks from scheduler_worker")
    with (
        login(granted, dsn, "scheduler_worker") as member,
        pytest.raises(AccessError, match=r"table tasks: grant scheduler_worker to the role"),
    ):
        worker(REGISTRY, member).run()


# Creating them


def test_roles_are_created_once_and_can_be_applied_again(bare: Connection, dsn: str) -> None:
    assert missing_roles(bare) == roles()
    assert create_roles(dsn) == roles()
    assert create_roles(dsn) == []
    assert bare.execute(
        "select count(*) from pg_roles where rolname = any(%s) and not rolcanlogin", [roles()]
    ).fetchone() == (5,)


def test_many_that_create_the_roles_at_once_in_two_databases_all_succeed(
    bare: Connection, dsn: str, empty_dsn: str
) -> None:
    migrate(empty_dsn)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(create_roles, [dsn, empty_dsn] * 3))
    assert missing_roles(bare) == []


def test_roles_without_the_schema_are_refused(empty_dsn: str) -> None:
    with pytest.raises(SchemaError, match="no scheduler schema yet: run `scheduler migrate` first"):
        create_roles(empty_dsn)


@pytest.fixture
def owned(server: Postgres, db: Connection, dsn: str) -> Iterator[str]:
    """An empty database of an ordinary role that may not create roles; its connection string."""
    name = f"test_{uuid4().hex}"
    db.execute(f"create role {name} login".encode())
    db.execute(f"create database {name} owner {name}".encode())
    yield make_conninfo(dsn, user=name, dbname=name)
    server.drop_database(name)
    db.execute(f"drop role {name}".encode())


def test_an_owner_who_may_not_create_roles_is_told_the_way_out(
    bare: Connection, owned: str
) -> None:
    migrate(owned)
    with pytest.raises(AccessError, match=r"lacks the privilege CREATEROLE.*roles --print"):
        create_roles(owned)


def test_somebody_who_does_not_own_the_schema_is_told_so(granted: Connection, dsn: str) -> None:
    with (
        login(granted, dsn, "scheduler_operator") as member,
        pytest.raises(AccessError, match=r"does not own the schema.*roles --print"),
    ):
        create_roles(member)


def test_migrate_grants_what_is_missing_without_the_right_to_create_roles(
    granted: Connection, dsn: str, owned: str
) -> None:
    migrate(owned)
    with psycopg.connect(owned, autocommit=True) as connection:
        connection.execute("revoke all on scheduler.tasks from scheduler_worker")
        connection.execute("grant delete on scheduler.tasks to scheduler_reader, public")
        migrate(owned)
        assert connection.execute(
            "select has_table_privilege('scheduler_worker', 'scheduler.tasks', 'select'),"
            " has_table_privilege('scheduler_reader', 'scheduler.tasks', 'delete')"
        ).fetchone() == (True, False)
    assert create_roles(owned) == []


def test_the_printed_sql_does_the_same(bare: Connection, dsn: str) -> None:
    bare.execute(printed_roles().encode())
    assert missing_roles(bare) == []
    with logged_in(bare, dsn, "scheduler_enqueue") as session:
        enqueue(session, work, 7)


def test_every_grant_of_the_file_is_understood_and_none_removes_rows() -> None:
    found = grants()
    assert {grant.role for grant in found} == {
        *("scheduler_enqueue", "scheduler_http", "scheduler_worker"),
        *("scheduler_operator", "scheduler_reader"),
    }
    assert {grant.privilege for grant in found} == {
        *("usage", "execute", "select", "insert", "update")
    }
    assert all(grant.column for grant in found if grant.privilege == "update")


def test_the_file_s_role_names_need_no_quoting() -> None:
    assert all(sql.Identifier(role).as_string() == f'"{role}"' for role in roles())
