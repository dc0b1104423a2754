"""Leases: what a worker may still believe, renewal, and the reclaim of what has expired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from psycopg import Connection

from scheduler.errors import LeaseLostError, SecretError
from scheduler.priority import CREDIT, Priority
from scheduler.statements import duration, fetch


class Lease(NamedTuple):
    """The identity of one claim of one task. All three fence every later write.

    `owner` is the worker's name and a nonce of the claim call. A token alone would do on one
    database; after a failover that lost commits the same token can be issued twice.
    """

    task: int
    token: int
    owner: str


class Attempt:
    """One run of one task, as its handler sees it.

    `number` counts the task's attempts from 1, up to `max_attempts`; `due` is when it was to run,
    `late` how many seconds after that it was claimed, by the database's clock.
    `schedule` and `occurrence` name the run of a recurring task, and are None for others: each
    attempt of one occurrence has the same, so together they are a key for what must happen once.
    Give `task`, `token` and `owner` to systems outside the database that can fence by them.
    """

    __slots__ = (
        "_believed_until",
        "_lost",
        "_secret",
        "due",
        "kind",
        "late",
        "lease",
        "lease_length",
        "max_attempts",
        "number",
        "occurrence",
        "payload",
        "priority",
        "schedule",
    )

    def __init__(
        self,
        lease: Lease,
        kind: str,
        payload: str,
        number: int,
        max_attempts: int,
        due: datetime,
        lease_length: timedelta,
        believed_until: float,
        schedule: str | None = None,
        occurrence: datetime | None = None,
        late: float = 0.0,
        priority: int = Priority.NORMAL,
    ) -> None:
        self.lease = lease
        self.kind = kind
        self.payload = payload
        self.number = number
        self.max_attempts = max_attempts
        self.due = due
        self.lease_length = lease_length
        self.schedule = schedule
        self.occurrence = occurrence
        self.late = late
        self.priority = priority
        self._believed_until = believed_until
        self._lost = False
        self._secret: Callable[[str], str] | None = None

    def __repr__(self) -> str:
        return (
            f"<Attempt {self.number}/{self.max_attempts} of task {self.task} ({self.kind}),"
            f" token {self.token}, owner {self.owner}>"
        )

    @property
    def task(self) -> int:
        """The task's id."""
        return self.lease.task

    @property
    def token(self) -> int:
        """The fencing token of this attempt; a later attempt of the task has a larger one."""
        return self.lease.token

    @property
    def owner(self) -> str:
        """Who holds the lease: the worker's name and the nonce of its claim."""
        return self.lease.owner

    @property
    def lost(self) -> bool:
        """Whether the lease is gone, so that nothing this attempt still does can count."""
        return self._lost

    def raise_if_lost(self) -> None:
        """Raise LeaseLostError if the lease is gone. For long handlers to call now and then."""
        if self.lost:
            raise LeaseLostError(f"task {self.task} is no longer held under token {self.token}")

    def secret(self, name: str) -> str:
        """The value of a secret that the kind declares with `secrets=`, read at this moment.

        Raises SecretError, which names the reference and why it cannot be had. The value is kept
        out of the task's last error, the run log and the worker's logs.
        """
        if self._secret is None:
            raise SecretError(f"the secret {name!r} can be had only while a worker runs {self!r}")
        return self._secret(name)

    def give_secrets(self, secret: Callable[[str], str]) -> None:
        """Let `secret` answer for the kind's secrets; for whoever runs the handler."""
        self._secret = secret

    # The worker's own book-keeping. Times are readings of its monotonic clock, taken *before* the
    # statement that set or moved the lease was sent: the database's expiry is always later.

    @property
    def believed_until(self) -> float:
        """Until when, on the worker's monotonic clock, it may act as the holder."""
        return self._believed_until

    def renewed(self, sent: float) -> None:
        """Note that a renewal sent at `sent` was granted."""
        self._believed_until = sent + self.lease_length.total_seconds()

    def lose(self) -> bool:
        """Mark the lease as gone; whether this call was the first to do so."""
        first, self._lost = not self._lost, True
        return first


def rank(attempt: Attempt) -> datetime:
    """By which a claim chooses among tasks that are due: the earlier, the sooner it is to run."""
    return attempt.due - int(attempt.priority) * CREDIT


class Reclaimed(NamedTuple):
    """A lease that was taken back, and what became of its task."""

    lease: Lease
    kind: str
    status: str
    attempts: int


class Look(NamedTuple):
    """What a second look found: the lease still held, or how its attempt ended (None: no trace)."""

    held: bool
    outcome: str | None


def columns(leases: Sequence[Lease]) -> dict[str, object]:
    """The three arrays that name leases in every batch statement."""
    return {
        "tasks": [lease.task for lease in leases],
        "tokens": [lease.token for lease in leases],
        "owners": [lease.owner for lease in leases],
    }


def renew(
    connection: Connection, leases: Sequence[Lease], lengths: Sequence[timedelta]
) -> dict[Lease, datetime]:
    """Renew leases; the new expiry of each that is still held and was not locked at the moment."""
    rows = fetch(
        connection, "renew", {**columns(leases), "leases": [duration(one) for one in lengths]}
    )
    return {Lease(task, token, owner): expires for task, token, owner, expires in rows}


def reclaim(connection: Connection, limit: int) -> list[Reclaimed]:
    """Take back at most `limit` expired leases, whoever held them."""
    rows = fetch(connection, "reclaim", {"limit": limit})
    return [
        Reclaimed(Lease(task, token, owner), kind, status, attempts)
        for task, kind, status, token, owner, attempts in rows
    ]


def second_look(connection: Connection, leases: Sequence[Lease]) -> dict[Lease, Look]:
    """Tell leases that were merely locked from those that are gone, and how the latter ended."""
    rows = fetch(connection, "second_look", columns(leases))
    return {
        Lease(task, token, owner): Look(held, outcome) for task, token, owner, held, outcome in rows
    }
