"""The work of the transactional bench: the tasks of every drain, and a handler that writes.

It writes one row, its effect, on the connection that the worker gives it: effect and completion are
one commit. The table has no key, so that a second effect would be there to be counted.
"""

from __future__ import annotations

from itertools import count

from psycopg import Connection

from chaos.bench import noop
from scheduler import Attempt, Registry

TABLE = "create table public.effects (task bigint not null)"

CHECKS = (
    (
        "select count(*) from scheduler.tasks as task where not exists"
        " (select from public.effects as effect where effect.task = task.id)",
        "{n} tasks have no effect",
    ),
    (
        "select count(*) from (select from public.effects group by task"
        " having count(*) > 1) as twice",
        "{n} tasks have more than one effect",
    ),
    (
        "select count(*) from public.effects as effect where not exists"
        " (select from scheduler.tasks as task where task.id = effect.task)",
        "{n} effects are of no task",
    ),
)


def registry() -> tuple[Registry, count[int]]:
    """A registry with the one kind, and a counter whose next value is how often it ran."""
    ran = count()
    kinds = Registry()

    def write(attempt: Attempt, payload: dict[str, int], connection: Connection) -> None:
        connection.execute("insert into public.effects values (%s)", [attempt.task])
        next(ran)

    kinds.transactional(noop.KIND, dict[str, int])(write)
    return kinds, ran


def violations(connection: Connection, tasks: int) -> list[str]:
    """What is wrong with a finished drain of so many tasks, one sentence each; empty if nothing."""
    return noop.violations(connection, tasks) + noop.failed(connection, CHECKS)
