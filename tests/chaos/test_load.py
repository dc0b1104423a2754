"""The load: no task is enqueued twice or forgotten, whatever becomes of a client's call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from chaos.history.journal import Journal, read_journals
from chaos.history.witness import Witness
from chaos.load import Load
from chaos.systems import Order, system
from chaos.systems.leaseproof import Leaseproof
from chaos.workload import Job
from tests.waiting import wait_for

ORDERS = [Order(Job(number, "quick", 0, 0), delay=0, max_attempts=1) for number in range(20)]

Call = Callable[[str, Sequence[Order]], list[int]]


class Unlucky(Leaseproof):
    """The scheduler, with what its client's first calls are to meet."""

    def __init__(self, *fates: Callable[[Call, str, Sequence[Order]], list[int]]) -> None:
        super().__init__()
        self._fates = list(fates)

    def enqueue(self, dsn: str, orders: Sequence[Order]) -> list[int]:
        """Enqueue, or what fate wants."""
        if self._fates:
            return self._fates.pop(0)(super().enqueue, dsn, orders)
        return super().enqueue(dsn, orders)


def reply_lost(call: Call, dsn: str, orders: Sequence[Order]) -> list[int]:
    """The batch is committed, and its client does not learn it."""
    call(dsn, orders)
    raise psycopg.OperationalError("the reply was lost")


def request_lost(call: Call, dsn: str, orders: Sequence[Order]) -> list[int]:
    """The batch does not arrive."""
    raise psycopg.OperationalError("the request was lost")


def half(call: Call, dsn: str, orders: Sequence[Order]) -> list[int]:
    """Half of the batch is committed, which no system should do."""
    return reply_lost(call, dsn, orders[: len(orders) // 2])


@pytest.fixture
def target(empty_dsn: str) -> str:
    """A database with the system under test installed."""
    system("leaseproof").install(empty_dsn)
    return empty_dsn


@pytest.fixture
def witness(target: str) -> Iterator[Witness]:
    """A witness of the database."""
    one = Witness(target, Leaseproof().watched())
    one.open()
    yield one
    one.close()


def load_of(
    under_test: Leaseproof,
    target: str,
    witness: Witness,
    directory: Path,
    orders: Sequence[Order] = ORDERS,
) -> Load:
    """A load that is due as a whole."""
    seen: set[int] = set()

    def committed() -> set[int]:
        seen.update(task for commit in witness.drain() for task, _ in commit.changes)
        return seen

    load = Load(under_test, target, orders, 0.001, Journal(directory, "client"), committed)
    time.sleep(0.001)  # due is what the clock says, and then all is
    return load


def numbers(target: str) -> list[int]:
    """The jobs in the table."""
    with psycopg.connect(target) as connection:
        return sorted(
            int(number)
            for (number,) in connection.execute("select payload ->> 'number' from scheduler.tasks")
        )


@pytest.mark.parametrize(
    "fates",
    [
        (),
        (reply_lost,),
        (request_lost,),
        (request_lost, request_lost, reply_lost),
    ],
    ids=["all well", "reply lost", "request lost", "three failures"],
)
def test_every_job_is_enqueued_once_and_known_by_its_id(
    fates: tuple[Callable[[Call, str, Sequence[Order]], list[int]], ...],
    target: str,
    witness: Witness,
    tmp_path: Path,
) -> None:
    load = load_of(Unlucky(*fates), target, witness, tmp_path)
    wait_for(lambda: not load.turn(), "the load to be over")
    assert numbers(target) == [order.job.number for order in ORDERS]
    assert load.unknown == 0
    with psycopg.connect(target) as connection:
        rows = connection.execute("select id, payload ->> 'number' from scheduler.tasks").fetchall()
    assert {task: order.job.number for task, order in load.placed.items()} == {
        task: int(number) for task, number in rows
    }
    with psycopg.connect(target) as connection:
        due: dict[int, Decimal] = dict(
            connection.execute(
                "select id, extract(epoch from next_run_at) * 1000000 from scheduler.tasks"
            ).fetchall()
        )
    notes = read_journals(tmp_path, 0)
    assert sorted(note.task for note in notes) == sorted(load.placed)
    assert all(int(note.detail) <= due[note.task] for note in notes)


def test_an_outcome_that_cannot_be_told_is_counted_and_not_guessed(
    target: str, witness: Witness, tmp_path: Path
) -> None:
    orders = ORDERS[:10]
    load = load_of(Unlucky(half, reply_lost), target, witness, tmp_path, orders)
    wait_for(lambda: not load.turn(), "the first batch to be over")
    assert (load.unknown, load.placed) == (10, {})
    orders += ORDERS[10:]
    wait_for(lambda: not load.turn(), "the second batch to be over")
    assert load.unknown == 10
    # What came of the first batch is not taken for the second.
    assert [order.job.number for order in load.placed.values()] == list(range(10, 20))


def test_a_doubtful_batch_waits_until_its_session_is_gone(
    target: str, witness: Witness, tmp_path: Path
) -> None:
    sessions: list[psycopg.Connection] = []

    def unfinished(call: Call, dsn: str, orders: Sequence[Order]) -> list[int]:
        """The client gives up while its session is still there, and may yet commit."""
        sessions.append(psycopg.connect(dsn))
        raise psycopg.OperationalError("given up")

    load = load_of(Unlucky(unfinished), target, witness, tmp_path)
    for _ in range(5):
        assert load.turn()
    assert numbers(target) == []
    Leaseproof().enqueue(target, ORDERS)  # what it had in hand
    sessions[0].close()
    wait_for(lambda: not load.turn(), "the load to be over")
    assert numbers(target) == [order.job.number for order in ORDERS]
