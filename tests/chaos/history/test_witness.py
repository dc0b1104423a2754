"""The witness on a real server: toy task and log tables, crashes, lost replies, long values."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from chaos.cluster.postgres import Postgres, postgres
from chaos.history import slot
from chaos.history import witness as witness_module
from chaos.history.events import Change, Commit, Effect, Ended, Row
from chaos.history.watched import Watched, WitnessError, micros
from chaos.history.witness import Witness

SCHEMA = """
    CREATE SCHEMA toy;
    CREATE TABLE toy.tasks (
        id bigint PRIMARY KEY, status text NOT NULL, due timestamptz NOT NULL DEFAULT 'epoch',
        owner text, error text, token int NOT NULL DEFAULT 0, payload text
    );
    CREATE TABLE toy.log (
        task bigint, attempt int, outcome text NOT NULL, at timestamptz NOT NULL DEFAULT 'epoch',
        PRIMARY KEY (at, task, attempt)
    ) PARTITION BY RANGE (at);
    CREATE TABLE toy.log_old PARTITION OF toy.log FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
    CREATE TABLE toy.log_new PARTITION OF toy.log FOR VALUES FROM ('2000-01-01') TO (MAXVALUE);
    CREATE TABLE toy.effects (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, task bigint);
    CREATE TABLE toy.unwatched (id bigint);
