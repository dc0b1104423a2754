"""Ends what waits too long: a lease nobody could renew, a call that the network swallowed.

It does no I/O of its own, so nothing can make it wait. A half-open connection answers nothing, not
even an error, and TCP may take many minutes to notice; where a proxy still acknowledges bytes it
never does. So every call of the worker has a limit, and the watchdog shuts the socket of a call
that is over it: libpq then returns at once with an error, and the worker reconnects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import ParamSpec

from scheduler.events import event
from scheduler.lease import Attempt, Lease
from scheduler.wire import WorkerConnection

log = logging.getLogger("scheduler")

Told = ParamSpec("Told")

# What a worker can be asked to tell, as (what, lease, detail): `claimed` (the kind, the number of
# the attempt, how many seconds after the due time), `started`, `put-off` (why; nothing that the
# handler did), `finished` (how), `renewed` (the new
# expiry, microseconds since 1970), `lease-lost` (how), `refused` (which write), `settled` (the
# outcome that was written, `dead` for a failure that was the last) of its own attempts, and
# `reclaimed` (the kind, what became of the task) of others'.
Observe = Callable[[str, Lease, str], None]

# And of each claim: how many tasks it took, in how many seconds.
ObserveClaim = Callable[[int, float], None]

# And of the kinds at their limit that had tasks due when a claim found nothing that it may have.
ObserveLimited = Callable[[list[str]], None]


class Watchdog(Thread):
    """Watches the attempts a worker holds and the database calls it has in flight."""

    def __init__(self, tick: float, monotonic: Callable[[], float], observe: Observe) -> None:
        super().__init__(name="scheduler-watchdog", daemon=True)
        self._tick = tick
        self._monotonic = monotonic
        self._observe = observe
        self._lock = Lock()
        self._held: dict[Lease, Attempt] = {}
        self._interrupts: dict[Lease, Callable[[], object]] = {}
        self._calls: dict[WorkerConnection, float] = {}
        self._ended = Event()
        # Leases that were lost, and how. The dispatcher logs them, which may wait for a reader.
        self.losses: SimpleQueue[tuple[Attempt, str]] = SimpleQueue()
        self.error: Exception | None = None  # what ended the thread, should anything have done so

    def hold(self, attempts: list[Attempt]) -> None:
        """Take claimed attempts into the worker's holdings."""
        with self._lock:
            self._held.update((attempt.lease, attempt) for attempt in attempts)

    def drop(self, lease: Lease) -> None:
        """Forget an attempt that is over."""
        with self._lock:
            self._held.pop(lease, None)

    def held(self) -> list[Attempt]:
        """The attempts this worker holds: waiting, running or not yet written down."""
        with self._lock:
            return list(self._held.values())

    def holds(self, lease: Lease) -> bool:
        """Whether this worker holds the attempt."""
        return lease in self._held

    def count(self) -> int:
        """How many attempts this worker holds."""
        return len(self._held)

    def lose(self, attempt: Attempt, how: str) -> None:
        """Mark an attempt as lost, say so once, and let its handler be interrupted."""
        if attempt.lose():
            self.losses.put((attempt, how))
            self._observe("lease-lost", attempt.lease, how)

    @contextmanager
    def interruptible(self, attempt: Attempt, interrupt: Callable[[], object]) -> Iterator[None]:
        """While inside, a loss of the lease calls `interrupt`, once; it must not block."""
        with self._lock:
            self._interrupts[attempt.lease] = interrupt
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.pop(attempt.lease, None)

    def interrupt_all(self) -> None:
        """Interrupt every handler that can be: the worker's time to shut down is over."""
        with self._lock:
            for interrupt in self._interrupts.values():
                interrupt()
            self._interrupts.clear()

    @contextmanager
    def limited(self, connection: WorkerConnection, seconds: float) -> Iterator[None]:
        """While inside, the connection is shut down once `seconds` have passed."""
        with self._lock:
            self._calls[connection] = self._monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(connection, None)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._ended.wait(self._tick):
                self.look(self._monotonic())
        except Exception as error:  # noqa: BLE001 - raised again by the worker's `run`
            self.error = error

    def look(self, now: float) -> None:
        """One round: what is over its time at `now` on the monotonic clock is ended."""
        for attempt in self.held():
            if not attempt.lost and attempt.believed_until <= now:
                self.lose(attempt, "not renewed in time")
        # Under the lock: outside it the call or handler could end, and the connection that is shut
        # here already be in use by the next one.
        with self._lock:
            for lease, attempt in self._held.items():
                if attempt.lost and lease in self._interrupts:
                    self._interrupts.pop(lease)()
            for connection in [c for c, limit in self._calls.items() if limit <= now]:
                del self._calls[connection]
                connection.shut()


def guarded(observe: Callable[Told, None]) -> Callable[Told, None]:
    """An observer whose errors are logged: none may end a thread that keeps leases."""

    def told(*args: Told.args, **named: Told.kwargs) -> None:
        try:
            observe(*args, **named)
        except Exception:  # noqa: BLE001 - logged
            event(log, logging.ERROR, "observer-failed", exc_info=True, told=args)

    return told
