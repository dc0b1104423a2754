"""The classic races of SQL programs, each with its correction: what docs/explorer.md explores.

Plain psycopg functions that know nothing of the explorer.
"""

from __future__ import annotations

from dataclasses import replace

from psycopg import AsyncConnection, Connection, IsolationLevel

from chaos.explore.program import Endings, Program


def _one(connection: Connection, sql: str) -> int:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return int(row[0])


# Lost update: two read a number, both write it back one larger.


def counter_install(connection: Connection) -> None:
    """A table with one number in it."""
    connection.execute("create table counter (n integer not null)")


def counter_setup(connection: Connection) -> None:
    """The number is 0."""
    connection.execute("delete from counter; insert into counter values (0)")


def increment(connection: Connection) -> None:
    """Read, then write."""
    n = _one(connection, "select n from counter")
    connection.execute("update counter set n = %s", [n + 1])
    connection.commit()


def increment_locked(connection: Connection) -> None:
    """The correction: lock what is read."""
    n = _one(connection, "select n from counter for update")
    connection.execute("update counter set n = %s", [n + 1])
    connection.commit()


def nothing_lost(connection: Connection, endings: Endings) -> None:
    """Every increment that returned is in the number."""
    n, done = _one(connection, "select n from counter"), sum(e.ok for e in endings.values())
    assert n == done, f"{done} increments made {n}"


LOST_UPDATE = Program(
    counter_setup,
    {"a": increment, "b": increment},
    at_end=nothing_lost,
    install=counter_install,
)
LOST_UPDATE_CORRECTED = Program(
    counter_setup,
    {"a": increment_locked, "b": increment_locked},
    at_end=nothing_lost,
    install=counter_install,
)


# The same in an application that is async: only the actors are written differently.


async def _increment_async(connection: AsyncConnection, lock: bytes) -> None:
    cursor = await connection.execute(b"select n from counter" + lock)
    [(n,)] = await cursor.fetchall()
    await connection.execute("update counter set n = %s", [n + 1])
    await connection.commit()


async def increment_async(connection: AsyncConnection) -> None:
    """Read, then write."""
    await _increment_async(connection, b"")


async def increment_async_locked(connection: AsyncConnection) -> None:
    """The correction: lock what is read."""
    await _increment_async(connection, b" for update")


LOST_UPDATE_ASYNC = replace(LOST_UPDATE, actors={"a": increment_async, "b": increment_async})
LOST_UPDATE_ASYNC_CORRECTED = replace(
    LOST_UPDATE, actors={"a": increment_async_locked, "b": increment_async_locked}
)


# Write skew: each of two doctors goes off call because the other one is on call.


def doctors_install(connection: Connection) -> None:
    """Who is on call."""
    connection.execute("create table doctors (name text primary key, on_call boolean not null)")


def doctors_setup(connection: Connection) -> None:
    """Both are."""
    connection.execute(
        "delete from doctors; insert into doctors values ('alice', true), ('bob', true)"
    )


def _leave(connection: Connection, name: str) -> None:
    if _one(connection, "select count(*) from doctors where on_call") >= 2:
        connection.execute("update doctors set on_call = false where name = %s", [name])
    connection.commit()


def alice_leaves(connection: Connection) -> None:
    """Under REPEATABLE READ, which does not notice."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    _leave(connection, "alice")


def bob_leaves(connection: Connection) -> None:
    """The same."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    _leave(connection, "bob")


def alice_leaves_serializable(connection: Connection) -> None:
    """The correction: the server refuses one of the two."""
    connection.isolation_level = IsolationLevel.SERIALIZABLE
    _leave(connection, "alice")


def bob_leaves_serializable(connection: Connection) -> None:
    """The same."""
    connection.isolation_level = IsolationLevel.SERIALIZABLE
    _leave(connection, "bob")


def somebody_on_call(connection: Connection) -> None:
    """At least one doctor is."""
    assert _one(connection, "select count(*) from doctors where on_call"), "nobody is on call"


WRITE_SKEW = Program(
    doctors_setup,
    {"alice": alice_leaves, "bob": bob_leaves},
    somebody_on_call,
    install=doctors_install,
)
WRITE_SKEW_CORRECTED = Program(
    doctors_setup,
    {"alice": alice_leaves_serializable, "bob": bob_leaves_serializable},
    somebody_on_call,
    install=doctors_install,
)


# Double claim: two workers take the same job.


def jobs_install(connection: Connection) -> None:
    """Jobs, and a line for each time that one was taken."""
    connection.execute(
        "create table jobs (id integer primary key, state text not null);"
        " create table taken (job integer not null)"
    )


def jobs_setup(connection: Connection) -> None:
    """Two jobs wait."""
    connection.execute(
        "delete from taken; delete from jobs; insert into jobs values (1, 'new'), (2, 'new')"
    )