"""


def integer(text: str | None) -> int:
    assert text is not None
    return int(text)


def read_task(row: Mapping[str, str | None]) -> Row:
    return Row(
        task=integer(row["id"]),
        kind="toy",
        state=row["status"] or "",
        due=micros(row["due"]) or 0,
        attempts=0,
        max_attempts=1,
        token=integer(row["token"]),
        owner=row["owner"],
        expires=None,
        claimed_at=None,
        policy=None,
        error=row["error"],
    )


def read_log(row: Mapping[str, str | None]) -> Ended:
    at = micros(row["at"]) or 0
    outcome = row["outcome"] or ""
    return Ended(integer(row["task"]), 0, "", integer(row["attempt"]), at, at, outcome, None)


def read_effect(row: Mapping[str, str | None]) -> Effect:
    return Effect(integer(row["task"]), integer(row["id"]))


TASKS = Watched("toy.tasks", ("id", "status", "due", "owner", "error", "token"), read_task, "id")
LOG = Watched("toy.log", ("task", "attempt", "outcome", "at"), read_log)
EFFECTS = Watched("toy.effects", ("id", "task"), read_effect)


def task(number: int, state: str, **others: object) -> Change:
    row = Row(number, "toy", state, 0, 0, 1, 0, None, None, None, None, None)
    return Change(number, row._replace(**others))  # type: ignore[arg-type]  # fields of Row


def changes(commits: list[Commit]) -> list[Change]:
    return [change for commit in commits for change in commit.changes]


def incompressible(length: int, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


@contextmanager
def witnessing(dsn: str, *watched: Watched) -> Iterator[Witness]:
    witness = Witness(dsn, watched or (TASKS, LOG, EFFECTS), f"witness_{uuid4().hex}")
    witness.open()
    try:
        yield witness
    finally:
        witness.close()


@pytest.fixture
def db(empty_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as db:
        db.execute(SCHEMA)
        yield db


@pytest.fixture
def witness(db: Connection, empty_dsn: str) -> Iterator[Witness]:
    with witnessing(empty_dsn) as witness:
        yield witness


# What is told.


def test_a_commit_says_when_and_by_which_transaction(db: Connection, witness: Witness) -> None:
    before = time.time_ns() // 1000
    with db.transaction():
        (xid,) = db.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (None,)
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
    after = time.time_ns() // 1000
    [commit] = witness.drain()
    assert commit == Commit(0, commit.at, xid, (task(1, "pending"),), (), ())
    assert before <= commit.at <= after


def test_changes_of_one_transaction_keep_their_order(db: Connection, witness: Witness) -> None:
    with db.transaction():
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (2, 'pending')")
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
        db.execute("INSERT INTO toy.log VALUES (2, 1, 'failed', '1999-12-31 23:59:59.999999+00')")
        db.execute("UPDATE toy.tasks SET status = 'running', owner = 'w1' WHERE id = 2")
        db.execute("INSERT INTO toy.log VALUES (1, 3, 'completed', '2000-01-01 00:00:00.5+00')")
        db.execute("INSERT INTO toy.effects (task) VALUES (1)")
        db.execute("DELETE FROM toy.tasks WHERE id = 1")
    [commit] = witness.drain()
    assert commit.changes == (
        task(2, "pending"),
        task(1, "pending"),
        task(2, "running", owner="w1"),
        Change(1, None),
    )
    y2k = 946_684_800_000_000
    assert commit.ended == (
        Ended(2, 0, "", 1, y2k - 1, y2k - 1, "failed", None),
        Ended(1, 0, "", 3, y2k + 500_000, y2k + 500_000, "completed", None),
    )
    assert commit.effects == (Effect(1, 1),)


def test_the_order_is_that_of_commits_not_of_beginnings(
    db: Connection, empty_dsn: str, witness: Witness
) -> None:
    with psycopg.connect(empty_dsn) as early:
        early.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (2, 'pending')")
        assert changes(witness.drain()) == [task(2, "pending")]
        early.commit()
    db.execute("INSERT INTO toy.tasks (id, status) VALUES (3, 'pending')")
    commits = witness.drain()
    assert [commit.seq for commit in commits] == [1, 2]
    assert changes(commits) == [task(1, "pending"), task(3, "pending")]


def test_concurrent_writers_are_told_in_commit_order(
    db: Connection, empty_dsn: str, witness: Witness
) -> None:
    db.execute("INSERT INTO toy.tasks (id, status) VALUES (0, 'counter')")

    def write(writer: int) -> None:
        with psycopg.connect(empty_dsn, autocommit=True) as own:
            for number in range(50):
                with own.transaction():
                    own.execute(
                        "INSERT INTO toy.tasks (id, status) VALUES (%s, 'x')",
                        (1000 * writer + number,),
                    )
                    # The row's lock is held until the commit, so its counter counts commits.
                    own.execute("UPDATE toy.tasks SET token = token + 1 WHERE id = 0")

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 5)]
    for thread in threads:
        thread.start()
    commits = []
    while any(thread.is_alive() for thread in threads):
        commits += witness.drain()
    for thread in threads:
        thread.join()
    commits += witness.drain()
    assert [commit.seq for commit in commits] == list(range(201))
    counted = [change.row.token for change in changes(commits) if change.row and change.task == 0]
    assert counted == list(range(201))
    assert len({commit.xid for commit in commits}) == 201


def test_what_was_rolled_back_is_not_told(db: Connection, witness: Witness) -> None:
    with db.transaction(force_rollback=True):
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
    with db.transaction():
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (2, 'pending')")
        with db.transaction(force_rollback=True):
            db.execute("INSERT INTO toy.tasks (id, status) VALUES (3, 'pending')")
    assert changes(witness.drain()) == [task(2, "pending")]


def test_transactions_without_watched_rows_take_no_seq(db: Connection, witness: Witness) -> None:
    db.execute("INSERT INTO toy.unwatched VALUES (1)")
    db.execute("INSERT INTO toy.log VALUES (1, 1, 'failed')")
    db.execute("DELETE FROM toy.log")
    db.execute("TRUNCATE toy.log, toy.effects")
    db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
    assert [(commit.seq, len(commit.ended)) for commit in witness.drain()] == [(0, 1), (1, 0)]
    assert witness.drain() == []


def test_a_new_id_is_the_old_tasks_end(db: Connection, witness: Witness) -> None:
    long = incompressible(5000)
    db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (1, 'pending', %s)", (long,))
    db.execute("UPDATE toy.tasks SET id = 2")
    _, moved = witness.drain()
    assert moved.changes == (Change(1, None), task(2, "pending", error=long))
    db.execute("UPDATE toy.tasks SET status = 'dead'")
    assert changes(witness.drain()) == [task(2, "dead", error=long)]


def test_a_commit_is_told_even_before_the_server_flushed_it(
    db: Connection, witness: Witness
) -> None:
    db.execute("SET synchronous_commit = off")
    for number in range(30):
        db.execute("INSERT INTO toy.tasks (id, status) VALUES (%s, 'pending')", (number,))
        assert changes(witness.drain()) == [task(number, "pending")]


def test_small_batches_lose_and_split_nothing(
    db: Connection, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness_module, "_BATCH", 3)
    for first in range(0, 100, 10):
        db.execute(
            "INSERT INTO toy.tasks (id, status) SELECT %s + g, 'x' FROM generate_series(0, 9) AS g",
            (first,),
        )
        db.execute("UPDATE toy.tasks SET status = 'y' WHERE id = %s", (first,))
    commits = witness.drain()
    assert [len(commit.changes) for commit in commits] == [10, 1] * 10
    assert [commit.seq for commit in commits] == list(range(20))


# Long values.


def test_a_long_text_that_an_update_leaves_alone_is_still_told(
    db: Connection, witness: Witness
) -> None:
    long, longer = incompressible(5000), incompressible(9000, seed=2)
    db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (1, 'a', %s)", (long,))
    db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (2, 'a', 'short')")
    db.execute("UPDATE toy.tasks SET status = 'b'")
    with db.transaction(force_rollback=True):
        db.execute("UPDATE toy.tasks SET error = 'never' WHERE id = 1")
    with db.transaction():
        db.execute("UPDATE toy.tasks SET error = %s WHERE id = 1", (longer,))
        db.execute("UPDATE toy.tasks SET status = 'c' WHERE id = 1")
    db.execute("UPDATE toy.tasks SET status = 'd' WHERE id = 1")
    assert changes(witness.drain()) == [
        task(1, "a", error=long),
        task(2, "a", error="short"),
        task(1, "b", error=long),
        task(2, "b", error="short"),
        task(1, "b", error=longer),
        task(1, "c", error=longer),
        task(1, "d", error=longer),
    ]


def test_a_long_text_is_forgotten_once_it_is_replaced(db: Connection, witness: Witness) -> None:
    long = incompressible(5000)
    db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (1, 'a', %s)", (long,))
    db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (2, 'a', %s)", (long,))
    witness.drain()
    assert len(witness._long) == 2
    db.execute("UPDATE toy.tasks SET error = NULL WHERE id = 1")
    db.execute("DELETE FROM toy.tasks WHERE id = 2")
    assert changes(witness.drain()) == [task(1, "a"), Change(2, None)]
    assert witness._long == {}


def test_the_shortest_values_that_can_be_out_of_line_are_remembered(
    db: Connection, empty_dsn: str
) -> None:
    # In a row this wide, everything is moved out of line that PostgreSQL ever moves.
    texts = {f"t{length}": incompressible(length) for length in range(1, 81)}
    texts["horses"] = "\U0001f40e" * 6
    columns = ", ".join(f"{name} text" for name in texts)
    db.execute(
        f"CREATE TABLE toy.wide (id int PRIMARY KEY, n int, {columns})"
        " WITH (toast_tuple_target = 128)"
    )
    for name in texts:
        db.execute(f"ALTER TABLE toy.wide ALTER {name} SET STORAGE EXTERNAL")
    seen: list[dict[str, str | None]] = []

    def read(row: Mapping[str, str | None]) -> Row:
        seen.append(dict(row))
        change = task(1, "x")
        assert change.row is not None
        return change.row

    with witnessing(empty_dsn, Watched("toy.wide", ("id", "n", *texts), read, "id")) as witness:
        db.execute(
            f"INSERT INTO toy.wide VALUES (1, 0, {', '.join(['%s'] * len(texts))})",
            tuple(texts.values()),
        )
        db.execute("UPDATE toy.wide SET n = 1")
        witness.drain()
    [(stored,)] = db.execute(
        "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'toy.wide'::regclass"
    )
    assert stored > 0
    assert seen == [{"id": "1", "n": "0", **texts}, {"id": "1", "n": "1", **texts}]


def test_a_long_text_older_than_the_witness_is_an_error(db: Connection, empty_dsn: str) -> None:
    db.execute(
        "INSERT INTO toy.tasks (id, status, error) VALUES (1, 'a', %s)", (incompressible(5000),)
    )
    with witnessing(empty_dsn) as witness:
        db.execute("UPDATE toy.tasks SET status = 'b'")
        with pytest.raises(WitnessError, match=r"tasks\.error of row 1 was written before"):
            witness.drain()


# Changes without a word for them.


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE toy.log SET outcome = 'completed'", "row of toy.log, an append-only table"),
        ("UPDATE toy.effects SET task = 2", "row of toy.effects, an append-only table"),
        ("TRUNCATE toy.tasks", "toy.tasks was truncated"),
    ],
)
def test_a_change_that_history_has_no_word_for_is_an_error(
    db: Connection, witness: Witness, statement: str, reason: str
) -> None:
    db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
    db.execute("INSERT INTO toy.log VALUES (1, 1, 'failed')")
    db.execute("INSERT INTO toy.effects (task) VALUES (1)")
    assert len(witness.drain()) == 3
    db.execute(statement)
    with pytest.raises(WitnessError, match=reason):
        witness.drain()


@pytest.mark.parametrize("key", ["id", None])
def test_a_reader_of_the_wrong_kind_is_an_error(
    db: Connection, empty_dsn: str, key: str | None
) -> None:
    wrong = Watched("toy.effects", ("id", "task"), read_effect if key else read_wrongly, key)
    with witnessing(empty_dsn, wrong) as witness:
        db.execute("INSERT INTO toy.effects (task) VALUES (1)")
        with pytest.raises(WitnessError, match=r"the reader of toy\.effects gave (Row|Effect)"):
            witness.drain()


def read_wrongly(row: Mapping[str, str | None]) -> Row:
    return Row(1, "", "", 0, 0, 0, 0, None, None, None, None, None)


# Losing the server.


@pytest.mark.slow
def test_what_a_crashed_server_sends_again_is_told_once() -> None:
    with (
        # Of itself no checkpoint writes the slot's position to disk before the crash.
        postgres(settings={"checkpoint_timeout": "1h"}, durable=True) as server,
        closing(psycopg.connect(server.dsn(), autocommit=True)) as db,
        closing(psycopg.connect(server.dsn())) as holder,
    ):
        db.execute(SCHEMA)
        with witnessing(server.dsn()) as witness:
            # An open transaction that has written keeps the slot from moving on and being saved.
            # It dies with the server, and must not be told.
            holder.execute("INSERT INTO toy.tasks (id, status) VALUES (0, 'never')")
            long = incompressible(5000)
            db.execute("INSERT INTO toy.tasks (id, status, error) VALUES (1, 'x', %s)", (long,))
            told = witness.drain()
            # Sent again from here: an update that needs the value of an insert that is not, of a
            # row that is gone.
            db.execute("CHECKPOINT")
            db.execute("UPDATE toy.tasks SET status = 'y'")
            db.execute("DELETE FROM toy.tasks")
            told += witness.drain()
            before = confirmed(db)
            db.execute("INSERT INTO toy.tasks (id, status) VALUES (2, 'x')")
            server.crash()
            with pytest.raises(psycopg.OperationalError):
                witness.drain()
            with pytest.raises(psycopg.OperationalError):
                witness.reconnect()
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as again:
                assert confirmed(again) < before, "the server did not forget the slot's position"
                again.execute("INSERT INTO toy.tasks (id, status) VALUES (3, 'x')")
            witness.reconnect()
            told += witness.drain()
            assert [commit.seq for commit in told] == [0, 1, 2, 3, 4]
            assert changes(told) == [
                task(1, "x", error=long),
                task(1, "y", error=long),
                Change(1, None),
                task(2, "x"),
                task(3, "x"),
            ]
            assert witness.drain() == []


def confirmed(db: Connection) -> int:
    """The position up to which the only slot's commits count as received."""
    [(position,)] = db.execute("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots")
    return int(position)


