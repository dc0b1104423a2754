"""The decoder, on what a real server sends and on bytes that no server sends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from chaos.history.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    ProtocolError,
    Relation,
    Truncate,
    Update,
    decode,
)

# Too random to compress: PostgreSQL stores it out of line.
LONG = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(1000))


def sent_for(dsn: str, *statements: str) -> list[bytes]:
    """What a slot sends, from its creation on, for statements that each commit on their own."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE items (id bigint PRIMARY KEY, name text, hidden text)")
        db.execute("CREATE PUBLICATION decoded FOR TABLE items (id, name)")
        db.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        # The server may run with synchronous_commit off; a slot shows only what is flushed.
        db.execute("SET synchronous_commit = on")
        for statement in statements:
            db.execute(statement)
        rows = db.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(current_database(), NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'decoded', 'messages', 'true')",
            binary=True,
        ).fetchall()
        db.execute("SELECT pg_drop_replication_slot(current_database())")
    return [data for (data,) in rows]


def decoded(dsn: str, *statements: str) -> list[Message]:
    return [
        message
        for data in sent_for(dsn, *statements)
        if (message := decode(data)) is not None and not isinstance(message, Begin | Commit)
    ]


def test_a_transaction_is_framed_by_its_position_time_and_id(empty_dsn: str) -> None:
    begin, relation, insert, commit = (
        decode(data) for data in sent_for(empty_dsn, "INSERT INTO items VALUES (1, 'one', 'x')")
    )
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert isinstance(relation, Relation)
    assert begin.commit_lsn == commit.commit_lsn < commit.end_lsn
    assert begin.at == commit.at
    age = datetime.now(UTC) - datetime.fromtimestamp(begin.at / 1e6, UTC)
    assert timedelta(0) <= age < timedelta(hours=1)
    assert begin.xid > 0
    assert relation[1:] == ("public", "items", ("id", "name"))
    assert insert == Insert(relation.oid, ("1", "one"))


def test_rows_arrive_as_text_null_or_unchanged(empty_dsn: str) -> None:
    _, *changes = decoded(
        empty_dsn,
        "INSERT INTO items VALUES (1, NULL, 'x')",
        f"UPDATE items SET name = '{LONG}'",
        "UPDATE items SET hidden = 'y'",
        "UPDATE items SET name = 'žluťoučký \U0001f40e'",
        "UPDATE items SET id = 2",
        "DELETE FROM items",
        "TRUNCATE items",
    )
    # After a truncation the relation is described again.
    changes = [change for change in changes if not isinstance(change, Relation)]
    (truncated,) = (change for change in changes if isinstance(change, Truncate))
    (relation,) = truncated.relations
    assert changes == [
        Insert(relation, ("1", None)),
        Update(relation, None, ("1", LONG)),
        Update(relation, None, ("1", UNCHANGED)),
        Update(relation, None, ("1", "žluťoučký \U0001f40e")),
        Update(relation, ("1", None), ("2", "žluťoučký \U0001f40e")),
        Delete(relation, ("2", None)),
        Truncate((relation,)),
    ]


def test_a_full_replica_identity_sends_the_old_row(empty_dsn: str) -> None:
    *_, update, delete = decoded(
        empty_dsn,
        "ALTER PUBLICATION decoded SET TABLE items",  # FULL allows no column list
        "ALTER TABLE items DROP COLUMN hidden, REPLICA IDENTITY FULL",
        "INSERT INTO items VALUES (1, 'one')",
        "UPDATE items SET name = 'uno'",
        "DELETE FROM items",
    )
    assert isinstance(update, Update)
    assert update[1:] == (("1", "one"), ("1", "uno"))
    assert delete == Delete(update.relation, ("1", "uno"))


def test_types_and_messages_are_ignored(empty_dsn: str) -> None:
    sent = sent_for(
        empty_dsn,
        "CREATE TYPE mood AS ENUM ('calm')",
        "ALTER PUBLICATION decoded DROP TABLE items",
        "ALTER TABLE items ADD COLUMN mood mood",
        "ALTER PUBLICATION decoded ADD TABLE items",
        "INSERT INTO items VALUES (1, 'one', 'x', 'calm')",
        "SELECT pg_logical_emit_message(true, 'prefix', 'content')",
    )
    assert {data[:1] for data in sent} == {b"B", b"Y", b"R", b"I", b"M", b"C"}
    assert [data[:1] for data in sent if decode(data) is None] == [b"Y", b"M"]


def test_a_message_cut_anywhere_is_refused(empty_dsn: str) -> None:
    sent = sent_for(
        empty_dsn,
        "INSERT INTO items VALUES (1, 'one', 'x')",
        "UPDATE items SET id = 2",
        "DELETE FROM items",
        "TRUNCATE items",
    )
    assert {data[:1] for data in sent} == {b"B", b"R", b"I", b"U", b"D", b"T", b"C"}
    for data in sent:
        assert decode(data) is not None
        for length in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(data[:length])
        with pytest.raises(ProtocolError):
            decode(data + b"\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"S\0\0\0\1\1", "unknown message type b'S'"),
        (b"I\0\0\0\1X\0\0", "tuple of kind b'X'"),
        (b"I\0\0\0\1N\0\1b\0\0\0\1x", "column value of kind 'b'"),
    ],
)
def test_unknown_kinds_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(data)
