"""What people do by hand is done to a real queue, to a task in the right state."""

from __future__ import annotations

import psycopg
import pytest

from chaos.cluster.postgres import Postgres
from chaos.faults import Arena
from chaos.faults.operator import Cancel, Discard, OperatorFault, Requeue
from chaos.faults.rows import RowLock
from chaos.systems import Order
from chaos.systems.leaseproof import Leaseproof
from chaos.workload import Job
from tests.chaos.faults.arena import arena, bit, struck

CANCEL = Cancel(kind="cancel", count=1, running=False)
CANCEL_RUNNING = Cancel(kind="cancel", count=1)
REQUEUE = Requeue(kind="requeue", count=1)
DISCARD = Discard(kind="discard", count=1)

MAKE_RUNNING = """
    update scheduler.tasks set status = 'running', attempts = 1, lease_token = 1,
        lease_owner = 'w/1', claimed_at = now(), lease_expires_at = now() + interval '1 minute'
"""
MAKE_DEAD = """
    update scheduler.tasks set status = 'dead', attempts = 1, last_error = 'x', finished_at = now()
"""


@pytest.fixture
def where(server: Postgres, empty_dsn: str) -> Arena:
    """An arena with one task that waits."""
    system = Leaseproof()
    system.install(empty_dsn)
    system.enqueue(empty_dsn, [Order(Job(0, "quick", 0, 0), delay=0, max_attempts=1)])
    with psycopg.connect(empty_dsn) as connection:
        name = connection.info.dbname
    return arena(server, name)


def become(where: Arena, statement: str) -> None:
    """Put the task into another state."""
    with psycopg.connect(where.dsn) as connection:
        connection.execute(statement.encode())


def state(where: Arena) -> str:
    """The task's."""
    with psycopg.connect(where.dsn) as connection:
        [(found,)] = connection.execute("select status from scheduler.tasks").fetchall()
    return str(found)


@pytest.mark.parametrize(
    ("fault", "before", "after"),
    [
        (CANCEL, "", "cancelled"),
        (CANCEL_RUNNING, MAKE_RUNNING, "cancelled"),
        (REQUEUE, MAKE_DEAD, "pending"),
        (DISCARD, MAKE_DEAD, "discarded"),
    ],
    ids=["cancel", "cancel running", "requeue", "discard"],
)
def test_it_is_done_to_a_task_in_the_right_state_and_says_so(
    fault: OperatorFault, before: str, after: str, where: Arena
) -> None:
    become(where, before)
    assert struck(fault, where).heal() == 1
    assert state(where) == after
    assert fault.inject(where) is None  # there is no other


def test_it_is_done_to_no_task_in_another_state(where: Arena) -> None:
    assert [one.inject(where) for one in (CANCEL_RUNNING, REQUEUE, DISCARD)] == [None] * 3
    assert state(where) == "pending"


def test_a_task_that_moved_on_meanwhile_was_not_bitten(
    where: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where.system, "tasks", lambda dsn, state: [1])
    assert not bit(REQUEUE, struck(REQUEUE, where))


def test_a_row_lock_holds_due_tasks_until_it_is_healed(where: Arena) -> None:
    lock = RowLock(kind="row-lock", count=1, lasts=1, rows=1)

    def lockable() -> int:
        with psycopg.connect(where.dsn) as connection:
            return where.system.lock_due(connection, 10)

    strike = struck(lock, where)
    assert lockable() == 0
    assert lock.inject(where) is None  # nothing else is due
    assert strike.heal() == 1
    assert lockable() == 1
