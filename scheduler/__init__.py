"""A leased distributed task scheduler on PostgreSQL.

Register kinds of task in a `Registry`, put tasks into the queue with `enqueue`, run them with a
`Worker`. `migrate` creates the tables.
"""

from scheduler.client import Enqueued, Priority, Unique, enqueue, enqueue_many, enqueue_unique
from scheduler.dead_letter import dead_letters, discard, requeue
from scheduler.errors import (
    AccessError,
    CapReachedError,
    DatabaseUnreachableError,
    LeaseLostError,
    PayloadError,
    ScheduleError,
    SchedulerError,
    SchemaError,
    UnknownKindError,
)
from scheduler.kinds import Kind, Registry, Snooze
from scheduler.lease import Attempt
from scheduler.migrate import migrate
from scheduler.retry import RetryPolicy
from scheduler.tasks import cancel
from scheduler.worker import Worker

__all__ = [
    "AccessError",
    "Attempt",
    "CapReachedError",
    "DatabaseUnreachableError",
    "Enqueued",
    "Kind",
    "LeaseLostError",
    "PayloadError",
    "Priority",
    "Registry",
    "RetryPolicy",
    "ScheduleError",
    "SchedulerError",
    "SchemaError",
    "Snooze",
    "Unique",
    "UnknownKindError",
    "Worker",
    "cancel",
    "dead_letters",
    "discard",
    "enqueue",
    "enqueue_many",
    "enqueue_unique",
    "migrate",
    "requeue",
]
