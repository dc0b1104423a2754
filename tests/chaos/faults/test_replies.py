"""Replies are lost of what was committed, through a real Toxiproxy."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import ClientCursor, Connection

from chaos.cluster.postgres import Postgres
from chaos.cluster.toxiproxy import Toxiproxy
from chaos.faults import Arena
from chaos.faults.replies import LoseCommits, LoseReplies
from chaos.fleet import Seat
from chaos.history.journal import Journal, read_journals
from chaos.systems.replies import LostReplies
from scheduler.wire import WorkerConnection
from tests.chaos.faults.arena import arena, struck

pytestmark = pytest.mark.slow

ALL = LoseReplies(kind="lose-replies", count=1, lasts=1, share=1)


@pytest.fixture
def where(toxiproxy: Toxiproxy, server: Postgres, empty_dsn: str, tmp_path: Path) -> Arena:
    """An arena in which this process sits behind a proxy; its database has a table."""
    with psycopg.connect(empty_dsn) as connection:
        connection.execute("create table done (what text)")
        name = connection.info.dbname
    one = arena(server, name, Seat(1, "", incarnation=1, pid=os.getpid()))
    one.fleet.directory = tmp_path
    one.proxies[1] = toxiproxy.proxy("w1", f"127.0.0.1:{server.port}")
    return one


@pytest.fixture
def replies(where: Arena, tmp_path: Path) -> LostReplies:
    """What the worker of the arena's only seat has on its sessions."""
    journals = tmp_path / "journals"
    journals.mkdir()
    return LostReplies(journals, "w1.1", Journal(journals, "w1.1"))


def session(where: Arena, replies: LostReplies) -> WorkerConnection:
    """A worker's session, through the proxy."""
    proxy = where.proxies[1]
    return replies.on(
        WorkerConnection.connect(
            host=proxy.host,
            port=proxy.port,
            user="postgres",
            dbname=where.database,
            autocommit=True,
        )
    )


def complete(connection: Connection, message: str) -> None:
    """What a slot does, in a thread of its name."""
    connection.execute("begin")
    connection.execute("insert into done values ('c: goes on')")
    with pytest.raises(psycopg.OperationalError):
        ClientCursor(connection).execute(message.encode())


def done(where: Arena) -> list[str]:
    """What was committed."""
    with psycopg.connect(where.dsn) as connection:
        return [what for (what,) in connection.execute("select what from done order by what")]


def test_a_write_is_committed_and_its_reply_lost_until_healed(
    where: Arena, replies: LostReplies, tmp_path: Path
) -> None:
    with session(where, replies) as before:
        before.execute("insert into done values ('a: before')")
        strike = struck(ALL, where)
        with pytest.raises(psycopg.OperationalError):
            before.execute("insert into done values ('b: alone')")
    with (
        session(where, replies) as again,
        pytest.raises(psycopg.OperationalError),
        again.transaction(),
    ):
        again.execute("insert into done values ('c: with a COMMIT')")
    with session(where, replies) as slot:
        message = "insert into done values ('d: with its COMMIT'); commit"
        with ThreadPoolExecutor(1, thread_name_prefix="scheduler-slot") as thread:
            thread.submit(complete, slot, message).result()
    assert [what[0] for what in done(where)] == ["a", "b", "c", "c", "d"]
    strike.heal()
    with session(where, replies) as healed:
        healed.execute("insert into done values ('e: healed')")
    notes = read_journals(tmp_path / "journals", 0)
    assert [note.what for note in notes] == ["reply-lost"] * 3
    assert all(0 < int(note.detail) < 10_000_000 for note in notes)


def test_of_commits_alone_nothing_else_is_lost(where: Arena, replies: LostReplies) -> None:
    strike = struck(LoseCommits(kind="lose-commits", count=1, lasts=1, share=1), where)
    with session(where, replies) as one:
        one.execute("insert into done values ('a: answered')")
        message = "insert into done values ('b: with its COMMIT'); commit"
        with ThreadPoolExecutor(1, thread_name_prefix="scheduler-slot") as thread:
            thread.submit(complete, one, message).result()
    strike.heal()
    assert [what[0] for what in done(where)] == ["a", "b", "c"]


def test_what_only_waits_for_news_or_goes_on_with_a_transaction_is_answered(
    where: Arena, replies: LostReplies
) -> None:
    with session(where, replies) as one:
        transaction = one.transaction()
        with transaction:
            strike = struck(ALL, where)
            one.execute("insert into done values ('within')")
            strike.heal()
        assert list(one.notifies(timeout=0)) == []
    assert done(where) == ["within"]


def test_none_is_lost_of_another_worker(where: Arena, tmp_path: Path) -> None:
    strike = struck(ALL, where)
    other = LostReplies(tmp_path / "journals", "w2.1", Journal(tmp_path, "w2.1"))
    with session(where, other) as one:
        one.execute("insert into done values ('another')")
    strike.heal()
