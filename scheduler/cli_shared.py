"""What the commands share: their options, the connection, and how they refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psycopg
import typer
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from scheduler.migrate import check_schema
from scheduler.session import CONNECT_TIMEOUT_SECONDS

LARGEST_ID = 2**63 - 1

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
        conninfo_to_dict(database)
    except psycopg.ProgrammingError:
        # libpq's own words quote the value, which may have a password in it.
        raise UsageMistakeError(
            "the value of --database or SCHEDULER_DATABASE is neither a connection URL"
            " (postgresql://user@host/database) nor keywords (host=... dbname=...)"
        ) from None
    return database


@contextmanager
def connected(database: str | None) -> Iterator[Connection]:
    """A connection to a database whose schema is this package's."""
    with psycopg.connect(
        url(database), autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS
    ) as connection:
        # A row that somebody else has locked is waited for, but not for ever.
        connection.execute("select set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
        check_schema(connection)
        yield connection


def refuse_others(asked: Sequence[int], done: Collection[int], why: str) -> None:
    """Raise NotSoError naming what was asked for and not done; what was done stays done."""
    others = [str(task) for task in dict.fromkeys(asked) if task not in done]
    if others:
        raise NotSoError(f"left alone because they are {why}: {', '.join(others)}")


def brief(error: psycopg.Error) -> str:
    """The server's primary message in its first line, or libpq's whole explanation in one line."""
    primary = error.diag.message_primary
    return primary.splitlines()[0] if primary else " ".join(str(error).split())
