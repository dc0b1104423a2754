"""The client of a run: enqueues its tasks batch by batch, and finds out what became of each batch.

A client whose call failed does not know whether its transaction committed. This one asks the log:
when its lost session is gone, and the log is read to its end, the batch is there or never will be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

import psycopg

from chaos.history.journal import Journal
from chaos.patience import HARNESS, Patience, harness_dsn
from chaos.systems import Order, System


class Load:
    """Enqueues `orders` evenly over `seconds`. `turn` is for one thread.

    committed: reads the log to its end and gives the ids of all tasks that it ever showed; raises
    psycopg.OperationalError if it cannot now.
    """

    def __init__(
        self,
        system: System,
        dsn: str,
        orders: Sequence[Order],
        seconds: float,
        journal: Journal,
        committed: Callable[[], Collection[int]],
    ) -> None:
        self._system = system
        self._dsn = harness_dsn(dsn, "load")
        self._look_dsn = harness_dsn(dsn, "look")
        self._orders = orders
        self._seconds = seconds
        self._journal = journal
        self._committed = committed
        self._began = time.monotonic()
        self._doubtful: Sequence[Order] = ()
        self._sent = 0  # when the latest batch was sent, in microseconds of the wall clock
        self._strange: set[int] = set()  # tasks that came of batches nothing is known of
        self._patience = Patience()
        self.placed: dict[int, Order] = {}
        self.enqueued = 0
        self.unknown = 0

    def turn(self) -> bool:
        """Enqueue what is due, or resolve what is in doubt; False when there is nothing left."""
        with self._patience:
            if self._doubtful:
                self._resolve(self._doubtful)
            share = (time.monotonic() - self._began) / self._seconds
            batch = self._orders[self.enqueued : math.ceil(share * len(self._orders))]
            if batch and not self._doubtful:
                self._doubtful, self._sent = batch, time.time_ns() // 1000
                self._settle(batch, self._system.enqueue(self._dsn, batch))
        return self.enqueued < len(self._orders)

    def _resolve(self, batch: Sequence[Order]) -> None:
        """Learn whether a batch whose call failed was committed; leave it if nobody can know yet.

        This is the only client, one batch at a time: what the log shows and no reply told is this
        batch or nothing, with ids in the order of its inserts. Nothing of it can come later, since
        the session that could commit it is gone before the log is read.
        """
        with psycopg.connect(self._look_dsn, autocommit=True) as connection:
            alive = connection.execute(
                "select from pg_stat_activity where application_name = %s", [f"{HARNESS}load"]
            ).fetchone()
        if alive is not None:
            return
        found = sorted(set(self._committed()) - self.placed.keys() - self._strange)
        if not found:
            self._doubtful = ()  # it was not committed: enqueue it again
        elif len(found) == len(batch):
            self._settle(batch, found)
        else:
            self.unknown += len(batch)
            self._strange.update(found)
            self._pass(batch)

    def _settle(self, batch: Sequence[Order], tasks: Sequence[int]) -> None:
        """Take note of a batch that is there, with the earliest time at which each task is due.

        That counts from before the call, on the clock that the server, on the same machine, reads.
        """
        for task, order in zip(tasks, batch, strict=True):
            earliest = self._sent + int(order.delay * 1_000_000)
            self._journal.note("acknowledged", task, 0, "", str(earliest))
            self.placed[task] = order
        self._pass(batch)

    def _pass(self, batch: Sequence[Order]) -> None:
        self.enqueued += len(batch)
        self._doubtful = ()
