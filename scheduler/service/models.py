"""What the service is sent and what it answers, as models: they are also its OpenAPI description.

What comes in is read strictly: a number in quotes is not a number, and an unknown field is refused
rather than ignored, since a misspelt `run_at` would run a task at once.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from fastapi import Path, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from scheduler.client import FARTHEST, Unique

# Of a task, here: up to this, every reader of JSON has each integer exactly (RFC 8259, section 6).
# The database's identity column goes further, and will not get there.
LARGEST_ID = 2**53 - 1
LARGEST_BATCH = 1000
LARGEST_PAGE = 100
NAME = r"^[A-Za-z0-9_.:-]{1,100}$"
WITHOUT_NUL = r"^[^\x00]*$"

Status = Literal["pending", "running", "completed", "dead", "cancelled", "discarded"]
PriorityName = Literal["low", "normal", "high", "urgent"]
KindName = Annotated[str, Field(pattern=NAME)]


def _whole(value: object) -> object:
    """To JSON 7.0 is a whole number, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bounds come first: behind a validator they would not be in the description.
TaskId = Annotated[int, Field(ge=1, le=LARGEST_ID), BeforeValidator(_whole)]
Period = Annotated[int, Field(ge=1, le=int(FARTHEST.total_seconds())), BeforeValidator(_whole)]

TaskPath = Annotated[int, Path(ge=1, le=LARGEST_ID, description="The task's id.")]
KindFilter = Annotated[str | None, Query(pattern=NAME, description="Only this kind.")]
QueueFilter = Annotated[str | None, Query(pattern=NAME, description="Only this queue.")]
SourceFilter = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        pattern=WITHOUT_NUL,
        description="Only this source. A token that has one needs `operate` for others.",
    ),
]
StatusFilter = Annotated[Status | None, Query(description="Only tasks with this status.")]
ScheduleName = Annotated[str, Path(pattern=NAME, description="The schedule's name.")]
AfterName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=100,
        pattern=WITHOUT_NUL,
        description="The `next` of the page before.",
    ),
]
PageSize = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="How many at most.")]

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d.*")


def _time_as_text(value: object) -> object:
    """A bare number would be taken for seconds, or for milliseconds, since 1970."""
    if value is not None and not (isinstance(value, str) and _TIME.fullmatch(value)):
        raise ValueError("a time is written like 2030-01-31T09:00:00+00:00")
    return value


Time = Annotated[AwareDatetime, Field(strict=False)]


class _Sent(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class UniqueKey(_Sent):
    """At most one live task of its kind has the key: until it is `started` or `finished`, or
    through a period of so many seconds on the clock."""

    key: Annotated[str, Field(min_length=1, max_length=500, pattern=WITHOUT_NUL)]
    until: Literal["started", "finished"] | Period = "finished"

    def meant(self) -> Unique:
        """As the package takes it."""
        if isinstance(self.until, int):
            return Unique(self.key, timedelta(seconds=self.until))
        return Unique(self.key, self.until)


class _Enqueue(_Sent):
    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "required": ["run_at", "delay_seconds"],
                "properties": {"run_at": {"type": "string"}, "delay_seconds": {"type": "number"}},
            }
        }
    )

    kind: KindName
    run_at: Annotated[Time | None, BeforeValidator(_time_as_text)] = Field(
        None, description="When it is due, with an offset from UTC. In the past: at once."
    )
    delay_seconds: float | None = Field(
        None,
        ge=0,
        le=FARTHEST.total_seconds(),
        allow_inf_nan=False,
        description="How long until it is due, by the database's clock.",
    )
    priority: PriorityName = "normal"

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.run_at is not None and self.delay_seconds is not None:
            raise ValueError("give either run_at or delay_seconds, not both")
        return self

    @property
    def delay(self) -> timedelta | None:
        """The delay, as the package takes it."""
        return None if self.delay_seconds is None else timedelta(seconds=self.delay_seconds)


class NewTask(_Enqueue):
    """A task to enqueue. With a unique key the request may be sent again at any time."""

    payload: Any = Field(description="What the kind's model accepts.")
    unique: UniqueKey | None = None


class NewTasks(_Enqueue):
    """Tasks of one kind to enqueue, all or none."""

    payloads: list[Any] = Field(min_length=1, max_length=LARGEST_BATCH)


