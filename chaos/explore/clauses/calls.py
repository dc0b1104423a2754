"""Calls for programs that tell what each of them answers and changes, and rows to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clauses.setting import sql
from chaos.explore.clauses.told import BEGAN, Call
from chaos.explore.crash_actors import WORK
from chaos.explore.scheduler_actors import KIND, LEASE
from scheduler import (
    Registry,
)
from scheduler.dispatch import next_due
from scheduler.lease import Attempt
from scheduler.statements import statement

AT = BEGAN + timedelta(seconds=7)
LATE = BEGAN + timedelta(days=1)
OTHER = Registry().kind("other", int)(WORK.handler)


def _never(attempt: Attempt, payload: dict[str, int]) -> None:
    raise AssertionError("no handler runs here")


PAPERS = Registry().kind("papers", dict[str, int])(_never)
THIRD = Registry().kind("third", int)(WORK.handler)

SCHEDULES = """
insert into scheduler.schedules (name, application, kind, queue, priority, payload, max_attempts,
    backoff_base, backoff_factor, backoff_cap, backoff_jitter, rule, timezone, missed, on_dead,
    declared, next_at, source, created_at, changed_at)
select name, 'app', kind, 'default', 1, '1', 2, 1, 2, 60, 0, 'every 60s', 'UTC', 'all', on_dead,
    declared, scheduler.now(), source, scheduler.now(), scheduler.now()
from (values
    ('d', 'third', 'stop', true, 'postgres'), ('e', 'job', 'stop', false, 'postgres'),
    ('c', 'job', 'stop', true, 'shop'), ('b', 'job', 'continue', true, 'postgres'),
    ('a', 'job', 'stop', true, 'postgres')
) as new (name, kind, on_dead, declared, source)
"""
# Of sources with caps, with places that are taken.
SOURCES = (
    "insert into scheduler.sources (name, max_outstanding, outstanding)"
    " values ('shop', 9, 3), ('mall', 9, 7);"
    " update scheduler.tasks set source = 'shop', counted = id <> 6 where id in (1, 4, 5, 6);"
    " update scheduler.tasks set source = 'mall', counted = id = 2 where id in (2, 3);"
)
# From here on rows lie in another order than that of their ids.
SHUFFLED = "update scheduler.tasks set queue = queue where id = 1;"


def held(tasks: str) -> str:
    """These run."""
    return (
        "update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,"
        " lease_owner = 'z/' || id, claimed_at = next_run_at,"
        f" lease_expires_at = next_run_at + interval '1 h' where id in ({tasks});"
    )


def over(status: str, tasks: str) -> str:
    """These are over."""
    return (
        f"update scheduler.tasks set status = '{status}', attempts = 2, lease_token = 2,"
        " finished_at = next_run_at, last_error = 'it failed'"
        f" where id in ({tasks});"
    )


def keyed(key: str, until: str, tasks: str) -> str:
    """These have a key."""
    return (
        f"update scheduler.tasks set unique_key = '{key}', unique_until = '{until}'"
        f" where id in ({tasks});"
    )


# Other than in `declared`, in every column.
_OTHERWISE: dict[str, object] = {
    "kinds": "third",
    "queues": "other",
    "priorities": 2,
    "payloads": "2",
    "max_attempts": 3,
    "bases": 2.0,
    "factors": 3.0,
    "caps": 90.0,
    "jitters": 0.1,
    "rules": "every 90s",
    "timezones": "CET",
    "missed": "once",
    "on_dead": "continue",
}


second: Call = partial(clock.advance, by=timedelta(seconds=1))


def declared(
    application: str | None, names: list[str] | None = None, **schedules: dict[str, object]
) -> Call:
    """Declare these schedules, or by these names; each with what it has other than the rest."""
    usual = {
        "kinds": KIND,
        "queues": "default",
        "priorities": 1,
        "payloads": "1",
        "max_attempts": 2,
        "bases": 1.0,
        "factors": 2.0,
        "caps": 60.0,
        "jitters": 0.0,
        "rules": "every 60s",
        "timezones": "UTC",
        "missed": "all",
        "on_dead": "stop",
    }
    rows = [usual | changes for changes in schedules.values()]
    arrays = {column: [row[column] for row in rows] for column in usual}
    values = {"application": application, "names": names or list(schedules), **arrays}
    return lambda connection: connection.execute(statement("declare_schedules"), values).fetchall()


def otherwise(columns: int | None = None) -> dict[str, object]:
    """What another schedule than in `declared` has, in the first so many columns or in all."""
    return dict(list(_OTHERWISE.items())[:columns])


def planned(*schedules: tuple[str, dict[str, object]]) -> Call:
    """Plan an occurrence of each, due now; each with what the planner had read otherwise."""
    usual = {"rules": "every 60s", "timezones": "UTC", "read": BEGAN, "occurrences": BEGAN}
    rows = [usual | changes for _, changes in schedules]
    arrays: dict[str, object] = {column: [row[column] for row in rows] for column in usual}
    names = [name for name, _ in schedules]
    values = arrays | {"names": names, "next": [BEGAN + timedelta(seconds=60)] * len(names)}

    def plan(connection: Connection) -> list[tuple[int, str]]:
        rows = connection.execute(statement("plan_occurrences"), values).fetchall()
        return sorted((task, schedule) for task, schedule, *_ in rows)

    return plan


def asked(**changes: object) -> Call:
    """Enqueue under a key, without the client's own checks."""
    usual: dict[str, object] = {
        "kind": KIND,
        "queue": "default",
        "priority": 1,
        "payload": "1",
        "run_at": None,
        "delay": timedelta(),
        "max_attempts": 2,
        "base": 1.0,
        "factor": 2.0,
        "cap": 60.0,
        "jitter": 0.0,
        "key": "k",
        "until": "started",
        "period": None,
        "source": None,
    }
    values = usual | changes
    return lambda connection: connection.execute(statement("enqueue_unique"), values).fetchall()


def die(task: int) -> Call:
    """A task dies."""
    return sql(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
        f" finished_at = scheduler.now() where id = {task}"
    )


def now_next(*names: str, after: int = 0) -> Call:
    """The schedules' next occurrence is the present moment, or so many seconds after."""
    listed = ", ".join(f"'{name}'" for name in names)
    return sql(
        f"update scheduler.schedules set next_at = scheduler.now() + interval '{after} s'"
        f" where name in ({listed})"
    )


def due(*kinds: str, limited: Sequence[str] = ()) -> Call:
    """In how many seconds the next task of these kinds is due."""
    return lambda connection: next_due(connection, dict.fromkeys(kinds, LEASE), limited)


def found(after: str, limit: int) -> Call:
    """What there is to plan after this schedule, and in how many seconds there will be more."""
    page = {"after_time": BEGAN, "after_name": after, "limit": limit}
    return lambda connection: [
        row[:2] for row in connection.execute(statement("due_schedules"), page).fetchall()
    ]


def several(*payloads: str) -> Call:
    """Enqueue these, without the client's own checks."""
    values: dict[str, object] = {
        "kind": "other",
        "queue": "default",
        "priority": 1,
        "payloads": list(payloads),
        "run_at": None,
        "delay": timedelta(),
        "max_attempts": 2,
        "base": 1.0,
        "factor": 2.0,
        "cap": 60.0,
        "jitter": 0.0,
        "source": None,
    }
    return lambda connection: connection.execute(statement("enqueue"), values).fetchall()
