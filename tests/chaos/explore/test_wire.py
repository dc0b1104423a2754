"""The wire protocol: messages cut from a stream, and what statements do."""

from __future__ import annotations

import pytest

from chaos.explore import wire


def test_messages_are_cut_wherever_the_stream_was_torn() -> None:
    whole = wire.query("select 1") + wire.FLUSH + wire.query("select 2")
    for torn in range(len(whole)):
        buffer = bytearray(whole[:torn])
        first = wire.take(buffer)
        buffer += whole[torn:]
        assert b"".join(m.raw for m in first + wire.take(buffer)) == whole
        assert not buffer


@pytest.mark.parametrize(
    ("sql", "does"),
    [
        ("begin", "pass"),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "pass"),
        ("start transaction", "pass"),
        ("DEALLOCATE ALL", "pass"),
        ("commit", "commit"),
        ("-- done\n /* really */ END;", "commit"),
        ("rollback", "rollback"),
        ("abort", "rollback"),
        ("rollback to savepoint a", "statement"),
        ("commit prepared 'x'", "statement"),
        ("select 'commit'", "statement"),
        ("", "statement"),
    ],
)
def test_what_a_statement_does_to_its_transaction(sql: str, does: str) -> None:
    assert wire.does(sql) == does


@pytest.mark.parametrize(
    ("sql", "begins"),
    [
        ("begin isolation level read committed;\nselect 1", True),
        ("-- An attempt.\n BEGIN;\nselect 1", True),
        ("start transaction; select 1", True),
        ("begin", False),
        ("begin;\n", False),
        ("select 1; begin", False),
        ("beginning; select 1", False),
    ],
)
def test_a_message_may_begin_with_a_transaction_and_go_on(sql: str, begins: bool) -> None:
    assert wire.begins_first(sql) == begins


def test_a_statement_is_called_by_its_comment_or_by_its_first_words() -> None:
    assert wire.title("-- Claim tasks.\n--\n-- More.\nselect 1") == "Claim tasks."
    assert wire.title("select\n   1") == "select 1"
    assert len(wire.title("select " + "x" * 100)) == 60
