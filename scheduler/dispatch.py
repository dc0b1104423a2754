"""Claims due tasks, and gives back claims that never reached a handler."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta

from psycopg import Connection

from scheduler.lease import Attempt, Lease
from scheduler.statements import fetch


def new_owner(worker: str) -> str:
    """An owner for one claim call: the worker's name and a nonce that nobody else has."""
    return f"{worker}/{secrets.token_hex(6)}"


def claim(
    connection: Connection,
    owner: str,
    kinds: Mapping[str, timedelta],
    limit: int,
    sent: float,
    queues: Sequence[str] = ("default",),
) -> list[Attempt]:
    """Claim at most `limit` due tasks of `kinds` (name to lease length) in `queues` for `owner`.

    `sent` is the worker's monotonic clock read before this call: its belief counts from there.
    """
    rows = fetch(
        connection,
        "claim",
        {
            "owner": owner,
            "kinds": list(kinds),
            "leases": list(kinds.values()),
            "limit": limit,
            "queues": list(queues),
        },
    )
    return [
        Attempt(
            Lease(task, token, owner),
            kind,
            payload,
            number,
            max_attempts,
            due,
            kinds[kind],
            sent + kinds[kind].total_seconds(),
        )
        for task, token, kind, payload, number, max_attempts, due in rows
    ]


def next_due(
    connection: Connection, kinds: Mapping[str, timedelta], queues: Sequence[str]
) -> float | None:
    """In how many seconds the earliest waiting task of these kinds is due; None if none waits."""
    [(seconds,)] = fetch(connection, "next_due", {"kinds": list(kinds), "queues": list(queues)})
    return float(seconds) if seconds is not None else None


def release_claims(connection: Connection, owners: Sequence[str]) -> list[int]:
    """Give back all tasks of claims whose reply never arrived; returns their ids."""
    rows = fetch(connection, "release_claim", {"owners": list(owners)})
    return [task for (task,) in rows]
