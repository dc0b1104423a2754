"""A program of two or three actors that never wait for each other, and its pieces."""

from __future__ import annotations

from dataclasses import replace

from psycopg import Connection

from chaos.explore.program import Program


def install(connection: Connection) -> None:
    """One number."""
    connection.execute("create table number (n integer not null)")


def setup(connection: Connection) -> None:
    """It is 0."""
    connection.execute("delete from number; insert into number values (0)")


def look(connection: Connection) -> None:
    """One statement, one commit."""
    connection.execute("select n from number")
    connection.commit()


def look_twice(connection: Connection) -> None:
    """Two statements, one commit."""
    connection.execute("select n from number")
    look(connection)


def put(connection: Connection) -> None:
    """Set it to 1."""
    connection.execute("update number set n = 1")
    connection.commit()


def fine(connection: Connection) -> None:
    """Nothing is ever wrong."""


def stays_zero(connection: Connection) -> None:
    """Something is wrong as soon as anybody commits a number."""
    row = connection.execute("select n from number").fetchone()
    assert row == (0,), "the number is not 0"


TWO = Program(setup, {"a": look_twice, "b": look_twice}, fine, install=install)
THREE = replace(TWO, actors={"a": look, "b": look, "c": look})
