"""Who may do what: sources, kinds restricted to them, caps, the audit, secrets refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from scheduler import (
    AccessError,
    Attempt,
    CapReachedError,
    PayloadError,
    Registry,
    RetryPolicy,
    Unique,
    cancel,
    discard,
    enqueue,
    enqueue_many,
    enqueue_unique,
    requeue,
)
from scheduler.access import (
    LARGEST_CAP,
    Restriction,
    Source,
    audit,
    limit_source,
    restrict_kind,
    restrictions,
    sources,
)
from scheduler.dispatch import claim, new_owner
from scheduler.finish import complete, fail
from tests.scheduler.working import LEASE, over, running, worker
from tests.waiting import wait_for

REGISTRY = Registry()
ANY = Registry()


@REGISTRY.kind("work", int, retry=RetryPolicy(max_attempts=1))
def work(attempt: Attempt, payload: int) -> None:
    """Does nothing."""


@REGISTRY.transactional("book", int)
def book(attempt: Attempt, payload: int, connection: Connection) -> None:
    """Does nothing, in a transaction."""


@ANY.kind("any", object)
def anything(attempt: Attempt, payload: object) -> None:
    """Only enqueued."""


def outstanding(db: Connection) -> int:
    """What the capped source's counter says; checked against the tasks themselves."""
    [(counter, real)] = db.execute(
        "select outstanding, (select count(*) from scheduler.tasks where counted"
        "  and source = name and status in ('pending', 'running', 'dead'))"
        " from scheduler.sources"
    ).fetchall()
    assert counter == real
    return int(counter)


@pytest.fixture
def capped(db: Connection) -> Connection:
    """The test's own role may have five tasks outstanding."""
    db.execute("insert into scheduler.sources (name, max_outstanding) values (session_user, 5)")
    return db


@pytest.fixture
def guest(db: Connection, dsn: str) -> Iterator[str]:
    """A login role without any grant; its connection string."""
    db.execute("create role guest login")
    db.execute("grant usage on schema scheduler to guest")
    yield make_conninfo(dsn, user="guest")
    db.execute("drop owned by guest")
    db.execute("drop role guest")


def test_tasks_and_audit_carry_the_login_role_as_their_source(db: Connection) -> None:
    [first, second] = enqueue_many(db, work, [1, 2])
    assert db.execute("select distinct source from scheduler.tasks").fetchall() == [("postgres",)]
    assert db.execute(
        "select action, source, role, kind, tasks, first_task, last_task from scheduler.audit"
    ).fetchall() == [("enqueue", "postgres", "postgres", "work", 2, first, second)]


def test_every_operator_action_is_audited_once_a_batch_and_only_if_it_did_something(
    db: Connection,
) -> None:
    ids = enqueue_many(db, work, range(4))
    for attempt in claim(db, new_owner("w"), {"work": timedelta(seconds=60)}, 3, 0.0):
        fail(db, [attempt.lease], ["no"])
    cancel(db, ids)
    requeue(db, ids[:2])
    discard(db, ids)
    discard(db, ids)
    assert db.execute(
        "select action, tasks, first_task, last_task from scheduler.audit order by id"
    ).fetchall() == [
        ("enqueue", 4, ids[0], ids[3]),
        ("cancel", 1, ids[3], ids[3]),
        ("requeue", 2, ids[0], ids[1]),
        ("discard", 1, ids[2], ids[2]),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "update scheduler.audit set role = 'me'",
        "delete from scheduler.audit",
        "truncate scheduler.audit",
    ],
)
def test_the_audit_is_append_only(db: Connection, change: str) -> None:
    enqueue(db, work, 1)
    with pytest.raises(psycopg.DatabaseError, match="append-only"):
        db.execute(change.encode())


def test_a_cap_refuses_what_would_exceed_it_and_writes_nothing(capped: Connection) -> None:
    enqueue_many(capped, work, range(4))
    with pytest.raises(CapReachedError, match="may have 5 tasks outstanding, 2 more"):
        enqueue_many(capped, work, range(2))
    assert outstanding(capped) == 4
    enqueue(capped, work, 1)
    with pytest.raises(CapReachedError):
        enqueue_unique(capped, work, 1, Unique("key"))
    assert outstanding(capped) == 5


