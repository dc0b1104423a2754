"""What the state machine works with: kinds, schedules, and a database of its own."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from hypothesis import strategies as st
from psycopg import Connection

import scheduler
from chaos.cluster.postgres import postgres
from chaos.explore.clock import START
from chaos.life.clock import Clock
from chaos.life.model import Kind
from scheduler import Every, Priority, Registry, RetryPolicy
from scheduler.recurring import Missed, OnDead

SECOND = timedelta(seconds=1)
KINDS = {
    "work": Kind(60 * SECOND, RetryPolicy(1)),
    "rest": Kind(30 * SECOND, RetryPolicy(3, base=5 * SECOND, cap=8 * SECOND)),
}
KEYS = {"started": None, "finished": None, "hour": timedelta(hours=1)}
MISSED: dict[str, Missed] = {"skips": "skip", "once": "once", "all": "all"}

RESET = (
    "delete from scheduler.tasks; delete from scheduler.run_log; delete from scheduler.schedules;"
    " delete from scheduler.kind_limits; delete from scheduler.sources; delete from effects;"
    " select setval('audited', coalesce(max(id), 0)) from scheduler.audit;"
    " select setval(pg_get_serial_sequence('scheduler.tasks', 'id'), 1, false)"
)
# What every example leaves behind would slow down all later ones, where nothing else vacuums.
VACUUM = (
    b"vacuum scheduler.tasks, scheduler.run_log, scheduler.schedules, scheduler.sources,"
    b" scheduler.kind_limits, effects, explorer_clock.reading"
)
# A second source. Roles are the server's: another database may have made it already.
OTHER = "life_other"
INSTALL = f"""
create table effects (task bigint, token bigint);
create sequence audited minvalue 0;
do $$ begin
    create role {OTHER};
exception when duplicate_object or unique_violation then null;
end $$;
grant usage on schema scheduler to {OTHER};
grant execute on function scheduler.enqueue, scheduler.enqueue_unique to {OTHER};
"""
LOOK = (
    b"select id, kind, next_run_at, priority, source, unique_key, unique_until, counted, schedule,"
    b" occurrence, status, attempts, lease_token, lease_owner, lease_expires_at, last_error,"
    b" finished_at from scheduler.tasks;"
    b" select task_id, lease_token, lease_owner, outcome from scheduler.run_log;"
    b" select name, max_outstanding, outstanding from scheduler.sources;"
    b" select name, extract(epoch from substring(rule from 6)::interval)::float, missed, on_dead,"
    b" next_at, declared, paused from scheduler.schedules;"
    b" select kind, max_running from scheduler.kind_limits;"
    b" select task, token from effects;"
    b" select action, tasks, first_task, last_task from scheduler.audit"
    b" where id > (select last_value from audited) "
    b" and action = any('{enqueue,cancel,requeue,discard}') order by id"
)


seconds = st.sampled_from([0, 1, 5, 10, 30, 59, 60, 61, 200])
jumps = st.sampled_from([-3600, -61, -1, 3600, 10_000])  # of the database's clock
picks = st.integers(0, 1_000)
some = st.lists(picks, min_size=1, max_size=3)
kinds = st.sampled_from(sorted(KINDS))
names = st.sampled_from(sorted(MISSED))
ME = "postgres"  # who the tests log in as
sources = st.sampled_from([ME, OTHER])
priorities = st.sampled_from([int(level) for level in Priority])


def ignore(attempt: object, payload: int) -> None:
    """Never run here."""


def registry(period: int = 60, on_dead: OnDead = "stop", left_out: str = "") -> Registry:
    """The kinds, and a schedule of each policy but one, if one is left out."""
    made = Registry()
    for name, (lease, retry) in KINDS.items():
        made.kind(name, int, lease=lease, retry=retry)(ignore)
    for name in sorted(MISSED.keys() - {left_out}):
        rule = Every(period * SECOND)
        made.schedule(name, made["rest"], 1, rule, missed=MISSED[name], on_dead=on_dead)
    return made


WORK = registry()


def read(connection: Connection) -> list[list[tuple[Any, ...]]]:
    """All rows of all tables, in one round trip."""
    cursor = connection.execute(LOOK)
    found = [cursor.fetchall()]
    while cursor.nextset():
        found.append(cursor.fetchall())
    return found


class World(NamedTuple):
    """A database, and its time."""

    db: Connection
    clock: Clock

    @contextmanager
    def acting_as(self, source: str) -> Iterator[None]:
        """Enqueue as another source: that is the role that logged in."""
        if source != OTHER:
            yield
            return
        self.db.execute(f"set session authorization {OTHER}".encode())
        try:
            yield
        finally:
            self.db.execute("reset session authorization")

    def reset(self) -> None:
        """Back to where every example begins."""
        self.db.rollback()  # the last one may have failed within a transaction
        self.db.execute(RESET.encode())
        self.db.execute(VACUUM)
        self.clock.advance(START - self.clock.now)


def world(connection: Connection) -> World:
    """Make a world of an empty database."""
    scheduler.migrate(connection.info.dsn)
    connection.execute(INSTALL.encode())
    return World(connection, Clock(connection))


def own_world() -> World:
    """A world on a server that lives as long as this process."""
    logging.getLogger("scheduler").setLevel(logging.ERROR)  # it warns of schedules that go
    own = ExitStack()
    atexit.register(own.close)
    server = own.enter_context(postgres())
    return world(own.enter_context(psycopg.connect(server.dsn(), autocommit=True)))
