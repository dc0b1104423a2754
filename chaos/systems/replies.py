"""The worker's side of `lose-replies` and `lose-commits`: its statements arrive, replies do not.

Toxiproxy sees bytes, not statements. So it is told by the worker itself, before it sends what
changes something, to let nothing more come back; the worker waits until that is done. Afterwards
the way is free again, and the worker can make a new session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock, Timer, current_thread
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import ClientCursor
from psycopg.pq import TransactionStatus

from chaos.cluster.toxiproxy import proxy_at
from chaos.history.journal import Journal
from scheduler.wire import WorkerConnection

DIRECTORY = "lose-replies"  # beside the journals, with a `Loss` in a file of the worker's name

C = TypeVar("C", bound=WorkerConnection)

GIVES_UP = 0.3  # seconds after which the connection of a slot that waits for a reply is gone


class Loss(NamedTuple):
    """What is to be lost: this share of replies, drawn from this seed, through this proxy.

    commits: only of what ends a handler's transaction.
    """

    proxy: str
    share: float
    seed: int
    commits: bool


class LostReplies:
    """Loses the replies to a worker's writes for as long as there is a file of its name."""

    def __init__(self, journals: Path, name: str, journal: Journal) -> None:
        self._file = journals.parent / DIRECTORY / name
        self._journal = journal
        self._one_at_a_time = Lock()
        self._loss: Loss | None = None
        self._draw = Random()

    def on(self, connection: C) -> C:
        """The connection, whose replies can be lost from now on."""
        # psycopg sends, and waits for what comes back, in this method only.
        vars(connection)["wait"] = partial(self._wait, connection, connection.wait)
        return connection

    def _wait(
        self, connection: WorkerConnection, wait: Any, step: Any, *others: Any, **named: Any
    ) -> Any:
        if not _changes_something(connection, step) or not self._file.exists():
            return wait(step, *others, **named)
        with self._one_at_a_time, self._loss_to_come() as loss:
            if loss is None:
                return wait(step, *others, **named)
            return self._wait_in_vain(loss, connection, partial(wait, step, *others, **named))

    def _wait_in_vain(
        self, loss: Loss, connection: WorkerConnection, wait: Callable[[], Any]
    ) -> Any:
        proxy = proxy_at(loss.proxy)
        proxy.lose_replies()
        sent = time.monotonic_ns()
        try:
            with _given_up(connection):
                return wait()
        except psycopg.OperationalError:
            waited = (time.monotonic_ns() - sent) // 1000
            self._journal.note("reply-lost", 0, 0, "", str(waited))
            raise
        finally:
            proxy.reply_again()

    @contextmanager
    def _loss_to_come(self) -> Iterator[Loss | None]:
        """What is to be lost, if it is to be now. While inside, the fault is not healed."""
        try:
            file = self._file.open()
        except FileNotFoundError:
            yield None
            return
        with file:
            flock(file, LOCK_EX)
            if not self._file.exists():  # healed just now
                yield None
                return
            loss = Loss(*json.load(file))
            if loss != self._loss:
                self._loss, self._draw = loss, Random(loss.seed)
            spared = loss.commits and not _in_a_slot()
            yield None if spared or self._draw.random() >= loss.share else loss


def _changes_something(connection: WorkerConnection, step: Any) -> bool:
    """Whether this is a statement by itself, or the end of a transaction.

    Outside the slots nearly every statement of a worker is a write, and commits by itself. In a
    slot it is the completion, one message with its COMMIT; what comes before changes nothing yet.
    """
    what = getattr(step, "__name__", "")
    if what == "_exit_gen":
        return True
    if what != "_execute_gen":
        return False
    begun = connection.pgconn.transaction_status != TransactionStatus.IDLE
    if _in_a_slot():
        # Only a cursor that puts the values into the text can send two statements as one message.
        # One that finds no transaction begins it and changes nothing, the other ends it.
        return begun and isinstance(step.gi_frame.f_locals["self"], ClientCursor)
    return not begun


@contextmanager
def _given_up(connection: WorkerConnection) -> Iterator[None]:
    """While inside, a slot's connection is gone soon. The slot would wait until its lease is over,
    and have nothing to say then: so it has a failure to report, which is none."""
    timer = Timer(GIVES_UP, connection.shut)
    timer.daemon = True
    if _in_a_slot():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_a_slot() -> bool:
    return current_thread().name.startswith("scheduler-slot")
