"""What the tests of roles and grants share: the group roles, logins that are members, their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from scheduler.roles import roles


@contextmanager
def login(db: Connection, dsn: str, *groups: str) -> Iterator[str]:
    """A login role that is a member of these groups and of nothing else; its connection string."""
    name = f"login_{uuid4().hex}"
    role = sql.Identifier(name)
    db.execute(sql.SQL("create role {} login").format(role))
    try:
        for group in groups:
            db.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), role))
        yield make_conninfo(dsn, user=name)
    finally:
        db.execute(sql.SQL("drop owned by {} cascade").format(role))
        db.execute(sql.SQL("drop role {}").format(role))


@contextmanager
def logged_in(db: Connection, dsn: str, *groups: str) -> Iterator[Connection]:
    """A session of such a login role, in autocommit mode."""
    with login(db, dsn, *groups) as member, psycopg.connect(member, autocommit=True) as session:
        yield session


def drop_roles(db: Connection, dsn: str) -> None:
    """Drop the group roles from the test's server, and what they were granted in its databases."""
    names = db.execute(
        "select rolname::text from pg_roles where rolname = any(%s)", [roles()]
    ).fetchall()
    databases = db.execute("select datname::text from pg_database where datallowconn").fetchall()
    for (database,) in databases:
        with psycopg.connect(make_conninfo(dsn, dbname=database), autocommit=True) as connection:
            for (name,) in names:
                connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
    for (name,) in names:
        db.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
