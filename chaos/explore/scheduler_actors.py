"""The scheduler's own code as actors: what workers, reapers and operators do, unmodified.

Each is a plain function to put into a `Program`, with `functools.partial` for its arguments. Owners
are fixed names instead of nonces, so that a schedule means the same every time; one actor makes
at most one claim under each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg import Connection

from scheduler import slots
from scheduler.dispatch import claim, complete_and_claim, release_claims
from scheduler.finish import begin_attempt, complete, fail, release, snooze
from scheduler.lease import Attempt, Lease, reclaim, renew
from scheduler.tasks import cancel

KIND = "job"
LEASE = timedelta(seconds=30)


def complete_and_commit(connection: Connection, lease: Lease) -> None:
    """By the name that the worker's slots know it by, where a planted bug may stand."""
    vars(slots)["complete_and_commit"](connection, lease)


def claimer(connection: Connection, owner: str, limit: int = 1) -> list[int]:
    """Claim; returns the task ids."""
    return [attempt.task for attempt in _claim(connection, owner, limit)]


def completer(connection: Connection, owner: str, limit: int = 1) -> set[int]:
    """Claim, then complete."""
    leases = _leases(connection, owner, limit)
    return complete(connection, leases) if leases else set()


def one_after_another(connection: Connection, owner: str) -> set[int]:
    """Claim, complete it and claim the next with one commit, then complete that."""
    leases = _leases(connection, f"{owner}/1")
    if not leases:
        return set()
    done, attempts = complete_and_claim(
        connection, leases, f"{owner}/2", {KIND: LEASE}, 1, sent=0.0
    )
    if attempts:
        done |= complete(connection, [attempt.lease for attempt in attempts])
    return done


def renewer(connection: Connection, owner: str) -> set[int]:
    """Claim, renew, then complete."""
    leases = _leases(connection, owner)
    if not leases:
        return set()
    renew(connection, leases, [LEASE] * len(leases))
    return complete(connection, leases)


def failer(connection: Connection, owner: str) -> dict[int, str]:
    """Claim, then fail."""
    leases = _leases(connection, owner)
    return fail(connection, leases, ["it failed"] * len(leases)) if leases else {}


def releaser(connection: Connection, owner: str) -> set[int]:
    """Claim, then give back."""
    leases = _leases(connection, owner)
    return release(connection, leases) if leases else set()


def snoozer(connection: Connection, owner: str) -> set[int]:
    """Claim, then put off."""
    leases = _leases(connection, owner)
    return snooze(connection, leases, [timedelta(seconds=5)] * len(leases)) if leases else set()


def transactional(connection: Connection, owner: str) -> None:
    """Claim, then complete in the transaction of the effect, as a transactional handler does."""
    for lease in _leases(connection, owner):
        begin_attempt(connection, lease, LEASE)
        connection.execute(
            "insert into explorer_effects (task, token) values (%s, %s)",
            [lease.task, lease.token],
        )
        complete_and_commit(connection, lease)


def forgetter(connection: Connection, owner: str) -> list[int]:
    """Claim, then give back by owner, as a worker does whose claim's reply was lost."""
    _claim(connection, owner, 1)
    return release_claims(connection, [owner])


def reclaimer(connection: Connection, limit: int = 10) -> int:
    """Take back what has expired; returns how many."""
    return len(reclaim(connection, limit))


def rescuer(connection: Connection, owner: str) -> set[int]:
    """Take back what has expired, claim it, complete it: the zombie's successor."""
    reclaim(connection, 10)
    return completer(connection, owner)


def canceller(connection: Connection, tasks: Sequence[int] = (1,)) -> dict[int, str]:
    """Cancel, as an operator does."""
    return cancel(connection, tasks)


def four_statements(connection: Connection, owner: str) -> set[int]:
    """Claim, renew, complete, reclaim: what the speed is measured with."""
    leases = _leases(connection, owner)
    renew(connection, leases, [LEASE] * len(leases))
    done = complete(connection, leases)
    reclaim(connection, 10)
    return done


def _claim(connection: Connection, owner: str, limit: int) -> list[Attempt]:
    # The monotonic clock only bounds what a worker believes; no statement depends on it.
    return claim(connection, owner, {KIND: LEASE}, limit, sent=0.0)


def _leases(connection: Connection, owner: str, limit: int = 1) -> list[Lease]:
    return [attempt.lease for attempt in _claim(connection, owner, limit)]
