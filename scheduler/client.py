"""Puts tasks into the queue, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from psycopg import Connection

from scheduler.errors import ScheduleError
from scheduler.kinds import Kind
from scheduler.statements import fetch

P = TypeVar("P")

CHUNK = 5_000  # rows a statement: large enough to be fast, small enough to bound memory
FARTHEST = timedelta(days=36_525)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def enqueue(
    connection: Connection,
    kind: Kind[P],
    payload: P,
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
) -> int:
    """Enqueue one task and return its id; see `enqueue_many`."""
    return enqueue_many(connection, kind, [payload], run_at=run_at, delay=delay)[0]


def enqueue_many(
    connection: Connection,
    kind: Kind[P],
    payloads: Iterable[P],
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
) -> list[int]:
    """Enqueue tasks, all or none, and return their ids in order.

    Inside a transaction of the caller they are part of it: they exist if and when it commits. A
    connection that is not in autocommit mode is always in one, which this call may begin. In
    autocommit mode, outside a transaction, they are committed on return. `run_at` must have a time
    zone; a time in the past means due at once. `delay` counts from the database's clock.

    Raises PayloadError for a payload that the kind's model or PostgreSQL refuses and ScheduleError
    for a time that cannot be meant; nothing is enqueued then.
    """
    _check(run_at, delay)
    texts = [kind.dump(payload) for payload in payloads]
    ids: list[int] = []
    # Only in autocommit mode is a transaction ours to commit. Otherwise the caller's statements are
    # in one that the first of them begins, perhaps this; transaction() here would commit it.
    with connection.transaction() if connection.autocommit else nullcontext():
        for start in range(0, len(texts), CHUNK):
            ids += _insert(connection, kind, texts[start : start + CHUNK], run_at, delay)
    return ids


def _insert(
    connection: Connection,
    kind: Kind[P],
    texts: Sequence[str],
    run_at: datetime | None,
    delay: timedelta | None,
) -> list[int]:
    retry, count = kind.retry, len(texts)
    rows = fetch(
        connection,
        "enqueue",
        {
            "kinds": [kind.name] * count,
            "payloads": list(texts),
            "run_ats": [run_at] * count,
            "delays": [delay or timedelta(0)] * count,
            "max_attempts": [retry.max_attempts] * count,
            "bases": [retry.base.total_seconds()] * count,
            "factors": [retry.factor] * count,
            "caps": [retry.cap.total_seconds()] * count,
            "jitters": [retry.jitter] * count,
        },
    )
    return [task for (task,) in rows]


def _check(run_at: datetime | None, delay: timedelta | None) -> None:
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