class Letters(_Sent):
    """Which dead letters: these, or the oldest of one kind."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["ids"], "properties": {"ids": {"type": "array"}}},
                {"required": ["kind"], "properties": {"kind": {"type": "string"}}},
            ]
        }
    )

    ids: Annotated[list[TaskId], Field(min_length=1, max_length=LARGEST_BATCH)] | None = None
    kind: KindName | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.kind is None):
            raise ValueError("give either ids or kind")
        return self


class Enqueued(BaseModel):
    """The task that stands, and whether this request created it."""

    id: TaskId
    created: bool


class EnqueuedMany(BaseModel):
    """The new tasks, in the order of their payloads."""

    ids: list[TaskId]


class TaskSummary(BaseModel):
    """A task without its payload; of its last error the first 500 characters."""

    id: TaskId
    kind: str
    queue: str
    priority: Annotated[int, Field(ge=0, le=3)]
    source: str
    unique_key: str | None
    status: Status
    next_run_at: datetime
    attempts: int
    max_attempts: int
    lease_token: int
    lease_owner: str | None
    lease_expires_at: datetime | None
    last_error: str | None
    enqueued_at: datetime
    finished_at: datetime | None


class TaskDetail(TaskSummary):
    """A task as it stands, its payload and last error complete."""

    payload: Any


class TaskPage(BaseModel):
    """Tasks, newest first; `next` is what to give as `before` for those after them."""

    tasks: list[TaskSummary]
    next: int | None


class Run(BaseModel):
    """A finished attempt."""

    attempt: int
    lease_token: int
    lease_owner: str
    claimed_at: datetime
    finished_at: datetime
    outcome: Literal["completed", "failed", "released", "snoozed", "reclaimed", "cancelled"]
    error: str | None


class RunPage(BaseModel):
    """Attempts in order; `next` is what to give as `after` for those that follow."""

    runs: list[Run]
    next: int | None


class Cancelled(BaseModel):
    """A task that this request cancelled, and what it was."""

    id: TaskId
    was: Literal["pending", "running"]


class LetterPage(BaseModel):
    """Dead letters, oldest first; `next` is what to give as `after` for those that follow."""

    dead_letters: list[TaskSummary]
    next: str | None


class Settled(BaseModel):
    """The dead letters that were changed. `left_alone`: asked for by id, and not dead letters, or
    for requeue one whose unique key another task has by now. `more`: there are more of the kind."""

    ids: list[TaskId]
    left_alone: list[TaskId]
    more: bool


class ScheduleDocument(BaseModel):
    """A schedule as it stands. `state` is for people: `active`, or what keeps it from planning.
    `next_at`: from when on its due times are yet to be dealt with; `live_task`: the occurrence that
    waits or runs; `dead_task`: the dead letter that stops it."""

    name: str
    application: str
    source: str
    kind: str
    rule: str
    timezone: str
    missed: Literal["skip", "once", "all"]
    on_dead: Literal["stop", "continue"]
    declared: bool
    paused: bool
    state: str
    next_at: datetime
    last_occurrence: datetime | None
    live_task: TaskId | None
    dead_task: TaskId | None


class SchedulePage(BaseModel):
    """Schedules by name; `next` is what to give as `after` for those that follow."""

    schedules: list[ScheduleDocument]
    next: str | None


class MinuteDocument(BaseModel):
    """What attempts that ended in a minute came to: `other` were released, snoozed or cancelled.
    `wait_seconds` is the median time from due to claimed of those that completed,
    `longest_wait_seconds` the longest, both of a hundred at most; null if none did."""

    at: datetime
    completed: int
    failed: int
    reclaimed: int
    other: int
    wait_seconds: float | None
    longest_wait_seconds: float | None


class ThroughputDocument(BaseModel):
    """The last sixty minutes, oldest first, the last one still under way; some seconds old."""

    age_seconds: float
    minutes: list[MinuteDocument]


class KindStatus(BaseModel):
    """The live tasks of a kind; `due` are those of the pending whose time has come, `expired` those
    of the running whose lease is over and not taken back yet. How many are pending, due or dead is
    estimated where there are a great many."""

    kind: str
    pending: int
    pending_estimated: bool
    due: int
    due_estimated: bool
    running: int
    expired: int
    dead: int
    dead_estimated: bool
    oldest_due_seconds: float | None


class StatusDocument(BaseModel):
    """The queue's numbers, some seconds old at most. Finished tasks are not counted."""

    schema_version: int
    clock: str
    age_seconds: float
    oldest_due_seconds: float | None
    kinds: list[KindStatus]


class TokenDocument(BaseModel):
    """What the token that asked may do; `source` null means that it sees all, `kinds` null any."""

    name: str
    source: str | None
    scopes: list[Literal["enqueue", "read", "cancel", "operate", "metrics"]]
    kinds: list[str] | None


class Health(BaseModel):
    """That all is well; anything else is a problem."""

    status: Literal["ok"] = "ok"
