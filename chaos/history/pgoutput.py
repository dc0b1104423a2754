"""Decodes PostgreSQL's pgoutput messages, protocol version 1: bytes in, NamedTuples out, no I/O.

Source: PostgreSQL's documentation, chapter "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

# Microseconds from the Unix epoch to PostgreSQL's own, 2000-01-01.
_EPOCH = 946_684_800_000_000

# Every struct begins with the type byte, which `decode` has looked at already.
_BEGIN = Struct("!xQqI")
_COMMIT = Struct("!xxQQq")
_ROW = Struct("!xI")
_TRUNCATE = Struct("!xIx")
_INT16 = Struct("!H")
_INT32 = Struct("!I")
_COLUMN_TAIL = 8  # a column's type and type modifier, which nobody here reads

_NULL, _UNCHANGED, _TEXT = b"nut"
_IGNORED = frozenset(b"YOM")  # Type, Origin, Message: nothing about rows


class ProtocolError(ValueError):
    """Bytes that are not a pgoutput message of protocol version 1."""


class Unchanged(Enum):
    """Stands for an out-of-line (TOAST) value that an update left alone and so did not send."""

    TOAST = "unchanged TOAST value"


UNCHANGED: Final = Unchanged.TOAST

Values = tuple[str | Unchanged | None, ...]


class Begin(NamedTuple):
    """A transaction's first message. `at` is in microseconds since the Unix epoch."""

    commit_lsn: int
    at: int
    xid: int


class Commit(NamedTuple):
    """A transaction's last message: where its commit record starts, and where it ends."""

    commit_lsn: int
    end_lsn: int
    at: int


class Relation(NamedTuple):
    """Names a relation and its published columns; sent before the relation's first row."""

    oid: int
    schema: str
    table: str
    columns: tuple[str, ...]


class Insert(NamedTuple):
    """A new row."""

    relation: int
    new: Values


class Update(NamedTuple):
    """A changed row. `old` is there only if the replica identity changed, or is FULL."""

    relation: int
    old: Values | None
    new: Values


class Delete(NamedTuple):
    """A deleted row: columns outside the replica identity are None, unless the identity is FULL."""

    relation: int
    old: Values


class Truncate(NamedTuple):
    """Emptied relations."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Message | None:
    """Decode one message; None for the kinds that say nothing about rows (Type, Origin, Message).

    Raises ProtocolError for anything that is not a complete message of a known kind.
    """
    if not data:
        raise ProtocolError("an empty message")
    if data[0] in _IGNORED:
        return None
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise ProtocolError(f"unknown message type {data[:1]!r}")
    try:
        message, end = decoder(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"malformed {data[:1]!r} message: {error}") from error
    # Python's slices past the end are silently short: this is what notices a cut message.
    if end != len(data):
        raise ProtocolError(f"a {data[:1]!r} message of {len(data)} bytes should have {end}")
    return message


def _begin(data: bytes) -> tuple[Message, int]:
    lsn, at, xid = _BEGIN.unpack_from(data)
    return Begin(lsn, at + _EPOCH, xid), _BEGIN.size


def _commit(data: bytes) -> tuple[Message, int]:
    lsn, end_lsn, at = _COMMIT.unpack_from(data)
    return Commit(lsn, end_lsn, at + _EPOCH), _COMMIT.size


def _relation(data: bytes) -> tuple[Message, int]:
    (oid,) = _ROW.unpack_from(data)
    schema, at = _cstring(data, _ROW.size)
    table, at = _cstring(data, at)
    at += 1  # the replica identity setting
    (count,) = _INT16.unpack_from(data, at)
    at += 2
    columns = []
    for _ in range(count):
        column, at = _cstring(data, at + 1)  # after the flags
        columns.append(column)
        at += _COLUMN_TAIL
    return Relation(oid, schema, table, tuple(columns)), at


def _insert(data: bytes) -> tuple[Message, int]:
    (relation,) = _ROW.unpack_from(data)
    new, at = _values(data, _ROW.size, b"N")
    return Insert(relation, new), at


def _update(data: bytes) -> tuple[Message, int]:
    (relation,) = _ROW.unpack_from(data)
    at = _ROW.size
    old = None
    if data[at] in b"KO":
        old, at = _values(data, at, b"KO")
    new, at = _values(data, at, b"N")
    return Update(relation, old, new), at


def _delete(data: bytes) -> tuple[Message, int]:
    (relation,) = _ROW.unpack_from(data)
    old, at = _values(data, _ROW.size, b"KO")
    return Delete(relation, old), at


def _truncate(data: bytes) -> tuple[Message, int]:
    (count,) = _TRUNCATE.unpack_from(data)
    at = _TRUNCATE.size
    oids = Struct(f"!{count}I")
    return Truncate(oids.unpack_from(data, at)), at + oids.size


def _values(data: bytes, at: int, kinds: bytes) -> tuple[Values, int]:
    if data[at] not in kinds:
        raise ValueError(f"tuple of kind {data[at : at + 1]!r} at byte {at}")
    (count,) = _INT16.unpack_from(data, at + 1)
    at += 3
    values: list[str | Unchanged | None] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            (length,) = _INT32.unpack_from(data, at)
            at += 4
            # A database of encoding SQL_ASCII holds any bytes: keep them rather than stop there.
            values.append(data[at : at + length].decode("utf-8", "surrogateescape"))
            at += length
        elif kind == _NULL:
            values.append(None)
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
        else:
            raise ValueError(f"column value of kind {chr(kind)!r} at byte {at - 1}")
    return tuple(values), at


def _cstring(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode("utf-8", "surrogateescape"), end + 1


_DECODERS: dict[int, Callable[[bytes], tuple[Message, int]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
}
