"""Caps of sources and kinds restricted to sources: sets them, audited, and lists them and the
audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection
from psycopg.rows import class_row

from scheduler import checks
from scheduler.roles import needing
from scheduler.statements import fetch, statement

LONGEST_SOURCE = 200  # characters
LONGEST_KIND = 100
LONGEST_ACTION = 100
LARGEST_CAP = 2**31 - 1  # tasks


@dataclass(frozen=True, slots=True)
class Source:
    """A source that has, or had, a cap; `outstanding` counts its tasks enqueued under one."""

    name: str
    max_outstanding: int | None
    outstanding: int


@dataclass(frozen=True, slots=True)
class Restriction:
    """A kind that only these sources may enqueue."""

    kind: str
    sources: list[str]


@dataclass(frozen=True, slots=True)
class Audited:
    """Something that was done, or refused: `tasks` is how many tasks or, of the action `refuse`,
    requests; `first_task` and `last_task` are the ids that they lie between."""

    id: int
    at: datetime
    action: str
    source: str
    role: str
    kind: str | None
    schedule: str | None
    tasks: int
    first_task: int | None
    last_task: int | None
    detail: str | None


def limit_source(connection: Connection, source: str, most: int | None) -> None:
    """Let a source have at most so many tasks outstanding from now on; None for any number.

    Raises ValueError for what cannot be meant, and AccessError if the login role may not.
    """
    if most is not None and (type(most) is not int or not 0 <= most <= LARGEST_CAP):
        raise ValueError(f"a cap must be a number from 0 to {LARGEST_CAP}, or None, not {most!r}")
    values = {"source": checks.text("a source", source, LONGEST_SOURCE), "cap": most}
    with needing(connection, "scheduler_operator"):
        fetch(connection, "limit_source", values)


def restrict_kind(connection: Connection, kind: str, sources: Sequence[str]) -> list[str]:
    """Let only these sources enqueue a kind, in place of those so far; none opens it to all.

    Schedules that other sources declared for it are paused: their names. Raises ValueError for what
    cannot be meant, and AccessError if the login role may not.
    """
    values = {
        "kind": checks.text("a kind", kind, LONGEST_KIND),
        "sources": checks.texts("a source", sources, LONGEST_SOURCE),
    }
    with needing(connection, "scheduler_operator"):
        return sorted(name for (name,) in fetch(connection, "restrict_kind", values))


def sources(connection: Connection) -> list[Source]:
    """The sources that have, or had, a cap."""
    with connection.cursor(binary=True, row_factory=class_row(Source)) as cursor:
        return cursor.execute(statement("sources")).fetchall()


def restrictions(connection: Connection) -> list[Restriction]:
    """The kinds that not every source may enqueue."""
    with connection.cursor(binary=True, row_factory=class_row(Restriction)) as cursor:
        return cursor.execute(statement("restrictions")).fetchall()


def audit(connection: Connection, action: str | None = None, limit: int = 50) -> list[Audited]:
    """The newest rows of the audit, or of one action in it, newest first. Raises ValueError for
    what cannot name an action."""
    if action is not None:
        checks.text("an action", action, LONGEST_ACTION)
    values = {"action": action, "limit": limit}
    with connection.cursor(binary=True, row_factory=class_row(Audited)) as cursor:
        return cursor.execute(statement("audit"), values).fetchall()