def test_many_enqueues_at_once_do_not_exceed_a_cap_by_one(capped: Connection, dsn: str) -> None:
    refused: list[int] = []

    def race(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for turn in range(4):
                try:
                    if turn % 2:
                        enqueue(connection, work, number)
                    else:
                        enqueue_unique(connection, work, 1, Unique(f"{number} {turn}"))
                except CapReachedError:
                    refused.append(number)

    threads = [Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outstanding(capped) == 5
    assert len(refused) == 24 - 5


def test_a_place_is_free_again_when_its_task_is_over(capped: Connection, dsn: str) -> None:
    [done, dead, waiting] = enqueue_many(capped, work, range(3))
    booked = enqueue(capped, book, 1)
    attempts = claim(capped, new_owner("w"), {"work": timedelta(seconds=60)}, 2, 0.0)
    assert [attempt.task for attempt in attempts] == [done, dead]
    complete(capped, [attempts[0].lease])
    assert outstanding(capped) == 3
    fail(capped, [attempts[1].lease], ["no"])
    assert outstanding(capped) == 3  # a dead letter is not over: it may be requeued
    requeue(capped, [dead])
    assert outstanding(capped) == 3
    cancel(capped, [waiting, dead])
    assert outstanding(capped) == 1
    with running(worker(REGISTRY, dsn)):
        over(capped, booked)
    assert outstanding(capped) == 0


def test_an_open_transaction_that_enqueued_holds_up_no_completion_but_its_sources(
    db: Connection, dsn: str
) -> None:
    [other] = enqueue_many(db, work, [1])
    db.execute("insert into scheduler.sources (name, max_outstanding) values (session_user, 5)")
    [counted] = enqueue_many(db, work, [2])
    leases = [a.lease for a in claim(db, new_owner("w"), {"work": LEASE}, 10, 0.0)]
    with psycopg.connect(dsn) as open_:
        enqueue(open_, work, 3)
        assert complete(db, leases) == {other}
    assert complete(db, leases) == {counted}
    assert outstanding(db) == 1


def test_a_counted_task_whose_sources_row_somebody_deleted_is_completed_all_the_same(
    capped: Connection,
) -> None:
    task = enqueue(capped, work, 1)
    capped.execute("delete from scheduler.sources")
    [attempt] = claim(capped, new_owner("w"), {"work": LEASE}, 10, 0.0)
    assert complete(capped, [attempt.lease]) == {task}


def test_discarding_a_dead_letter_frees_its_place(capped: Connection) -> None:
    number = enqueue(capped, work, 1)
    [attempt] = claim(capped, new_owner("w"), {"work": timedelta(seconds=60)}, 1, 0.0)
    fail(capped, [attempt.lease], ["no"])
    assert outstanding(capped) == 1
    discard(capped, [number])
    assert outstanding(capped) == 0


def test_a_duplicate_takes_no_place(capped: Connection) -> None:
    for _ in range(8):
        enqueue_unique(capped, work, 1, Unique("key"))
    assert outstanding(capped) == 1


def test_what_is_rolled_back_gives_its_place_back(capped: Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as caller:
        enqueue_many(caller, work, range(5))
        caller.rollback()
    assert outstanding(capped) == 0


def test_a_cancelled_task_frees_a_place_of_its_own_source_only(db: Connection) -> None:
    for source in ("postgres", "shop"):
        limit_source(db, source, 5)
    tasks = enqueue_many(db, work, range(3))
    db.execute("update scheduler.tasks set source = 'shop' where id = %s", [tasks[0]])
    db.execute("update scheduler.sources set outstanding = 3")
    cancel(db, tasks)
    assert sources(db) == [Source("postgres", 5, 1), Source("shop", 5, 2)]


def test_a_kind_restricted_to_a_source_is_refused_to_others(db: Connection) -> None:
    db.execute("insert into scheduler.kind_sources values ('work', 'billing')")
    for attempt in (
        lambda: enqueue(db, work, 1),
        lambda: enqueue_unique(db, work, 1, Unique("key")),
    ):
        with pytest.raises(AccessError, match="postgres may not enqueue tasks of kind work"):
            attempt()
    enqueue(db, book, 1)
    db.execute("insert into scheduler.kind_sources values ('work', 'postgres')")
    enqueue(db, work, 1)


def test_a_cap_can_be_set_lifted_and_set_again_and_the_count_stays_right(db: Connection) -> None:
    limit_source(db, "postgres", 2)
    early = enqueue_many(db, work, [1, 2])
    with pytest.raises(CapReachedError):
        enqueue(db, work, 3)
    limit_source(db, "postgres", None)
    enqueue_many(db, work, range(5))  # not counted, as before the first cap
    assert outstanding(db) == 2
    cancel(db, early[:1])
    limit_source(db, "postgres", 2)
    enqueue(db, work, 1)
    with pytest.raises(CapReachedError):
        enqueue(db, work, 1)
    cancel(db, early)
    assert outstanding(db) == 1
    limit_source(db, "postgres", 0)  # below what stands: nothing new
    with pytest.raises(CapReachedError):
        enqueue(db, work, 1)
    assert sources(db) == [Source("postgres", 0, 1)]


def test_a_kind_is_restricted_to_other_sources_and_opened_again(db: Connection) -> None:
    restrict_kind(db, "work", ["shop", "billing", "shop"])
    restrict_kind(db, "book", ["shop"])
    assert restrictions(db) == [
        Restriction("book", ["shop"]),
        Restriction("work", ["billing", "shop"]),
    ]
    with pytest.raises(AccessError):
        enqueue(db, work, 1)
    restrict_kind(db, "work", ["postgres"])
    enqueue(db, work, 1)
    restrict_kind(db, "book", [])
    assert restrictions(db) == [Restriction("work", ["postgres"])]


def test_caps_and_restrictions_are_listed_by_name_in_whatever_order_they_were_made(
    db: Connection,
) -> None:
    for source in ("shop", "billing"):
        limit_source(db, source, 1)
    db.execute(
        "insert into scheduler.kind_sources values"
        " ('work', 'shop'), ('book', 'shop'), ('work', 'billing')"
    )
    # Otherwise they might come so from an index, or from what they are grouped by.
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off; set enable_sort = off")
    assert [source.name for source in sources(db)] == ["billing", "shop"]
    assert restrictions(db) == [
        Restriction("book", ["shop"]),
        Restriction("work", ["billing", "shop"]),
    ]


def test_caps_and_restrictions_are_audited_when_they_change_something(db: Connection) -> None:
    for _ in range(2):
        limit_source(db, "shop", 5)
        restrict_kind(db, "work", ["b", "a"])
    restrict_kind(db, "work", [])
    limit_source(db, "shop", None)
    assert db.execute(
        "select action, source, role, kind, detail from scheduler.audit order by id"
    ).fetchall() == [
        ("cap", "shop", "postgres", None, "5"),
        ("restrict", "postgres", "postgres", "work", "a, b"),
        ("restrict", "postgres", "postgres", "work", "open to all"),
        ("cap", "shop", "postgres", None, "none"),
    ]


def test_the_audit_is_read_from_its_newest_row_on_up_to_a_limit(db: Connection) -> None:
    for number in range(3):
        limit_source(db, f"shop{number}", 1)
    restrict_kind(db, "work", ["shop0"])
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    newest = audit(db)
    assert [row.id for row in newest] == sorted((row.id for row in newest), reverse=True)
    assert len(newest) == 4
    assert audit(db, limit=2) == newest[:2]
    assert audit(db, "cap", limit=2) == newest[1:3]


def test_two_restrictions_at_once_do_not_add_up(db: Connection, dsn: str) -> None:
    def second() -> None:
        with psycopg.connect(dsn, autocommit=True, application_name="second") as connection:
            restrict_kind(connection, "work", ["b"])

    thread = Thread(target=second)
    with psycopg.connect(dsn) as first:
        restrict_kind(first, "work", ["a"])
        thread.start()
        wait_for(
            lambda: (
                not thread.is_alive()
                or db.execute(
                    "select true from pg_stat_activity where application_name = 'second'"
                    " and wait_event_type = 'Lock'"
                ).fetchone()
            ),
            "the second to wait for the first",
        )
    thread.join()
    assert restrictions(db) == [Restriction("work", ["b"])]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "\ud800", None, 7], ids=repr)
def test_a_name_that_cannot_be_meant_is_refused_before_the_database_is_asked(
    db: Connection, name: Any
) -> None:
    with pytest.raises(ValueError, match="a source has a name of 1 to"):
        limit_source(db, name, 1)
    with pytest.raises(ValueError, match="a kind has a name of 1 to"):
        restrict_kind(db, name, ["shop"])
    with pytest.raises(ValueError, match="a source has a name of 1 to"):
        restrict_kind(db, "work", [name])


@pytest.mark.parametrize("cap", [-1, LARGEST_CAP + 1, 1.5, True, "7"])
def test_a_cap_that_cannot_be_meant_is_refused(db: Connection, cap: Any) -> None:
    with pytest.raises(ValueError, match="a cap must be a number from 0"):
        limit_source(db, "shop", cap)
    with pytest.raises(ValueError, match="are a list of names"):
        restrict_kind(db, "work", "shop")


def test_a_role_without_grants_can_neither_enqueue_nor_look_nor_touch(guest: str) -> None:
    with psycopg.connect(guest, autocommit=True) as connection:
        for statement in (
            "select * from scheduler.tasks",
            "insert into scheduler.tasks (kind) values ('work')",
            "select scheduler.cancel('{1}')",
            "select scheduler.requeue('{1}')",
            "select scheduler.discard('{1}')",
            "select scheduler.take_share('postgres', -1)",
            "select * from scheduler.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        refused: list[tuple[Callable[[], object], str]] = [
            (lambda: enqueue(connection, work, 1), "scheduler_enqueue"),
            (lambda: enqueue_unique(connection, work, 1, Unique("key")), "scheduler_enqueue"),
            (lambda: cancel(connection, [1]), "scheduler_operator"),
            (lambda: requeue(connection, [1]), "scheduler_operator"),
            (lambda: limit_source(connection, "shop", 1), "scheduler_operator"),
            (lambda: restrict_kind(connection, "work", []), "scheduler_operator"),
        ]
        for attempt, group in refused:
            with pytest.raises(AccessError, match=f"denied .* grant {group} to the role guest"):
                attempt()
        with pytest.raises(AccessError, match="grant scheduler_worker to the role guest"):
            worker(REGISTRY, guest).run()


def test_a_role_that_may_only_enqueue_can_do_so_and_nothing_else(
    db: Connection, guest: str
) -> None:
    for name in ("enqueue", "enqueue_unique"):
        [(signature,)] = db.execute(
            "select oid::regprocedure::text from pg_proc"
            " where pronamespace = 'scheduler'::regnamespace and proname = %s",
            [name],
        ).fetchall()
        db.execute(f"grant execute on function {signature} to guest".encode())
    with psycopg.connect(guest, autocommit=True) as connection:
        enqueue(connection, work, 1)
        enqueue_unique(connection, work, 1, Unique("key"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from scheduler.tasks")
    assert db.execute("select distinct source from scheduler.tasks").fetchall() == [("guest",)]


def test_only_a_member_of_scheduler_http_may_state_another_source(
    db: Connection, guest: str
) -> None:
    db.execute("grant execute on function scheduler.source_of to guest")
    with psycopg.connect(guest, autocommit=True) as connection:
        assert connection.execute("select scheduler.source_of('guest')").fetchone() == ("guest",)
        with pytest.raises(psycopg.DatabaseError, match="guest may not enqueue as source shop"):
            connection.execute("select scheduler.source_of('shop')")


@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "db_passwd", "client_secret", "apiKey", "api_key"),
        *("private-key", "access_token", "aws_credentials"),
    ],
)
def test_a_payload_with_what_looks_like_a_secret_is_refused_and_told_the_way_out(
    db: Connection, name: str
) -> None:
    with pytest.raises(PayloadError, match=r"looks like a secret.*declare it with `secrets=`"):
        enqueue(db, anything, {"deep": [{name: "x"}]})
    assert db.execute("select from scheduler.tasks").fetchall() == []


