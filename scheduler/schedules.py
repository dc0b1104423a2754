"""Schedules in the database: declares, plans, lists, pauses, resumes and runs them.

Any worker plans any schedule, since the row says all that planning needs. When the database's clock
goes back, nothing is planned until it has caught up with `next_at`: what was planned is not planned
again. A clock that was far ahead by mistake leaves `next_at` there, and perhaps an occurrence that
is due then: cancel it, then pause and resume the schedule, which goes on from the corrected time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from psycopg import Connection
from psycopg.rows import class_row, scalar_row

from scheduler import checks, recurring
from scheduler.client import Enqueued, refusals
from scheduler.events import event
from scheduler.kinds import Registry
from scheduler.roles import needing
from scheduler.statements import fetch, statement

LONGEST_NAME = 100  # characters

log = logging.getLogger("scheduler")


@dataclass(frozen=True, slots=True)
class Standing:
    """A schedule as it stands.

    source: whose its occurrences are, the login role that declared it.
    next_at: from when on its due times are yet to be dealt with; often the next of them.
    last_occurrence: the latest that was planned.
    live_task: the occurrence that waits or runs; the next is planned when it is over.
    dead_task: the dead occurrence that stops the schedule until it is requeued or discarded.
    """

    name: str
    application: str
    source: str
    kind: str
    rule: str
    timezone: str
    missed: recurring.Missed
    on_dead: recurring.OnDead
    declared: bool
    paused: bool
    next_at: datetime
    last_occurrence: datetime | None
    live_task: int | None
    dead_task: int | None

    @property
    def state(self) -> str:
        """What keeps it from planning, or `active`."""
        if not self.declared:
            return "not declared"
        if self.paused:
            return "paused"
        if self.dead_task is not None:
            return f"stopped by dead letter {self.dead_task}"
        return "active"


def declare_schedules(connection: Connection, registry: Registry) -> dict[str, str]:
    """Make the schedules of the registry's application what the registry says.

    Workers do this when they start. Returns what was changed, by name: `declare`, or `undeclare`
    for what the application no longer has. Raises AccessError or PayloadError for what the login
    role may not enqueue either, ScheduleError for a name that another application declares.
    """
    checks.of_type("registry", registry, Registry)
    declared = list(registry.schedules.values())
    if not declared and not _has_schedules(connection, registry.application):
        return {}
    kinds = [registry[schedule.kind] for schedule in declared]
    values = {
        "application": registry.application,
        "names": [schedule.name for schedule in declared],
        "kinds": [kind.name for kind in kinds],
        "queues": [kind.queue for kind in kinds],
        "priorities": [int(schedule.priority) for schedule in declared],
        "payloads": [schedule.payload for schedule in declared],
        "max_attempts": [kind.retry.max_attempts for kind in kinds],
        "bases": [kind.retry.base.total_seconds() for kind in kinds],
        "factors": [float(kind.retry.factor) for kind in kinds],
        "caps": [kind.retry.cap.total_seconds() for kind in kinds],
        "jitters": [float(kind.retry.jitter) for kind in kinds],
        "rules": [schedule.rule.text for schedule in declared],
        "timezones": [schedule.rule.timezone for schedule in declared],
        "missed": [schedule.missed for schedule in declared],
        "on_dead": [schedule.on_dead for schedule in declared],
    }
    with refusals():
        changes: dict[str, str] = dict(fetch(connection, "declare_schedules", values))
    gone = [name for name, change in changes.items() if change == "undeclare"]
    if gone:
        # Two applications of one name would take each other's schedules away in turn.
        event(
            log,
            logging.WARNING,
            "schedules-undeclared",
            application=registry.application,
            schedules=",".join(gone),
            hint="they plan nothing from now on; if another application declares them, give each"
            " registry a name of its own",
        )
    return changes


def plan_due(connection: Connection, limit: int) -> float | None:
    """Plan occurrences of at most `limit` schedules that are due, whoever else does so.

    Returns in how many seconds there is something to plan again, as far as is known now: 0 if there
    may be more already, None if nothing is going to be due. A schedule whose rule or time zone this
    process cannot read is left to others, and said in the log at each look.
    """
    after_time, after_name = datetime(1, 1, 1, tzinfo=UTC), ""
    while True:
        page = {"after_time": after_time, "after_name": after_name, "limit": limit}
        rows = fetch(connection, "due_schedules", page)
        seconds: float | None = rows[0][0]
        due = [row[1:] for row in rows if row[1] is not None]
        plans = []
        for name, next_at, text, timezone, missed, now in due:
            try:
                rule = recurring.parse(text, timezone)
            except ValueError as error:
                event(log, logging.ERROR, "schedule-unreadable", schedule=name, error=error)
                continue
            occurrence, following = recurring.plan(rule, missed, next_at, now)
            plans.append((name, text, timezone, next_at, occurrence, following))
            if following > now:
                wait = (following - now).total_seconds()
                seconds = wait if seconds is None else min(seconds, wait)
        if plans:
            _plan(connection, plans)
        if len(due) < limit:
            return seconds
        if plans:
            return 0.0
        # Not one of a whole page could be read: they must not hide those behind them.
        after_name, after_time = due[-1][:2]


def list_schedules(connection: Connection) -> list[Standing]:
    """All schedules by name, of every application, also those no longer declared."""
    return page(connection)


def page(
    connection: Connection,
    *,
    name: str | None = None,
    source: str | None = None,
    kinds: Sequence[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[Standing]:
    """Schedules by name: the one of this name, of this source, of these kinds, after a name."""
    values = {"name": name, "source": source, "kinds": kinds, "after": after, "limit": limit}
    with connection.cursor(binary=True, row_factory=class_row(Standing)) as cursor:
        return cursor.execute(statement("schedules"), values).fetchall()


def pause_schedules(
    connection: Connection, names: Sequence[str], *, source: str | None = None
) -> list[str]:
    """Let schedules plan nothing until they are resumed; the names of those that exist.

    What is planned already still runs. A pause outlasts a new declaration. `source` is for whom the
    audit says it was done: the login role, unless that serves many (see `enqueue_many`). Raises
    ValueError for what cannot name a schedule, and AccessError if the login role may not.
    """
    return _names(connection, "pause_schedules", names, source)


def resume_schedules(
    connection: Connection, names: Sequence[str], *, source: str | None = None
) -> list[str]:
    """Let paused schedules go on from now; the names of those that exist.

    What was due during the pause is not caught up. Otherwise as `pause_schedules`, and AccessError
    is raised too if the source that declared one may not enqueue its kind any more.
    """
    return _names(connection, "resume_schedules", names, source)


def run_schedule(
    connection: Connection, name: str, *, source: str | None = None
) -> Enqueued | None:
    """Run a schedule's task now, besides its due times, also while it is paused.

    Returns the task, and whether this call created it: should an occurrence wait or run already it
    is that one, so the call is safe to repeat. None if there is no such schedule. `source` is who
    asks: the login role, unless that serves many. Raises ValueError for what cannot name a
    schedule, ScheduleError for one that is stopped by a dead letter or no longer declared, and
    AccessError if the login role may not, or `source` or the schedule's own not enqueue the kind.
    """
    values = {"name": checks.text("a schedule", name, LONGEST_NAME), "source": source}
    with refusals(), needing(connection, "scheduler_operator"):
        rows = fetch(connection, "run_schedule", values)
    return Enqueued(*rows[0]) if rows else None


def _has_schedules(connection: Connection, application: str) -> bool:
    with connection.cursor(row_factory=scalar_row) as cursor:
        query = "select exists (select from scheduler.schedules where application = %s)"
        return bool(cursor.execute(query, [application]).fetchone())


def _plan(connection: Connection, plans: Sequence[tuple[object, ...]]) -> None:
    columns = ("names", "rules", "timezones", "read", "occurrences", "next")
    values = {
        column: list(part) for column, part in zip(columns, zip(*plans, strict=True), strict=True)
    }
    for task, name, occurrence, _ in fetch(connection, "plan_occurrences", values):
        event(log, logging.DEBUG, "planned", task=task, schedule=name, occurrence=occurrence)


def _names(connection: Connection, act: str, names: Sequence[str], source: str | None) -> list[str]:
    values = {"names": checks.texts("a schedule", names, LONGEST_NAME), "source": source}
    with refusals(), needing(connection, "scheduler_operator"):
        return sorted(name for (name,) in fetch(connection, act, values))
