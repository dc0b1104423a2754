"""Loads the SQL statements: one file each in `sql/`, read once."""

from functools import cache
from pathlib import Path

SQL = Path(__file__).parent / "sql"


@cache
def statement(name: str) -> bytes:
    """The text of `sql/<name>.sql`, as bytes: psycopg takes those for a trusted statement."""
    return (SQL / f"{name}.sql").read_bytes()
