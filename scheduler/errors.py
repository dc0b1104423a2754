"""The errors the scheduler raises on purpose. Each message names the thing and the way out."""


class SchedulerError(Exception):
    """Base of all errors below: catch this one to catch them all."""


class SchemaError(SchedulerError):
    """The database's schema is missing, or is newer than this version of the package."""


class UnknownKindError(SchedulerError):
    """A task of a kind that the registry does not have."""


class PayloadError(SchedulerError):
    """A payload that its kind's model refuses, or that PostgreSQL cannot store."""


class ScheduleError(SchedulerError):
    """A due time, delay or schedule that cannot be meant."""


class AccessError(SchedulerError):
    """A role without the grant, or a source that may not enqueue this kind or state another."""


class SecretError(SchedulerError):
    """A secret that a kind refers to cannot be had, or that it does not declare."""


class CapReachedError(SchedulerError):
    """The source has as many tasks outstanding as it may."""


class SessionError(SchedulerError):
    """The database gives out sessions that a worker cannot use, as behind an unannounced pooler."""


class LeaseLostError(SchedulerError):
    """This attempt no longer holds its task: stop, whatever it still does will be refused."""


class DatabaseUnreachableError(SchedulerError):
    """The database stayed away for longer than the worker was told to wait."""
