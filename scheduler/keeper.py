"""The keeper: a thread that keeps the leases of a worker alive, apart from whatever else it does.

It has a session of its own, on which it also listens for news of tasks that are due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from threading import Event, Lock, Thread

import psycopg

from scheduler.events import event, one_line
from scheduler.lease import renew, second_look
from scheduler.session import REPLAN_EVERY, replan
from scheduler.watchdog import Observe, Watchdog
from scheduler.wire import WorkerConnection

log = logging.getLogger("scheduler")

PAUSE = 0.5  # seconds between attempts to reconnect


class Keeper(Thread):
    """Renews what the watchdog says is held, each lease when a third of it has passed.

    wake: called when there is news for one of `queues`; without any it does not listen. tick: how
    many seconds it listens between looks. call_limit: how many seconds a call may take.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], WorkerConnection],
        watchdog: Watchdog,
        monotonic: Callable[[], float],
        observe: Observe,
        wake: Callable[[], None],
        queues: Collection[str],
        tick: float,
        call_limit: float,
    ) -> None:
        super().__init__(name="scheduler-keeper", daemon=True)
        self._worker = name
        self._connect = connect
        self._watchdog = watchdog
        self._monotonic = monotonic
        self._observe = observe
        self._wake = wake
        self._queues = queues
        self._tick = tick
        self._call_limit = call_limit
        self._over = Event()
        self._lock = Lock()  # of the connection, while it can be shut
        self._connection: WorkerConnection | None = None
        self._moves = 0
        self._next_replan = 0.0
        self.error: Exception | None = None  # what ended the thread, should anything have done so

    def move(self) -> None:
        """Look for another server: this one was found to be read-only. Having nothing to renew, the
        keeper would not find out, and would hear nothing from the one that is not."""
        self._moves += 1

    def stop(self) -> None:
        """End the thread, also while it listens."""
        self._over.set()
        with self._lock:
            if self._connection is not None:
                self._connection.shut()

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._over.is_set():
                self._session()
        except Exception as error:  # noqa: BLE001 - raised again by the worker's `run`
            self.error = error
            self._wake()

    def _session(self) -> None:
        try:
            moves = self._moves
            with self._connect() as connection:
                try:
                    if self._queues:
                        self._use(connection)
                        with self._watchdog.limited(connection, self._call_limit):
                            connection.execute("listen scheduler_wake")
                    self._wake()  # for what was enqueued before we listened
                    while not self._over.is_set() and self._moves == moves:
                        self._renew(connection)
                        self._listen(connection)
                finally:
                    self._use(None)
        except psycopg.Error as error:
            if self._over.is_set():
                return  # we hung up ourselves
            # The dispatcher decides when the database has been away for too long.
            text = one_line(error)
            event(log, logging.WARNING, "renewal-failing", worker=self._worker, error=text)
            self._over.wait(PAUSE)

    def _use(self, connection: WorkerConnection | None) -> None:
        """Say which connection `stop` is to shut."""
        with self._lock:
            self._connection = connection

    def _listen(self, connection: WorkerConnection) -> None:
        """Wait for news of tasks that are due, one tick at most; pass it on to the dispatcher."""
        if not self._queues:
            self._over.wait(self._tick)
            return
        for news in connection.notifies(timeout=self._tick, stop_after=1):
            if news.payload in self._queues:
                self._wake()

    def _renew(self, connection: WorkerConnection) -> None:
        sent = self._monotonic()
        replanning = self._queues and sent >= self._next_replan
        due = [
            attempt
            for attempt in self._watchdog.held()
            if not attempt.lost
            and attempt.believed_until - sent <= attempt.lease_length.total_seconds() * 2 / 3
        ]
        if not due:
            return
        with self._watchdog.limited(connection, self._call_limit):
            if replanning:
                self._next_replan = sent + REPLAN_EVERY
                replan(connection)
            renewed = renew(connection, [a.lease for a in due], [a.lease_length for a in due])
            missing = [attempt.lease for attempt in due if attempt.lease not in renewed]
            looks = second_look(connection, missing) if missing else {}
        for attempt in due:
            if attempt.lease in renewed:
                attempt.renewed(sent)
                expires = int(renewed[attempt.lease].timestamp() * 1_000_000)
                self._observe("renewed", attempt.lease, str(expires))
            elif not looks[attempt.lease].held:
                outcome = looks[attempt.lease].outcome
                if outcome in ("reclaimed", "cancelled", None):
                    self._observe("refused", attempt.lease, "renew")
                    self._watchdog.lose(attempt, outcome or "the task is gone")
