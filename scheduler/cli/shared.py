"""What the commands share: their options, the connection, and how they refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psycopg
import typer
from psycopg import Connection, IsolationLevel

from scheduler import checks
from scheduler.checks import LARGEST_ID
from scheduler.migrate import check_schema
from scheduler.roles import needing
from scheduler.session import CONNECT_TIMEOUT_SECONDS, FINDS_DEAD_PEER

Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="SCHEDULER_DATABASE",
        metavar="URL",
        help="The database, for example postgresql://user@host/name.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[int, typer.Argument(min=1, max=LARGEST_ID, metavar="TASK", show_default=False)]
Ids = Annotated[
    list[int], typer.Argument(min=1, max=LARGEST_ID, metavar="TASK...", show_default=False)
]


LOCK_TIMEOUT = "10s"


class UsageMistakeError(Exception):
    """What was asked for cannot be meant."""


class NotSoError(Exception):
    """What was asked for makes sense, but the database has it otherwise."""


def url(database: str | None) -> str:
    """The database's URL or keyword string, as given. Raises UsageMistakeError."""
    if not database:
        raise UsageMistakeError(
            "no database: give --database URL or set SCHEDULER_DATABASE in the environment"
        )
    try:
        return checks.dsn(database)
    except ValueError:
        raise UsageMistakeError(
            "the value of --database or SCHEDULER_DATABASE is neither a connection URL"
            " (postgresql://user@host/database) nor keywords (host=... dbname=...)"
        ) from None


@contextmanager
def connected(database: str | None, group: str = "scheduler_reader") -> Iterator[Connection]:
    """A transaction on a database whose schema is this package's; it commits at the end.

    `group` is the group role that has the rights for what is done in it. Nothing is set or prepared
    for longer than that: behind a pooler, others use the session next.
    """
    with checked(database, group) as connection, _impatient(connection):
        yield connection


@contextmanager
def checked(database: str | None, group: str = "scheduler_reader") -> Iterator[Connection]:
    """A connection in autocommit mode, for what may take as long as its reader likes."""
    with psycopg.connect(
        url(database),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        prepare_threshold=None,
        client_encoding="UTF8",
        **FINDS_DEAD_PEER,
    ) as connection:
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        with needing(connection, group):
            with _impatient(connection):
                check_schema(connection)
            yield connection


@contextmanager
def _impatient(connection: Connection) -> Iterator[None]:
    """A transaction in which what somebody else has locked is waited for, but not for ever."""
    with connection.transaction():
        connection.execute("select set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        yield


@contextmanager
def names_checked() -> Iterator[None]:
    """Turn what the package says of a name or number that cannot be meant into wrong usage."""
    try:
        yield
    except ValueError as error:
        raise UsageMistakeError(str(error)) from None


def refuse_others(asked: Sequence[int], done: Collection[int], why: str) -> None:
    """Raise NotSoError naming what was asked for and not done; what was done stays done."""
    others = [str(task) for task in dict.fromkeys(asked) if task not in done]
    if others:
        raise NotSoError(f"left alone because they are {why}: {', '.join(others)}")


def brief(error: psycopg.Error) -> str:
    """The server's primary message in its first line, or libpq's whole explanation in one line."""
    primary = error.diag.message_primary
    return primary.splitlines()[0] if primary else " ".join(str(error).split())
