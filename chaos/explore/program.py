"""What is explored: a few actors over one database, and what must hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from psycopg import AsyncConnection, Connection

from chaos.explore.errors import ExplorerError
from chaos.explore.schedule import ACTOR

Actor = Callable[[Connection], object] | Callable[[AsyncConnection], Coroutine[Any, Any, object]]

_NAMED = re.compile(r"([a-z][a-z0-9-]*): ")


class Ending(NamedTuple):
    """How one actor ended: what it returned, or what it raised, or that it crashed."""

    returned: object = None
    error: BaseException | None = None
    crashed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the actor returned."""
        return self.error is None and not self.crashed


Endings = Mapping[str, Ending]


class Violation(NamedTuple):
    """Something that must not be. `what` is `invariant`, `at-end`, `actor` or `stuck`."""

    what: str
    sentence: str

    @property
    def said(self) -> str:
        """The sentence; of an actor whose own assertion failed, what that assertion says."""
        if self.what == "actor":
            return self.sentence.partition(" raised AssertionError: ")[2] or self.sentence
        return self.sentence

    @property
    def named(self) -> str:
        """Which invariant failed: the name that what is said begins with; empty if none is."""
        found = _NAMED.match(self.said)
        return found[1] if found else ""


@dataclass(frozen=True)
class Program:
    """All that a schedule needs to be run again.

    install: creates tables; run once a database.
    setup: puts the rows back to where every schedule starts; keep it to one cheap statement or two.
    actors: by name; each is given a connection of its own, already open: a coroutine function an
        AsyncConnection, any other a Connection.
    invariant: run after every step that can change what is committed, which is what it sees;
        raises AssertionError.
    at_end: run when every actor has ended; is also told how each did.
    advance: moves the database's clock (for `+60s`); its place is reset by `setup`.
    autocommit: of the actors' connections. install, setup, invariant, at_end and advance are
        always given one connection in autocommit mode, which is not part of the schedule.
    imported: where a generated test finds this program, as `module:expression`; without it the
        test is written with the functions' own names.
    """

    setup: Callable[[Connection], object]
    actors: Mapping[str, Actor]
    invariant: Callable[[Connection], object] | None = None
    at_end: Callable[[Connection, Endings], object] | None = None
    install: Callable[[Connection], object] | None = None
    advance: Callable[[Connection, timedelta], object] | None = None
    autocommit: bool = False
    imported: str = ""

    def __post_init__(self) -> None:
        if not self.actors:
            raise ExplorerError("there is no actor: give at least one function")
        for name in self.actors:
            if not ACTOR.fullmatch(name):
                raise ExplorerError(
                    f"{name!r} cannot name an actor: use lower-case letters, digits and _,"
                    " for example `a`"
                )
