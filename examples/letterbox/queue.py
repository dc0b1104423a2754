"""A queue as many projects have one: a table, and `select ... for update skip locked`.

It knows nothing of `chaos`: it is what runs in production.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

from psycopg import Connection

SCHEMA = """
    create table letters (
        id bigint generated always as identity primary key,
        content jsonb not null,
        status text not null default 'pending',
        due timestamptz not null,
        attempts int not null default 0,
        max_attempts int not null,
        token bigint not null default 0,  -- one more for each claim
        owner text,
        expires timestamptz,
        error text
    );
    create index on letters (due) where status = 'pending';
    create table letters_log (  -- how each attempt ended
        id bigint generated always as identity primary key,
        letter bigint not null,
        token bigint not null,
        owner text not null,
        attempt int not null,
        ended timestamptz not null default clock_timestamp(),
        outcome text not null,
        error text
    );
"""

POST = """
    insert into letters (content, due, max_attempts)
    values (%s, now() + make_interval(secs => %s), %s)
    returning id
"""

CLAIM = """
    with mine as materialized (
        select id from letters
        where status = 'pending' and due <= now()
        order by due, id limit 1
        for update skip locked
    )
    update letters
    set status = 'running', owner = %(owner)s, attempts = attempts + 1, token = token + 1,
        expires = now() + make_interval(secs => %(lease)s)
    from mine where letters.id = mine.id
    returning letters.id, content, token, attempts
"""

COMPLETE = """
    with over as (
        update letters set status = 'completed', owner = null, expires = null
        where id = %(id)s and token = %(token)s and owner = %(owner)s
        returning id, attempts
    )
    insert into letters_log (letter, token, owner, attempt, outcome)
    select id, %(token)s, %(owner)s, attempts, 'completed' from over
"""

FAIL = """
    with over as (
        update letters
        set status = case when attempts < max_attempts then 'pending' else 'dead' end,
            due = now() + interval '0.2 s', owner = null, expires = null, error = %(error)s
        where id = %(id)s and token = %(token)s and owner = %(owner)s
        returning id, attempts
    )
    insert into letters_log (letter, token, owner, attempt, outcome, error)
    select id, %(token)s, %(owner)s, attempts, 'failed', %(error)s from over
"""

RECLAIM = """
    with gone as materialized (
        select id, token, owner, attempts from letters
        where status = 'running' and expires < clock_timestamp()
        for update skip locked
    ), over as (
        update letters
        set status = case when letters.attempts < max_attempts then 'pending' else 'dead' end,
            owner = null, expires = null, error = 'its lease expired'
        from gone where letters.id = gone.id
    )
    insert into letters_log (letter, token, owner, attempt, outcome, error)
    select id, token, owner, attempts, 'reclaimed', 'its lease expired' from gone
"""


class Letter(NamedTuple):
    """A letter that this worker may deliver, until its lease expires."""

    id: int
    content: dict[str, Any]
    token: int
    attempt: int
    owner: str


def claim(connection: Connection, worker: str, lease: float) -> Letter | None:
    """Take one letter for so many seconds, if one is due."""
    owner = f"{worker}/{uuid4().hex[:12]}"
    row = connection.execute(CLAIM, {"owner": owner, "lease": lease}).fetchone()
    if row is None:
        return None
    id, content, token, attempt = row
    return Letter(id, content, token, attempt, owner)


def deliver(
    connection: Connection,
    worker: str,
    lease: float,
    handle: Callable[[Letter], str | None],
    complete: str = COMPLETE,
) -> bool:
    """Claim a letter and handle it; False if none was due. `handle` returns an error, or None."""
    letter = claim(connection, worker, lease)
    if letter is None:
        return False
    error = handle(letter)
    statement = complete if error is None else FAIL
    connection.execute(statement.encode(), {**letter._asdict(), "error": error})
    return True


def reclaim(connection: Connection) -> None:
    """Give back to the queue what workers hold that are gone."""
    connection.execute(RECLAIM)
