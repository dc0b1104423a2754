"""Loads the SQL statements: one file each in `sql/`, read once."""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

from psycopg import Connection, RawCursor
from psycopg.rows import TupleRow, tuple_row

MICROSECOND = timedelta(microseconds=1)
SQL = Path(__file__).parent / "sql"

_COMMENT = re.compile(rb"(?<=\n)[ \t]*--.*\n")  # not one in the first line
_PART = re.compile(rb"\{(?P<file>\w+) as (?P<name>[^}]*)\}")  # another file's statement, as a CTE
_TOKENS = re.compile(rb"'[^']*'|[()]|\b(?:with|update|insert)\b", re.IGNORECASE)
_PARAMETER = re.compile(rb"%\((?P<name>\w+)\)s")
_INDENT = re.compile(rb"(?<=\n) +| +--.*")


@cache
def statement(name: str) -> bytes:
    """The text of `sql/<name>.sql`, as bytes: psycopg takes those for a trusted statement.

    Of its comment only the first line, so that whoever looks at the server's sessions sees what a
    statement is for. The rest is for readers, and the server would be sent it each time.

    `{complete as completed}` in it is the statement of another file, as parts of this one's WITH.
    """
    text = _COMMENT.sub(b"", (SQL / f"{name}.sql").read_bytes())
    return _PART.sub(lambda part: _as_part(part["file"].decode(), part["name"]), text)


def _as_part(file: str, name: bytes) -> bytes:
    """A statement `with A last` as `A, name as (last)`: PostgreSQL refuses a WITH that changes data
    inside another one's."""
    text = _INDENT.sub(b"", statement(file))
    begin, depth = None, 0
    for token in _TOKENS.finditer(text, text.index(b"\n")):  # not in its title
        depth += {b"(": 1, b")": -1}.get(token[0], 0)
        if depth == 0 and token[0].isalpha():
            if begin is not None:
                last = token.start()
                return b"%b,\n%b as (\n%b)" % (text[begin:last].strip(), name, text[last:])
            begin = token.end()
    raise ValueError(f"{file}.sql is no statement that changes something after a WITH")


class Numbered(NamedTuple):
    """A statement as the server takes it, with $1 for the first of `names`, and so on."""

    text: bytes
    names: tuple[str, ...]


def numbered(name: str) -> Numbered:
    """`sql/<name>.sql` with its parameters numbered: once, since psycopg would rewrite a text of
    more than 4,096 bytes at each call, and look shorter ones up in a cache each time."""
    return _numbered(statement(name))


@cache
def _numbered(text: bytes) -> Numbered:
    names = list(dict.fromkeys(name.decode() for name in _PARAMETER.findall(text)))

    def number(part: re.Match[bytes]) -> bytes:
        return b"$%d" % (names.index(part["name"].decode()) + 1)

    return Numbered(_PARAMETER.sub(number, text).replace(b"%%", b"%"), tuple(names))


def fetch(connection: Connection, name: str, values: Mapping[str, object]) -> list[TupleRow]:
    """Execute `sql/<name>.sql`; its rows are tuples, whatever row factory the caller's connection
    has: an application's is often `dict_row`, which would unpack into column names. In binary form,
    since psycopg cannot read times as text under every `DateStyle` that a session may have."""
    text, names = numbered(name)
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(
            text, [values[parameter] for parameter in names], binary=True
        ).fetchall()


def duration(length: timedelta) -> str:
    """A length of time, for the database. A timedelta arrives there as days and a rest, and in the
    session's time zone a day may have 23 hours: a lease would end before its holder does."""
    return f"{length // MICROSECOND} microseconds"
