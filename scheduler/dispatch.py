"""Claims due tasks, also along with completions; gives back claims that reached no handler."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta

from psycopg import Connection
from psycopg.rows import TupleRow

from scheduler.events import event
from scheduler.floors import Floor
from scheduler.kinds import SHORTEST_LEASE
from scheduler.lease import Attempt, Lease, columns
from scheduler.statements import duration, fetch

log = logging.getLogger("scheduler")


def new_owner(worker: str) -> str:
    """An owner for one claim call: the worker's name and a nonce that nobody else has."""
    return f"{worker}/{secrets.token_hex(6)}"


def claim(
    connection: Connection,
    owner: str,
    kinds: Mapping[str, timedelta],
    limit: int,
    sent: float,
    limited: Sequence[str] = (),
    floors: Sequence[Floor] = (),
) -> list[Attempt]:
    """Claim at most `limit` due tasks of `kinds` (name to lease length) for `owner`, none of them
    below these floors: whoever passes any must look for what lies there (`floors`).

    `sent` is the worker's monotonic clock read before this call: its belief counts from there.
    `limited` names the kinds with a limit on their leases; without it none of those is claimed.
    """
    values = _wanted(owner, kinds, limit, floors)
    if limited:
        idle = int(max(SHORTEST_LEASE, min(kinds.values())).total_seconds() * 1000)
        with connection.transaction():
            fetch(connection, "lock_limits", {"kinds": list(limited), "idle": f"{idle}ms"})
            rows = fetch(connection, "claim", values)
    else:
        rows = fetch(connection, "claim", values)
    return [_attempt(row, owner, kinds, sent) for row in rows]


def complete_and_claim(
    connection: Connection,
    leases: Sequence[Lease],
    owner: str,
    kinds: Mapping[str, timedelta],
    limit: int,
    sent: float,
    floors: Sequence[Floor] = (),
) -> tuple[set[int], list[Attempt]]:
    """Do what `finish.complete` and `claim` do, in one statement and so with one commit.

    None of `kinds` may have a limit: see the SQL. Returns the task ids that were completed, and
    what was claimed.
    """
    values = {**columns(leases), **_wanted(owner, kinds, limit, floors)}
    completed, claimed = set[int](), list[Attempt]()
    for row in fetch(connection, "complete_and_claim", values):
        if row[1] is None:  # no token: a completion
            completed.add(row[0])
        else:
            claimed.append(_attempt(row, owner, kinds, sent))
    return completed, claimed


def _wanted(
    owner: str, kinds: Mapping[str, timedelta], limit: int, floors: Sequence[Floor]
) -> dict[str, object]:
    return {
        "owner": owner,
        "kinds": list(kinds),
        "leases": [duration(lease) for lease in kinds.values()],
        "limit": limit,
        "floor_kinds": [floor.kind for floor in floors],
        "floor_priorities": [floor.priority for floor in floors],
        "floor_times": [floor.due for floor in floors],
        "floor_ids": [floor.task for floor in floors],
    }


def _attempt(row: TupleRow, owner: str, kinds: Mapping[str, timedelta], sent: float) -> Attempt:
    task, token, kind, payload, number, most, due, schedule, occurrence, late, priority = row
    return Attempt(
        Lease(task, token, owner),
        kind,
        payload,
        number,
        most,
        due,
        kinds[kind],
        sent + kinds[kind].total_seconds(),
        schedule,
        occurrence,
        late,
        priority,
    )


def log_claim(attempts: Sequence[Attempt]) -> None:
    """Log what was claimed, a line a task; costs nothing unless somebody listens."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    for attempt in attempts:
        event(
            log,
            logging.DEBUG,
            "claimed",
            task=attempt.task,
            kind=attempt.kind,
            attempt=f"{attempt.number}/{attempt.max_attempts}",
            token=attempt.token,
            owner=attempt.owner,
            late=f"{attempt.late:.3f}",
        )


def declare_limits(connection: Connection, limits: Mapping[str, int | None]) -> None:
    """Make the limits of these kinds on concurrent leases what is said here; None means none."""
    fetch(connection, "declare_limits", {"kinds": list(limits), "limits": list(limits.values())})


def next_due(
    connection: Connection, kinds: Mapping[str, timedelta], limited: Sequence[str] = ()
) -> float | None:
    """In how many seconds the earliest waiting task of these kinds is due; None if none waits that
    a `claim` with the same `limited` may have."""
    values = {"kinds": list(kinds), "limited": list(limited)}
    [(seconds,)] = fetch(connection, "next_due", values)
    return float(seconds) if seconds is not None else None


def at_limit(connection: Connection, limited: Sequence[str]) -> list[str]:
    """Which of these kinds have tasks due and as many leases as their limit allows."""
    return [kind for (kind,) in fetch(connection, "at_limit", {"limited": list(limited)})]


def release_claims(connection: Connection, owners: Sequence[str]) -> list[int]:
    """Give back all tasks of claims whose reply never arrived; returns their ids."""
    rows = fetch(connection, "release_claim", {"owners": list(owners)})
    return [task for (task,) in rows]
