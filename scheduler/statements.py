"""Loads the SQL statements: one file each in `sql/`, read once."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from psycopg import Connection, Cursor
from psycopg.rows import TupleRow, tuple_row

SQL = Path(__file__).parent / "sql"


@cache
def statement(name: str) -> bytes:
    """The text of `sql/<name>.sql`, as bytes: psycopg takes those for a trusted statement."""
    return (SQL / f"{name}.sql").read_bytes()


def fetch(connection: Connection, name: str, values: Mapping[str, object]) -> list[TupleRow]:
    """Execute `sql/<name>.sql`; its rows are tuples, whatever row factory the caller's connection
    has: an application's is often `dict_row`, which would unpack into column names."""
    with Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(statement(name), values).fetchall()
