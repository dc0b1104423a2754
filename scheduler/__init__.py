"""A leased distributed task scheduler on PostgreSQL.

Register kinds of task in a `Registry`, put tasks into the queue with `enqueue`, run them with a
`Worker`. `migrate` creates the tables.
"""

from scheduler.client import Enqueued, Unique, enqueue, enqueue_many, enqueue_unique
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
    SecretError,
    SessionError,
    UnknownKindError,
)
from scheduler.kinds import Kind, Registry, Snooze
from scheduler.lease import Attempt
from scheduler.migrate import migrate
from scheduler.priority import Priority
from scheduler.recurring import Cron, Every, Schedule
from scheduler.retry import RetryPolicy
from scheduler.schedules import (
    declare_schedules,
    list_schedules,
    pause_schedules,
    resume_schedules,
    run_schedule,
)
from scheduler.tasks import cancel
from scheduler.worker import Worker

__all__ = [
    "AccessError",
    "Attempt",
    "CapReachedError",
    "Cron",
    "DatabaseUnreachableError",
    "Enqueued",
    "Every",
    "Kind",
    "LeaseLostError",
    "PayloadError",
    "Priority",
    "Registry",
    "RetryPolicy",
    "Schedule",
    "ScheduleError",
    "SchedulerError",
    "SchemaError",
    "SecretError",
    "SessionError",
    "Snooze",
    "Unique",
    "UnknownKindError",
    "Worker",
    "cancel",
    "dead_letters",
    "declare_schedules",
    "discard",
    "enqueue",
    "enqueue_many",
    "enqueue_unique",
    "list_schedules",
    "migrate",
    "pause_schedules",
    "requeue",
    "resume_schedules",
    "run_schedule",
]