@pytest.mark.parametrize(
    "payload",
    [
        {"note": "the password is elsewhere"},
        {"note": '{"password": "quoted JSON in a text"}'},
        {"tokens": 3, "passage": 1, "keyboard": "us"},
        ["password", "secret"],
    ],
)
def test_a_payload_that_only_speaks_of_secrets_is_stored(db: Connection, payload: object) -> None:
    assert enqueue(db, anything, payload) > 0


@pytest.mark.parametrize(
    "payload",
    [
        r'{"\u0070assword": 1}',
        r'[{"a": {"API\u005fK\u0065y" : null}}]',
        r'{"\"my\" password": 1}',
        r'{"password\n": 1}',
    ],
)
def test_a_field_that_looks_like_a_secret_is_found_however_its_name_is_written(
    db: Connection, payload: str
) -> None:
    with pytest.raises(psycopg.DatabaseError, match="looks like a secret"):
        db.execute("select scheduler.check_payload(%s)", [payload])


@pytest.mark.parametrize(
    "payload", [r'{"a": "\u0070assword"}', r'{"a": "\"password\": ", "b": ":"}']
)
def test_escaped_letters_and_quotes_in_a_text_are_no_field(db: Connection, payload: str) -> None:
    db.execute("select scheduler.check_payload(%s)", [payload])
