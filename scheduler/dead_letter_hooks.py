"""Hooks that are told of dead letters: who they are, and what each is yet to be told.

A hook is a name in the database. From its registration on, each death of a task writes a row for it
in the task's own transaction; a deliverer (`deliver.py`) takes such rows, and deletes each once it
is delivered. So a hook hears of every death at least once, whoever crashes in between, up to
MOST_ATTEMPTS attempts; what was given up stays, and can be tried again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import Connection

from scheduler import checks
from scheduler.roles import needing
from scheduler.statements import duration, fetch

MOST_ATTEMPTS = 20
FIRST_DELAY = timedelta(seconds=5)  # doubled after each attempt
LONGEST_DELAY = timedelta(hours=1)
HOLD = timedelta(minutes=2)  # for one delivery; then another deliverer may take it
LARGEST_PAYLOAD = 65_536  # bytes of JSON that go with a message

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Death:
    """One death of a task; `payload` is JSON text, and None if the task has been deleted since.

    `key` is the same each time that this death is told, and that of no other.
    """

    id: int
    task: int
    token: int
    kind: str
    payload: str | None
    attempts: int
    last_error: str
    enqueued_at: datetime | None
    died_at: datetime

    @property
    def key(self) -> str:
        """What to tell repetitions apart by."""
        return f"{self.id}-{self.task}-{self.token}"

    def message(self) -> bytes:
        """What a webhook is sent: JSON. A payload of more than LARGEST_PAYLOAD bytes is left
        out."""
        size = None if self.payload is None else len(self.payload.encode())
        fits = size is not None and size <= LARGEST_PAYLOAD
        document = {
            "event": "dead-letter",
            "key": self.key,
            "task": self.task,
            "token": self.token,
            "kind": self.kind,
            "attempts": self.attempts,
            "last_error": self.last_error,
            "enqueued_at": None if self.enqueued_at is None else self.enqueued_at.isoformat(),
            "died_at": self.died_at.isoformat(),
            "payload_bytes": size,
        }
        # As it is stored: to read it would round its numbers.
        payload = self.payload if fits else "null"
        return f'{json.dumps(document)[:-1]}, "payload": {payload}}}'.encode()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that a deliverer has taken: this attempt of it, and what to tell."""

    id: int
    attempt: int
    death: Death


@dataclass(frozen=True, slots=True)
class HookCounts:
    """A hook, what it is yet to be told, and why the latest delivery that failed did."""

    hook: str
    waiting: int
    given_up: int
    last_error: str | None


def register(connection: Connection, hook: str) -> None:
    """Tell a hook of all deaths from now on. Raises ValueError for what cannot be its name."""
    values = {"hook": _checked(hook)}
    with needing(connection, "scheduler_operator"):
        fetch(connection, "register_hook", values)


def forget(connection: Connection, hook: str) -> bool:
    """Tell a hook of nothing any more; whether there was one. What it was not told is forgotten.
    Raises as `register`."""
    values = {"hook": _checked(hook)}
    with needing(connection, "scheduler_operator"):
        [(existed,)] = fetch(connection, "forget_hook", values)
    return bool(existed)


def retry(connection: Connection, hook: str) -> int:
    """Try what was given up again, from now on; how many deliveries that are. Raises as
    `register`."""
    values = {"hook": _checked(hook)}
    with needing(connection, "scheduler_operator"):
        return len(fetch(connection, "retry_deliveries", values))


def hooks(connection: Connection, most: int | None = None) -> list[HookCounts]:
    """All hooks by name. Of each at most so many that wait, and so many given up, are counted; None
    for all."""
    rows = fetch(connection, "hook_counts", {"most": most})
    return [HookCounts(*row) for row in rows]


def take(connection: Connection, hook: str) -> Delivery | None:
    """Take the next delivery that is due, for HOLD; None if there is none."""
    values = {"hook": hook, "most_attempts": MOST_ATTEMPTS, "hold": duration(HOLD)}
    for delivery, attempt, *death in fetch(connection, "take_delivery", values):
        return Delivery(delivery, attempt, Death(*death))
    return None


def delivered(connection: Connection, delivery: Delivery) -> None:
    """Note that a delivery was made."""
    fetch(connection, "delivered", {"delivery": delivery.id})


def failed(connection: Connection, delivery: Delivery, error: str) -> None:
    """Note that a delivery failed; it is due again after a delay that doubles each time."""
    delay = min(FIRST_DELAY * 2 ** (delivery.attempt - 1), LONGEST_DELAY)
    values = {
        "delivery": delivery.id,
        "attempts": delivery.attempt,
        "delay": duration(delay),
        "error": error,
    }
    fetch(connection, "delivery_failed", values)


def _checked(hook: object) -> str:
    if isinstance(hook, str) and _NAME.fullmatch(hook):
        return hook
    raise ValueError(
        "a hook has a name of 1 to 100 letters, digits, '_', '.', ':' or '-', not"
        f" {checks.shown(hook)}"
    )
