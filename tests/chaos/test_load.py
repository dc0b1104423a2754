"""The load: no task is enqueued twice or forgotten, whatever becomes of a client's call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Thread
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from chaos import load as load_module
from chaos.history.journal import Journal, read_journals
from chaos.load import Load, dealt
from chaos.systems import Order, RefusedError, system
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
        self.lost_answers = 0

    def enqueue_under_key(self, dsn: str, order: Order, keep: bool) -> tuple[int, bool]:
        """Enqueue; the first answers may be lost."""
        answer = super().enqueue_under_key(dsn, order, keep)
        if self.lost_answers:
            self.lost_answers -= 1
            raise psycopg.OperationalError("the answer was lost")
        return answer

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


def load_of(
    under_test: Leaseproof, target: str, directory: Path, orders: Sequence[Order] = ORDERS
) -> Load:
    """A load that is due as a whole."""
    load = Load(under_test, target, orders, 0.001, Journal(directory, "client"))
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
    tmp_path: Path,
) -> None:
    load = load_of(Unlucky(*fates), target, tmp_path)
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
    target: str, tmp_path: Path
) -> None:
    orders = ORDERS[:10]
    load = load_of(Unlucky(half, reply_lost), target, tmp_path, orders)
    wait_for(lambda: not load.turn(), "the first batch to be over")
    assert (load.unknown, load.placed) == (10, {})
    orders += ORDERS[10:]
    wait_for(lambda: not load.turn(), "the second batch to be over")
    assert load.unknown == 10
    # What came of the first batch is not taken for the second.
    assert [order.job.number for order in load.placed.values()] == list(range(10, 20))


def test_a_doubtful_batch_waits_until_its_session_is_gone(target: str, tmp_path: Path) -> None:
    sessions: list[psycopg.Connection] = []

    def unfinished(call: Call, dsn: str, orders: Sequence[Order]) -> list[int]:
        """The client gives up while its session is still there, and may yet commit."""
        sessions.append(psycopg.connect(dsn))
        raise psycopg.OperationalError("given up")

    load = load_of(Unlucky(unfinished), target, tmp_path)
    for _ in range(5):
        assert load.turn()
    assert numbers(target) == []
    Leaseproof().enqueue(target, ORDERS)  # what it had in hand
    sessions[0].close()
    wait_for(lambda: not load.turn(), "the load to be over")
    assert numbers(target) == [order.job.number for order in ORDERS]


# Keys


KEYED = [
    replace(order, key=f"k{number // 5}", rolls_back=number % 10 == 0)
    for number, order in enumerate(ORDERS)
]


def answers(directory: Path) -> list[tuple[str, int, str]]:
    """What clients say they were told: which answer, which task, under which key."""
    found = []
    for note in read_journals(directory, 0):
        if note.what == "keyed":
            answer, _, key = note.detail.split(" ", 2)
            found.append((answer, note.task, key))
    return found


def test_clients_that_want_the_same_keys_at_once_agree_on_their_tasks(
    target: str, tmp_path: Path
) -> None:
    hands = dealt(KEYED, 4)
    assert sorted(hands) == ["client-1", "client-2", "client-3", "client-4"]
    loads = [
        Load(Leaseproof(), target, hand, 0.001, Journal(tmp_path, name), name)
        for name, hand in hands.items()
    ]
    threads = [
        Thread(target=wait_for, args=(lambda load=load: not load.turn(), "the load to be over"))
        for load in loads
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = answers(tmp_path)
    assert len(told) == len(KEYED)
    assert sorted(key for answer, _, key in told if answer == "created") == ["k0", "k1", "k2", "k3"]
    assert len({(task, key) for _, task, key in told}) == 4
    assert {task for load in loads for task in load.placed} == {task for _, task, _ in told}
    assert len(numbers(target)) == 4


def test_a_client_whose_answer_was_lost_asks_again_and_knows_its_task(
    target: str, tmp_path: Path
) -> None:
    unlucky = Unlucky()
    unlucky.lost_answers = 1
    load = load_of(unlucky, target, tmp_path, [replace(ORDERS[0], key="k")])
    wait_for(lambda: not load.turn(), "the load to be over")
    ((answer, task, key),) = answers(tmp_path)
    assert (answer, key) == ("standing", "k")
    assert list(load.placed) == [task]
    assert numbers(target) == [0]


def test_a_key_that_is_rolled_back_is_enqueued_all_the_same(target: str, tmp_path: Path) -> None:
    load = load_of(Unlucky(), target, tmp_path, [replace(ORDERS[0], key="k", rolls_back=True)])
    wait_for(lambda: not load.turn(), "the load to be over")
    ((answer, task, _),) = answers(tmp_path)
    assert (answer, list(load.placed)) == ("created", [task])
    with psycopg.connect(target) as connection:
        assert connection.execute("select id from scheduler.tasks").fetchall() == [(task,)]
    assert task == 2  # the first was rolled back


# Sources


@pytest.fixture
def shop(target: str) -> Iterator[str]:
    """The name of a source, another in each test: roles are of the whole server."""
    name = f"shop_{uuid4().hex[:8]}"
    yield name
    with psycopg.connect(target) as connection:
        connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def orders_of(source: str, count: int) -> list[Order]:
    """Orders of a source."""
    return [replace(order, source=source) for order in ORDERS[:count]]


def finish_all(target: str) -> None:
    """Cancel what is outstanding."""
    with psycopg.connect(target) as connection:
        connection.execute(
            "select scheduler.cancel(array_agg(id)) from scheduler.tasks where status = 'pending'"
        )


def test_a_source_that_is_refused_tries_again_until_there_is_room(
    target: str, shop: str, tmp_path: Path
) -> None:
    Leaseproof().cap(target, shop, 3)
    load = load_of(Unlucky(), target, tmp_path, orders_of(shop, 7))
    for placed in (3, 6, 7):  # three at a time; the fourth to sixth have no room
        assert load.turn() is (placed < 7)
        assert load.turn() is (placed < 7)
        assert len(load.placed) == placed
        finish_all(target)
    assert numbers(target) == list(range(7))


def test_a_source_that_is_refused_for_ever_ends_the_run(
    target: str, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "LONGEST_REFUSED", 0.0)
    Leaseproof().cap(target, shop, 2)
    load = load_of(Unlucky(), target, tmp_path, orders_of(shop, 3))
    assert load.turn()
    with pytest.raises(TimeoutError, match=f"no task came to its end: source {shop} may have 2"):
        load.turn()


def test_a_refusal_is_told_as_one(target: str, shop: str) -> None:
    Leaseproof().cap(target, shop, 2)
    with pytest.raises(RefusedError, match=f"source {shop} may have 2 tasks outstanding"):
        Leaseproof().enqueue(target, orders_of(shop, 3))
    keyed = [replace(order, key=f"k{order.job.number}") for order in orders_of(shop, 3)]
    for order in keyed[:2]:
        Leaseproof().enqueue_under_key(target, order, keep=True)
    with pytest.raises(RefusedError):
        Leaseproof().enqueue_under_key(target, keyed[2], keep=True)


def test_what_has_neither_key_nor_source_is_one_clients() -> None:
    hands = dealt([*ORDERS[:4], *KEYED[4:9], *orders_of("shop", 3)], 4)
    assert hands["client"] == ORDERS[:4]
    assert sorted(map(len, hands.values())) == [2, 2, 2, 2, 4]
    assert dealt(ORDERS, 4) == {"client": ORDERS}
