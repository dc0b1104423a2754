"""The functions of the migrations: which of them a mutant changes, and how a database gets them.

A function can be replaced where it stands, in milliseconds, and put back. So a mutant that changes
nothing but functions needs no database of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from psycopg import Connection

from chaos.mutants import Mutant
from chaos.mutants.mutant import changed
from scheduler.statements import SQL

_DEFINITION = re.compile(
    r"^create function scheduler\.(\w+)\([^;]*?(?:as \$\$.*?\$\$|return [^;]*);$", re.M | re.S
)


def definitions(migration: str) -> dict[str, str]:
    """The functions that a migration creates: the whole statement of each, by name."""
    return {found[1]: found[0] for found in _DEFINITION.finditer(migration)}


@cache
def functions() -> dict[str, tuple[str, str]]:
    """Every function's migration, as in Edit, and its definition."""
    return {
        name: (f"migrations/{file.stem}", definition)
        for file in sorted((SQL / "migrations").glob("*.sql"))
        for name, definition in definitions(file.read_text()).items()
    }


@cache
def callers(function: str) -> frozenset[str]:
    """The statements that call a function, by themselves or through others."""
    called = re.compile(rf"\bscheduler\.{function}\(")
    direct = {file.stem for file in SQL.glob("*.sql") if called.search(file.read_text())}
    through = (
        callers(name)
        for name, (_, definition) in functions().items()
        if name != function and called.search(definition)
    )
    return frozenset(direct.union(*through))


def replaced(mutant: Mutant) -> Mapping[str, str] | None:
    """A mutant's functions, as far as they are other ones; None if it changes the schema too."""
    found: dict[str, str] = {}
    for name, text in changed(mutant).items():
        if "/" in name:
            genuine, other = (SQL / name).read_text(), text.decode()
            if _DEFINITION.sub(r"\1", genuine) != _DEFINITION.sub(r"\1", other):
                return None
            found |= definitions(other).items() - definitions(genuine).items()
    return found


def besides(mutant: Mutant) -> Mutant:
    """What is left of a mutant when its functions stand in the database already."""
    return replace(mutant, edits=tuple(edit for edit in mutant.edits if "/" not in edit.file))


@contextmanager
def standing(connection: Connection, functions_of: Mapping[str, str]) -> Iterator[None]:
    """While inside, the connection's database has these functions in place of the genuine."""
    genuine = functions()
    try:
        _define(connection, functions_of.values())
        yield
    finally:
        _define(connection, [genuine[name][1] for name in functions_of])


def _define(connection: Connection, texts: Collection[str]) -> None:
    for text in texts:
        # A mutant that is no function at all is told where it is run.
        connection.execute(
            text.replace("create function", "create or replace function", 1).encode()
        )
