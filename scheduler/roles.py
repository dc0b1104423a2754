"""The database's group roles: creates them, and knows what `sql/roles.sql` grants to each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import psycopg
from psycopg import Connection, Cursor, sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import scalar_row

from scheduler.errors import AccessError, SchemaError
from scheduler.session import CONNECT_TIMEOUT_SECONDS
from scheduler.statements import SQL, statement

OWNER = "the schema's owner"  # in a group's place, for what is granted to none


class Grant(NamedTuple):
    """One right of one role: on `scheduler.<name>`, on one column of it if `column` says so."""

    role: str
    privilege: str
    type: str
    name: str
    column: str = ""


_GRANT = re.compile(
    r"grant (?P<privilege>select|insert|update|delete|usage|execute)"
    r"(?: ?\((?P<columns>[\w, ]+)\))?"
    r" on (?P<type>schema|table|sequence|function) (?:scheduler\.)?(?P<name>\w+)"
    r" to (?P<roles>scheduler_\w+(?:, scheduler_\w+)*)"
)


@cache
def grants() -> frozenset[Grant]:
    """All that `sql/roles.sql` grants. Raises SchemaError if a GRANT in it has another form."""
    text = re.sub(r"--.*", "", statement("roles").decode())
    found: set[Grant] = set()
    for part in text.split(";"):
        words = " ".join(part.split()).replace("( ", "(").replace(" )", ")")
        if not words.startswith("grant "):
            continue
        match = _GRANT.fullmatch(words)
        if match is None:
            raise SchemaError(f"roles.sql has a grant of a form that nothing checks: {words}")
        found.update(
            Grant(role, match["privilege"], match["type"], match["name"], column)
            for role in match["roles"].split(", ")
            for column in (match["columns"] or "").split(", ")
        )
    return frozenset(found)


def roles() -> list[str]:
    """The names of the group roles."""
    return sorted({grant.role for grant in grants()})


def missing_roles(connection: Connection) -> list[str]:
    """Which of the group roles the server does not have."""
    with Cursor(connection, row_factory=scalar_row) as cursor:
        query = "select rolname::text from pg_catalog.pg_roles where rolname = any(%s)"
        have = cursor.execute(query, [roles()]).fetchall()
    return [role for role in roles() if role not in have]


def apply_roles(connection: Connection) -> None:
    """Create the roles that are missing, and make their grants what `sql/roles.sql` says.

    In the caller's transaction. Raises psycopg's InsufficientPrivilege for a role that may not.
    """
    connection.execute(statement("roles"))


def create_roles(dsn: str) -> list[str]:
    """Create the missing group roles and grant each what it needs; the names of the new ones.

    Needs the schema's owner with CREATEROLE, or a superuser. Raises AccessError for others, and
    SchemaError without a schema.
    """
    with psycopg.connect(
        dsn, connect_timeout=CONNECT_TIMEOUT_SECONDS, client_encoding="UTF8"
    ) as connection:
        missing = missing_roles(connection)
        try:
            apply_roles(connection)
        except psycopg.errors.InvalidSchemaName as error:
            raise SchemaError(str(error.diag.message_primary)) from error
        except InsufficientPrivilege as error:
            lacks = (
                f"role {connection.info.user} lacks the privilege CREATEROLE"
                if "create role" in str(error.diag.message_primary)
                else str(error.diag.message_primary)
            )
            raise AccessError(
                f"{lacks}: run this as a superuser, or give an administrator the SQL that"
                " `scheduler roles --print` prints"
            ) from error
    return missing


def printed_roles() -> str:
    """The SQL of `create_roles`, as one transaction for psql."""
    return f"begin;\n\n{(SQL / 'roles.sql').read_text()}\ncommit;\n"


@contextmanager
def needing(connection: Connection, group: str) -> Iterator[None]:
    """Turn the server's refusal of a right that `group` has into an AccessError that says so."""
    try:
        yield
    except InsufficientPrivilege as error:
        raise refused(connection.info.user, group, error) from error


def refused(role: str, group: str, error: psycopg.Error) -> AccessError:
    """What to tell a user whose login role lacks a right that `group` has."""
    if group == OWNER:
        return AccessError(
            f"{error.diag.message_primary}: do this as the role that owns the schema scheduler, not"
            f" as {role}"
        )
    return AccessError(
        f"{error.diag.message_primary}: grant {group} to the role {role}"
        f" (`grant {group} to {sql.Identifier(role).as_string()}`)"
    )