def _take(connection: Connection, lock: str) -> int | None:
    row = connection.execute(
        f"select id from jobs where state = 'new' order by id limit 1 {lock}".encode()
    ).fetchone()
    if row is not None:
        connection.execute("update jobs set state = 'taken' where id = %s", row)
        connection.execute("insert into taken values (%s)", row)
    connection.commit()
    return None if row is None else int(row[0])


def take(connection: Connection) -> int | None:
    """Select a job, then mark it."""
    return _take(connection, "")


def take_skipping(connection: Connection) -> int | None:
    """The correction: lock it, and pass over what others have locked."""
    return _take(connection, "for update skip locked")


def taken_once(connection: Connection) -> None:
    """No job was taken twice."""
    twice = connection.execute("select job from taken group by job having count(*) > 1").fetchone()
    assert twice is None, f"job {twice[0]} was taken twice" if twice else ""


DOUBLE_CLAIM = Program(jobs_setup, {"a": take, "b": take}, taken_once, install=jobs_install)
DOUBLE_CLAIM_CORRECTED = Program(
    jobs_setup, {"a": take_skipping, "b": take_skipping}, taken_once, install=jobs_install
)


# Skipped-row miss: a worker drains a queue until it is empty. Empty is what SKIP LOCKED shows it
# while another has the last job, and gives it back.


def give_back(connection: Connection) -> None:
    """Take a job, fail, roll back."""
    connection.execute("select id from jobs where state = 'new' limit 1 for update skip locked")
    connection.rollback()


def drain(connection: Connection) -> None:
    """Take jobs until there are none."""
    while take_skipping(connection) is not None:
        pass


def drain_looking_again(connection: Connection) -> None:
    """The correction: a locked row is not an absent one. Ask without SKIP LOCKED before giving up.

    (A worker that polls does the same by coming back later.)
    """
    drain(connection)
    while _take(connection, "for update") is not None:
        pass


def all_taken(connection: Connection, endings: Endings) -> None:
    """The worker that drains has left nothing behind."""
    left = _one(connection, "select count(*) from jobs where state = 'new'")
    assert not left, f"{left} jobs are left and nobody looks any more"


SKIPPED_ROW = Program(
    jobs_setup, {"a": give_back, "b": drain}, at_end=all_taken, install=jobs_install
)
SKIPPED_ROW_CORRECTED = Program(
    jobs_setup, {"a": give_back, "b": drain_looking_again}, at_end=all_taken, install=jobs_install
)


# Lost wake-up: a consumer looks, finds nothing, and only then says that it wants to be woken.
# (LISTEN after the look is the same mistake, and so is a condition variable without its lock.)


def mail_install(connection: Connection) -> None:
    """Messages, and whether the consumer sleeps."""
    connection.execute(
        "create table mail (body text not null); create table consumer (asleep boolean not null)"
    )


def mail_setup(connection: Connection) -> None:
    """No message yet, and the consumer is awake."""
    connection.execute(
        "delete from mail; delete from consumer; insert into consumer values (false)"
    )


def send(connection: Connection) -> None:
    """Write a message; then wake the consumer if it sleeps."""
    connection.execute("insert into mail values ('hello')")
    connection.commit()
    connection.execute("update consumer set asleep = false where asleep")
    connection.commit()


def look_then_sleep(connection: Connection) -> None:
    """Sleep if there is nothing."""
    if _one(connection, "select count(*) from mail") == 0:
        connection.execute("update consumer set asleep = true")
    connection.commit()


def sleep_then_look(connection: Connection) -> None:
    """The correction: announce the sleep first, look once more, and stay awake if there is mail."""
    connection.execute("update consumer set asleep = true")
    connection.commit()
    if _one(connection, "select count(*) from mail"):
        connection.execute("update consumer set asleep = false")
    connection.commit()


def nobody_sleeps(connection: Connection, endings: Endings) -> None:
    """When all is done, the consumer does not sleep while there is mail."""
    sleeps = _one(connection, "select count(*) from mail, consumer where asleep")
    assert not sleeps, "there is mail, and the consumer sleeps"


LOST_WAKE_UP = Program(
    mail_setup,
    {"consumer": look_then_sleep, "sender": send},
    at_end=nobody_sleeps,
    install=mail_install,
)
LOST_WAKE_UP_CORRECTED = Program(
    mail_setup,
    {"consumer": sleep_then_look, "sender": send},
    at_end=nobody_sleeps,
    install=mail_install,
)

EXAMPLES = {
    "lost update": (LOST_UPDATE, LOST_UPDATE_CORRECTED),
    "lost update, async": (LOST_UPDATE_ASYNC, LOST_UPDATE_ASYNC_CORRECTED),
    "write skew": (WRITE_SKEW, WRITE_SKEW_CORRECTED),
    "double claim": (DOUBLE_CLAIM, DOUBLE_CLAIM_CORRECTED),
    "skipped row": (SKIPPED_ROW, SKIPPED_ROW_CORRECTED),
    "lost wake-up": (LOST_WAKE_UP, LOST_WAKE_UP_CORRECTED),
}
