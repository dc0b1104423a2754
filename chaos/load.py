"""A client of a run: enqueues tasks, and finds out what became of each of its calls.

A client whose call failed does not know whether its transaction committed. This one looks: when its
lost session is gone, the tasks are there or never will be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from chaos.history.journal import Journal
from chaos.patience import HARNESS, Patience, harness_dsn
from chaos.systems import Order, RefusedError, System

AT_ONCE = 3  # orders of a source that go in one call, at most: together they may be too many
LONGEST_REFUSED = 30.0  # seconds on end that all clients of a source may be refused


@dataclass(slots=True)
class Accepted:
    """When an order with a source was taken last, whichever client's: on the monotonic clock."""

    at: float = field(default_factory=time.monotonic)


def dealt(orders: Sequence[Order], clients: int) -> dict[str, list[Order]]:
    """Which client enqueues what, by its name.

    What has a key or a source is dealt out to several, so that they meet; one has all the rest.
    """
    rivals = [order for order in orders if order.key is not None or order.source is not None]
    hands = {f"client-{number + 1}": rivals[number::clients] for number in range(clients)}
    hands["client"] = [order for order in orders if order.key is None and order.source is None]
    return {name: hand for name, hand in hands.items() if hand}


class Load:
    """Enqueues `orders` evenly over `seconds`. `turn` is for one thread.

    Any number of them may be at work at once, each under a `name` of its own.
    """

    def __init__(
        self,
        system: System,
        dsn: str,
        orders: Sequence[Order],
        seconds: float,
        journal: Journal,
        name: str = "client",
        accepted: Accepted | None = None,
    ) -> None:
        """`accepted` is shared by all clients of a run: one may be refused while others are not."""
        self._system = system
        self._session = f"{HARNESS}{name}"
        self._dsn = harness_dsn(dsn, name)
        self._look_dsn = harness_dsn(dsn, "look")
        self._orders = orders
        self._seconds = seconds
        self._journal = journal
        self._began = time.monotonic()
        self._doubtful: Sequence[Order] = ()
        self._sent = 0  # when the latest call was made, in microseconds of the wall clock
        self._refused: float | None = None  # since when, on the monotonic clock
        self._accepted = accepted or Accepted()
        self._patience = Patience()
        self.placed: dict[int, Order] = {}
        self.enqueued = 0
        self.unknown = 0

    def turn(self) -> bool:
        """Enqueue what is due, or resolve what is in doubt; False when there is nothing left.

        What a source is refused waits for the next turn. Raises TimeoutError if it is refused for
        too long.
        """
        with self._patience:
            if self._doubtful:
                self._resolve(self._doubtful)
            share = (time.monotonic() - self._began) / self._seconds
            due = min(math.ceil(share * len(self._orders)), len(self._orders))
            while not self._doubtful and self.enqueued < due:
                self._doubtful = self._next(due)
                self._sent = time.time_ns() // 1000
                try:
                    self._enqueue(self._doubtful)
                except RefusedError as error:
                    self._doubtful = ()
                    self._wait(error)
                    break
                self._refused = None
        return self.enqueued < len(self._orders)

    def _next(self, due: int) -> Sequence[Order]:
        """The orders of the next call: all that are due if there is nothing special about them."""
        first = self._orders[self.enqueued]
        some = 1 + self.enqueued % AT_ONCE
        most = 1 if first.key is not None else some if first.source is not None else due
        batch = self._orders[self.enqueued : min(due, self.enqueued + most)]
        alike = [
            (one.key is None, one.source) == (first.key is None, first.source) for one in batch
        ]
        return batch[: alike.index(False)] if False in alike else batch

    def _enqueue(self, batch: Sequence[Order]) -> None:
        (first, *_) = batch
        if first.key is None:
            self._settle(batch, self._system.enqueue(self._dsn, batch))
            return
        if first.rolls_back:
            self._system.enqueue_under_key(self._dsn, first, keep=False)
            self._sent = time.time_ns() // 1000
        task, created = self._system.enqueue_under_key(self._dsn, first, keep=True)
        answer = "created" if created else "standing"
        self._journal.note("keyed", task, 0, "", f"{answer} {self._sent} {first.key}")
        if created:
            self._settle(batch, [task])
        else:
            self._journal.note("acknowledged", task, 0, "")
            self._pass(batch)

    def _wait(self, error: RefusedError) -> None:
        now = time.monotonic()
        self._refused = self._refused or now
        if now - max(self._refused, self._accepted.at) > LONGEST_REFUSED:
            raise TimeoutError(f"{LONGEST_REFUSED:.0f} s long no task came to its end: {error}")

    def _resolve(self, batch: Sequence[Order]) -> None:
        """Learn whether a call that failed was committed; leave it if nobody can know yet.

        Nothing of it can come later, since the session that could commit it is gone by then. Under
        a key the client asks again in any case, as clients do.
        """
        with psycopg.connect(self._look_dsn, autocommit=True) as connection:
            alive = connection.execute(
                "select from pg_stat_activity where application_name = %s", [self._session]
            ).fetchone()
        if alive is not None:
            return
        found = self._system.find(self._look_dsn, [order.job.number for order in batch])
        if batch[0].key is not None:
            for order in batch:
                self._note(order, found.get(order.job.number, ()))
            self._doubtful = ()
        elif not found:
            self._doubtful = ()  # it was not committed: enqueue it again
        elif all(len(found.get(order.job.number, ())) == 1 for order in batch):
            self._settle(batch, [found[order.job.number][0] for order in batch])
        else:
            self.unknown += len(batch)
            self._pass(batch)

    def _settle(self, batch: Sequence[Order], tasks: Sequence[int]) -> None:
        """Take note of a batch that is there."""
        if batch[0].source is not None:
            self._accepted.at = time.monotonic()
        for task, order in zip(tasks, batch, strict=True):
            self._note(order, [task])
        self._pass(batch)

    def _note(self, order: Order, tasks: Sequence[int]) -> None:
        """Take note of tasks that are there, with the earliest time at which each is due.

        That counts from before the call, on the clock that the server, on the same machine, reads.
        """
        for task in tasks:
            earliest = self._sent + int(order.delay * 1_000_000)
            self._journal.note("acknowledged", task, 0, "", str(earliest))
            self.placed[task] = order

    def _pass(self, batch: Sequence[Order]) -> None:
        self.enqueued += len(batch)
        self._doubtful = ()
