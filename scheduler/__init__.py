"""A leased distributed task scheduler on PostgreSQL.

Register kinds of task in a `Registry`, put tasks into the queue with `enqueue`, run them with a
`Worker`. `migrate` creates the tables.
"""

from scheduler.client import enqueue, enqueue_many
from scheduler.dead_letter import dead_letters, discard, requeue
from scheduler.errors import (
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
    "Attempt",
    "DatabaseUnreachableError",
    "Kind",
    "LeaseLostError",
    "PayloadError",
    "Registry",
    "RetryPolicy",
    "ScheduleError",
    "SchedulerError",
    "SchemaError",
    "Snooze",
    "UnknownKindError",
    "Worker",
    "cancel",
    "dead_letters",
    "discard",
    "enqueue",
    "enqueue_many",
    "migrate",
    "requeue",
]