class Relay:
    """Passes one connection at a time on to a server, and can lose a reply."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._doomed: bytes | None = None
        self.lost = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def lose_reply_to(self, statement: bytes) -> None:
        """Close the connection when the server answers `statement`, and pass on no answer."""
        self._doomed = statement

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
                self._pump(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        losing = False
        while True:
            for one in select.select([client, server], [], [])[0]:
                data = one.recv(65536)
                if losing and one is server:
                    self.lost = True
                    return
                if not data:
                    return
                if one is client and self._doomed and self._doomed in data:
                    losing, self._doomed = True, None
                (server if one is client else client).sendall(data)


@pytest.fixture
def relay(server: Postgres) -> Iterator[Relay]:
    relay = Relay(server.port)
    yield relay
    relay.close()


@pytest.mark.parametrize(
    "statement", [b"pg_logical_emit_message", b"_binary_changes", b"pg_replication_slot_advance"]
)
def test_a_reply_lost_with_the_connection_loses_and_doubles_nothing(
    db: Connection,
    empty_dsn: str,
    relay: Relay,
    statement: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(witness_module, "_BATCH", 10)
    relayed = make_conninfo(empty_dsn, port=relay.port)
    with witnessing(relayed) as witness:
        for number in range(20):
            db.execute("INSERT INTO toy.tasks (id, status) VALUES (%s, 'x')", (number,))
        relay.lose_reply_to(statement)
        with pytest.raises(psycopg.OperationalError):
            witness.drain()
        assert relay.lost
        witness.reconnect()
        commits = witness.drain()
        assert [commit.seq for commit in commits] == list(range(20))
        assert changes(commits) == [task(number, "x") for number in range(20)]


def test_reconnecting_to_a_server_without_the_slot_is_an_error(
    db: Connection, witness: Witness
) -> None:
    db.execute("SELECT pg_drop_replication_slot(%s)", (witness._name,))
    with pytest.raises(WitnessError, match=f"no slot {witness._name}"):
        witness.reconnect()


# Opening and closing.


def leftovers(db: Connection, witness: Witness) -> list[str]:
    return [
        kind
        for (kind,) in db.execute(
            "SELECT 'slot' FROM pg_replication_slots WHERE slot_name = %(name)s"
            " UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = %(name)s",
            {"name": witness._name},
        )
    ]


def test_closing_leaves_nothing_and_may_be_repeated(db: Connection, empty_dsn: str) -> None:
    witness = Witness(empty_dsn, [TASKS])
    witness.close()
    for missing in ("nothing", "slot", "publication", "session"):
        witness.open()
        assert sorted(leftovers(db, witness)) == ["publication", "slot"]
        if missing == "slot":
            db.execute("SELECT pg_drop_replication_slot(%s)", (witness._name,))
        elif missing == "publication":
            db.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(witness._name)))
        elif missing == "session":
            db.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND application_name = 'leaseproof witness'"
            )
            with pytest.raises(psycopg.OperationalError):
                witness.drain()
        witness.close()
        assert leftovers(db, witness) == []
        witness.close()
    with pytest.raises(WitnessError, match="not open"):
        witness.drain()
    with pytest.raises(WitnessError, match="not open"):
        witness.reconnect()


def test_a_witness_that_did_not_open_leaves_anothers_slot_alone(
    db: Connection, empty_dsn: str, witness: Witness
) -> None:
    second = Witness(empty_dsn, [TASKS], witness._name)
    with pytest.raises(WitnessError, match=f"slot {witness._name} exists"):
        second.open()
    second.close()
    db.execute("INSERT INTO toy.tasks (id, status) VALUES (1, 'pending')")
    assert changes(witness.drain()) == [task(1, "pending")]


@pytest.mark.slow
def test_a_server_without_logical_wal_is_told_what_to_set() -> None:
    with (
        postgres(settings={"wal_level": "replica"}) as server,
        pytest.raises(WitnessError, match="set wal_level = logical and restart"),
    ):
        Witness(server.dsn(), [TASKS]).open()


@pytest.fixture
def role(db: Connection) -> Iterator[str]:
    name = f"role_{uuid4().hex}"
    db.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    yield name
    db.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_role_without_its_rights_is_told_which(db: Connection, empty_dsn: str, role: str) -> None:
    witness = Witness(make_conninfo(empty_dsn, user=role), [TASKS])
    with pytest.raises(WitnessError, match=f'ALTER ROLE "{role}" REPLICATION'):
        witness.open()
    db.execute(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role)))
    with pytest.raises(WitnessError, match="use their owner"):
        witness.open()
    assert leftovers(db, witness) == []


def test_a_writer_that_never_ends_does_not_hang_the_opening(
    db: Connection, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness(empty_dsn, [TASKS], f"witness_{uuid4().hex}")
    with psycopg.connect(empty_dsn) as writer:
        writer.execute("INSERT INTO toy.unwatched VALUES (1)")
        with monkeypatch.context() as patch:
            patch.setattr(slot, "_SLOT_TIMEOUT", timedelta(milliseconds=200))
            with pytest.raises(WitnessError, match="every open transaction that has written"):
                witness.open()
        assert leftovers(db, witness) == []
        writer.rollback()
    witness.open()
    witness.close()


@pytest.mark.parametrize(
    ("change", "watched", "reason"),
    [
        ("", Watched("tasks", ("id",), read_task, "id"), "no table tasks"),
        ("", Watched("toy.none", ("id",), read_task, "id"), r"no table toy\.none"),
        ("", Watched("toy.tasks", ("id", "nope"), read_task, "id"), "no column nope"),
        ("", Watched("toy.tasks", ("status",), read_task), r"watch id of toy\.tasks too"),
        ("", Watched("toy.tasks", ("id", "owner"), read_task, "owner"), "owner is not in"),
        ("", Watched("toy.unwatched", ("id",), read_effect), "give it a primary key"),
        (
            "ALTER TABLE toy.tasks REPLICA IDENTITY FULL",
            TASKS,
            r"ALTER TABLE toy\.tasks REPLICA IDENTITY DEFAULT",
        ),
    ],
)
def test_a_table_that_cannot_be_watched_is_refused_at_once(
    db: Connection, empty_dsn: str, change: str, watched: Watched, reason: str
) -> None:
    db.execute(change or "SELECT 1")
    witness = Witness(empty_dsn, [watched])
    with pytest.raises(WitnessError, match=reason):
        witness.open()
    assert leftovers(db, witness) == []


def test_a_key_with_further_columns_and_an_index_as_identity_will_do(
    db: Connection, empty_dsn: str
) -> None:
    db.execute(
        "ALTER TABLE toy.effects DROP CONSTRAINT effects_pkey;"
        "ALTER TABLE toy.effects ALTER task SET NOT NULL;"
        "CREATE UNIQUE INDEX by_task ON toy.effects (task) INCLUDE (id);"
        "ALTER TABLE toy.effects REPLICA IDENTITY USING INDEX by_task"
    )

    def read(row: Mapping[str, str | None]) -> Effect:
        return Effect(integer(row["task"]), 0)

    with witnessing(empty_dsn, Watched("toy.effects", ("task",), read)) as witness:
        db.execute("INSERT INTO toy.effects (task) VALUES (5)")
        db.execute("DELETE FROM toy.effects")
        assert [commit.effects for commit in witness.drain()] == [(Effect(5, 0),)]


# Times.


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_micros_are_exactly_the_servers(db: Connection, zone: str) -> None:
    texts = [
        "epoch",
        "2024-02-29 12:34:56.789012+00",
        "2024-02-29 12:34:56.7+00",
        "1999-12-31 23:59:59.999999+00",
        "1883-11-18 12:00:00+00",
        "9999-12-31 23:59:59.999999+00",
        "10000-01-01 00:00:00+00",
        "200000-12-31 00:00:00.000001+00",
        "0001-01-01 12:00:00+00 BC",
        "0005-02-28 12:00:00.25+00 BC",
        "4712-06-01 12:00:00+00 BC",
    ]
    db.execute("SELECT set_config('TimeZone', %s, false)", (zone,))
    rows = db.execute(
        "SELECT t::timestamptz::text, extract(epoch FROM t::timestamptz) * 1000000"
        " FROM unnest(%s::text[]) AS t",
        (texts,),
    ).fetchall()
    assert [micros(text) for text, _ in rows] == [exact for _, exact in rows]


def test_micros_of_nothing_of_no_offset_and_of_infinity() -> None:
    assert micros(None) is None
    assert micros("1970-01-01 00:00:01") == 1_000_000
    first, last = micros("4714-11-24 00:00:00+00 BC"), micros("294276-12-31 23:59:59.999999+00")
    least, most = micros("-infinity"), micros("infinity")
    assert first is not None
    assert last is not None
    assert least is not None
    assert most is not None
    assert least < first < last < most
    with pytest.raises(ValueError):
        micros("tomorrow")
