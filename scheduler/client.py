"""Puts tasks into the queue, in the caller's transaction.

The connection is the application's own. It may go through a transaction pooler: nothing here needs
or leaves anything in the session, but for psycopg's own prepared statements, which the application
turns off where the pooler does not know them: `psycopg.connect(..., prepare_threshold=None)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeVar

import psycopg
from psycopg import Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from scheduler import checks
from scheduler.errors import (
    AccessError,
    CapReachedError,
    PayloadError,
    ScheduleError,
    SchedulerError,
)
from scheduler.kinds import Kind
from scheduler.priority import Priority
from scheduler.roles import needing
from scheduler.statements import duration, fetch

P = TypeVar("P")

CHUNK = 5_000  # rows a statement: large enough to be fast, small enough to bound memory
FARTHEST = timedelta(days=36_525)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one live task of its kind under this key.

    `until` is how long a task keeps the key: until it is `started` (claimed for the first
    time, a moment before its handler starts or, claimed in advance, somewhat more),
    until it is `finished` (completed, cancelled or dead), or through a period of time, whatever
    becomes of it. Periods are counted from the Unix epoch, in UTC: with an hour, one task each hour
    on the clock. Raises ValueError for a key or period that cannot be meant.
    """

    key: str
    until: Literal["started", "finished"] | timedelta = "finished"

    def __post_init__(self) -> None:
        key = checks.of_type("a unique key", self.key, str)
        if not 1 <= len(key) <= 500 or not checks.storable(key):
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
    source: str | None = None,
) -> int:
    """Enqueue one task and return its id; see `enqueue_many`."""
    [task] = enqueue_many(
        connection,
        kind,
        [payload],
        run_at=run_at,
        delay=delay,
        priority=priority,
        source=source,
    )
    return task


def enqueue_many(
    connection: Connection,
    kind: Kind[P],
    payloads: Iterable[P],
    *,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: Priority = Priority.NORMAL,
    source: str | None = None,
) -> list[int]:
    """Enqueue tasks, all or none, and return their ids in order.

    Inside a transaction of the caller they are part of it: they exist if and when it commits. A
    connection that is not in autocommit mode is always in one, which this call may begin. In
    autocommit mode, outside a transaction, they are committed on return. `run_at` must have a time
    zone; a time in the past means due at once. `delay` counts from the database's clock. `source`
    is whose tasks they are: the login role, and only a member of scheduler_http, a server that
    enqueues for many, may state another.

    Raises PayloadError for a payload that the kind's model or PostgreSQL refuses, ScheduleError for
    a time that cannot be meant, AccessError if the login role may not enqueue or not state that
    source, or the source not this kind, and CapReachedError if it has too many tasks outstanding;
    nothing is enqueued then.
    """
    shared = _shared(kind, run_at, delay, priority, source)
    if isinstance(payloads, str | bytes | Mapping):
        raise TypeError(
            f"payloads must be a list of payloads, not {checks.shown(payloads)} by itself"
        )
    texts = [kind.dump(payload) for payload in payloads]
    ids: list[int] = []
    with (
        refusals(),
        needing(connection, "scheduler_enqueue"),
        _committed(connection, alone=len(texts) <= CHUNK),
    ):
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
    source: str | None = None,
) -> Enqueued:
    """Enqueue one task unless a live task of its kind has the key; otherwise as `enqueue_many`.

    Safe to repeat after an error or a lost reply. While another transaction is enqueuing under the
    same key this one waits for its end: if that rolls back, this creates the task.
    """
    shared = _shared(kind, run_at, delay, priority, source)
    checks.of_type("unique", unique, Unique, ": give Unique(key)")
    period = unique.until if isinstance(unique.until, timedelta) else None
    values = {
        **shared,
        "payload": kind.dump(payload),
        "key": unique.key,
        "until": "period" if period is not None else unique.until,
        "period": period,
    }
    with (
        refusals(),
        needing(connection, "scheduler_enqueue"),
        _committed(connection, alone=True),
    ):
        [(task, created)] = fetch(connection, "enqueue_unique", values)
    return Enqueued(task, created)


def _committed(connection: Connection, alone: bool) -> AbstractContextManager[object]:
    """What is done inside is committed at its end, if that is for this package to do. alone:
    whether it is one statement.

    Only in autocommit mode is a transaction ours to commit. Otherwise the caller's statements are
    in one that the first of them begins, perhaps this; transaction() here would commit it. Within
    the caller's it is a savepoint, so that a refusal leaves theirs as it was. A single statement is
    a transaction by itself: BEGIN and COMMIT would be two more round trips. Not so in a pipeline,
    where it is committed with the next synchronisation, or undone if anything until then fails.
    """
    by_itself = (
        alone
        and connection.info.transaction_status == TransactionStatus.IDLE
        and connection.info.pipeline_status == PipelineStatus.OFF
    )
    return nullcontext() if by_itself or not connection.autocommit else connection.transaction()


def _shared(
    kind: Kind[P],
    run_at: datetime | None,
    delay: timedelta | None,
    priority: Priority,
    source: str | None,
) -> dict[str, object]:
    checks.of_type("kind", kind, Kind, ": give what the registry made, such as registry['name']")
    _check(run_at, delay)
    retry = kind.retry
    return {
        "kind": kind.name,
        "queue": kind.queue,
        "priority": int(Priority(priority)),
        "run_at": run_at,
        "delay": duration(delay or timedelta(0)),
        "max_attempts": retry.max_attempts,
        "base": retry.base.total_seconds(),
        "factor": float(retry.factor),
        "cap": retry.cap.total_seconds(),
        "jitter": float(retry.jitter),
        "source": source,
    }


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what the database's functions refuse into this package's errors."""
    try:
        yield
    except psycopg.DatabaseError as error:
        refused = _REFUSED.get(error.sqlstate or "")
        if refused is None:
            raise
        more = error.diag.message_hint or error.diag.message_detail
        raise refused(f"{error.diag.message_primary}{f': {more}' if more else ''}") from error
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"the connection's client_encoding, {error.encoding}, cannot hold"
            f" {error.object[error.start : error.end]!r}: set it to UTF8"
        ) from error


_REFUSED: dict[str, type[SchedulerError]] = {
    "LP003": AccessError,
    "LP004": CapReachedError,
    "LP005": PayloadError,
    "LP007": SchedulerError,
    "LP009": ScheduleError,
    "22P02": PayloadError,  # JSON for pydantic and not for PostgreSQL, such as NaN
}


def _check(run_at: datetime | None, delay: timedelta | None) -> None:
    if not isinstance(run_at, datetime | None):
        raise TypeError(f"run_at must be a datetime, not {run_at!r}")
    if not isinstance(delay, timedelta | None):
        raise TypeError(f"delay must be a timedelta, not {delay!r}")
    if run_at is not None and delay is not None:
        raise ScheduleError("give either run_at or delay, not both")
    if run_at is not None:
        if run_at.utcoffset() is None:
            raise ScheduleError(f"run_at {run_at} has no time zone: give one, for example UTC")
        if run_at < EARLIEST:
            raise ScheduleError(f"run_at {run_at} is before {EARLIEST:%Y}: leave it out for now")
        if run_at - datetime.now(run_at.tzinfo) > FARTHEST:
            raise ScheduleError(f"run_at {run_at} is more than {FARTHEST.days} days away")
    if delay is not None and not timedelta(0) <= delay <= FARTHEST:
        raise ScheduleError(f"a delay must be from 0 to {FARTHEST.days} days, not {delay}")
