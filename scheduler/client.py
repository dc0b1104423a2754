"""Puts tasks into the queue, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

import psycopg
from psycopg import Connection

from scheduler.errors import (
    AccessError,
    CapReachedError,
    PayloadError,
    ScheduleError,
    SchedulerError,
)
from scheduler.kinds import Kind
from scheduler.statements import fetch

P = TypeVar("P")

CHUNK = 5_000  # rows a statement: large enough to be fast, small enough to bound memory
FARTHEST = timedelta(days=36_525)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Priority(IntEnum):
    """How urgent a task is. A level counts as due one minute earlier than the level below: that is
    how long a due task of any level can be passed over, however many more urgent ones there are."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one live task of its kind under this key.

    `until` is how long a task keeps the key: until it is `started` (claimed for the first time),
    until it is `finished` (completed, cancelled or dead), or through a period of time, whatever
    becomes of it. Periods are counted from the Unix epoch, in UTC: with an hour, one task each hour
    on the clock. Raises ValueError for a key or period that cannot be meant.
    """

    key: str
    until: Literal["started", "finished"] | timedelta = "finished"

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= 500 or "\0" in self.key or not _encodable(self.key):
            raise ValueError("a unique key has 1 to 500 characters, none of them U+0000")
        if isinstance(self.until, timedelta):
            if not timedelta(seconds=1) <= self.until <= FARTHEST:
                raise ValueError(
                    f"a key's period must be from 1 second to {FARTHEST.days} days,"
                    f" not {self.until}"
                )
        elif self.until not in ("started", "finished"):
            raise ValueError(
                f"a key lasts until 'started', 'finished' or a period, not {self.until!r}"
            )


class Enqueued(NamedTuple):
    """The task that stands under a key, and whether this call created it."""

    task: int
    created: bool


def enqueue(
    connection: Connection,
    kind: Kind[P],
    payload: P,
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: Priority = Priority.NORMAL,
) -> int:
    """Enqueue one task and return its id; see `enqueue_many`."""
    return enqueue_many(connection, kind, [payload], run_at=run_at, delay=delay, priority=priority)[
        0
    ]


def enqueue_many(
    connection: Connection,
    kind: Kind[P],
    payloads: Iterable[P],
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: Priority = Priority.NORMAL,
) -> list[int]:
    """Enqueue tasks, all or none, and return their ids in order.

    Inside a transaction of the caller they are part of it: they exist if and when it commits. A
    connection that is not in autocommit mode is always in one, which this call may begin. In
    autocommit mode, outside a transaction, they are committed on return. `run_at` must have a time
    zone; a time in the past means due at once. `delay` counts from the database's clock.

    Raises PayloadError for a payload that the kind's model or PostgreSQL refuses, ScheduleError for
    a time that cannot be meant, AccessError if the login role may not enqueue this kind and
    CapReachedError if it has too many tasks outstanding; nothing is enqueued then.
    """
    shared = _shared(kind, run_at, delay, priority)
    texts = [kind.dump(payload) for payload in payloads]
    ids: list[int] = []
    # Only in autocommit mode is a transaction ours to commit. Otherwise the caller's statements are
    # in one that the first of them begins, perhaps this; transaction() here would commit it.
    with _refusals(), connection.transaction() if connection.autocommit else nullcontext():
        for start in range(0, len(texts), CHUNK):
            values = {**shared, "payloads": texts[start : start + CHUNK]}
            ids += [task for (task,) in fetch(connection, "enqueue", values)]
    return ids


def enqueue_unique(
    connection: Connection,
    kind: Kind[P],
    payload: P,
    unique: Unique,
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: Priority = Priority.NORMAL,
) -> Enqueued:
    """Enqueue one task unless a live task of its kind has the key; otherwise as `enqueue_many`.

    Safe to repeat after an error or a lost reply. While another transaction is enqueuing under the
    same key this one waits for its end: if that rolls back, this creates the task.
    """
    period = unique.until if isinstance(unique.until, timedelta) else None
    values = {
        **_shared(kind, run_at, delay, priority),
        "payload": kind.dump(payload),
        "key": unique.key,
        "until": "period" if period is not None else unique.until,
        "period": period,
    }
    with _refusals():
        [(task, created)] = fetch(connection, "enqueue_unique", values)
    return Enqueued(task, created)


def _shared(
    kind: Kind[P], run_at: datetime | None, delay: timedelta | None, priority: Priority
) -> dict[str, object]:
    _check(run_at, delay)
    retry = kind.retry
    return {
        "kind": kind.name,
        "queue": kind.queue,
        "priority": int(Priority(priority)),
        "run_at": run_at,
        "delay": delay or timedelta(0),
        "max_attempts": retry.max_attempts,
        "base": retry.base.total_seconds(),
        "factor": float(retry.factor),
        "cap": retry.cap.total_seconds(),
        "jitter": float(retry.jitter),
    }


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what the database's functions refuse into this package's errors."""
    try:
        yield
    except psycopg.DatabaseError as error:
        refused = _REFUSED.get(error.sqlstate or "")
        if refused is None:
            raise
        hint = f": {error.diag.message_hint}" if error.diag.message_hint else ""
        raise refused(f"{error.diag.message_primary}{hint}") from error


_REFUSED: dict[str, type[SchedulerError]] = {
    "LP003": AccessError,
    "LP004": CapReachedError,
    "LP005": PayloadError,
    "LP007": SchedulerError,
}


def _encodable(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


def _check(run_at: datetime | None, delay: timedelta | None) -> None:
    if not isinstance(run_at, datetime | None):
        raise TypeError(f"run_at must be a datetime, not {run_at!r}")
    if not isinstance(delay, timedelta | None):
        raise TypeError(f"delay must be a timedelta, not {delay!r}")
    if run_at is not None and delay is not None:
        raise ScheduleError("give either run_at or delay, not both")
    if run_at is not None:
        if run_at.tzinfo is None:
            raise ScheduleError(f"run_at {run_at} has no time zone: give one, for example UTC")
        if run_at < EARLIEST:
            raise ScheduleError(f"run_at {run_at} is before {EARLIEST:%Y}: leave it out for now")
        if run_at - datetime.now(run_at.tzinfo) > FARTHEST:
            raise ScheduleError(f"run_at {run_at} is more than {FARTHEST.days} days away")
    if delay is not None and not timedelta(0) <= delay <= FARTHEST:
        raise ScheduleError(f"a delay must be from 0 to {FARTHEST.days} days, not {delay}")
