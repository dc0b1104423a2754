"""Runs handlers: plain ones in a thread, async ones in an event loop, transactional ones with a
connection whose writes commit together with the task's completion, isolated ones in a process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from scheduler.errors import PayloadError
from scheduler.events import event, one_line
from scheduler.finish import begin_attempt, complete_and_commit
from scheduler.isolation import Isolated, IsolatedHandlerError, IsolatedNotStartedError, find
from scheduler.kinds import Kind, Registry, Snooze
from scheduler.lease import Attempt
from scheduler.outcome import Outcome, describe, refuse_unfinished
from scheduler.secret_references import Secrets
from scheduler.session import CONNECT_TIMEOUT_SECONDS, HandlerConnection
from scheduler.watchdog import Observe, Watchdog

log = logging.getLogger("scheduler")

PAUSE = 0.5  # seconds before an attempt is given back because no connection could be had
LEAST_PUT_OFF = timedelta(seconds=1)  # until an attempt that could not be is tried again
LEASE_LOST = "LP001"  # the SQLSTATE of scheduler.refuse_lost_lease


class _CompletionBlockedError(Exception):
    """Somebody has locked what the completion must change, and its transaction was rolled back."""


Report = Callable[[Attempt, Outcome], None]


class Slots:
    """A fixed number of threads that run attempts and report how each ended."""

    def __init__(
        self,
        count: int,
        registry: Registry,
        connect: Callable[[], HandlerConnection],
        pooled: bool,
        watchdog: Watchdog,
        monotonic: Callable[[], float],
        observe: Observe,
        report: Report,
    ) -> None:
        self.count = count
        self._registry = registry
        self._connect = connect
        self._pooled = pooled
        self._watchdog = watchdog
        self._monotonic = monotonic
        self._observe = observe
        self._report = report
        self._secrets = Secrets()
        self._ready: SimpleQueue[Attempt | None] = SimpleQueue()
        self._draining = False
        self._closing = False
        self._loop_thread = Thread(target=self._run_loop, name="scheduler-loop", daemon=True)
        for kind in registry:
            if kind.isolated:  # here, or each of its attempts would say that it cannot be found
                find(kind.handler.__module__, kind.handler.__qualname__, kind.name)
        self._isolated = [Isolated() for _ in range(count)]
        self._threads = [
            Thread(target=self._work, args=[own], name=f"scheduler-slot-{n}", daemon=True)
            for n, own in enumerate(self._isolated)
        ]

    def start(self) -> None:
        """Start the threads and the event loop."""
        self._loop = asyncio.new_event_loop()
        self._loop_thread.start()
        for thread in self._threads:
            thread.start()

    def submit(self, attempt: Attempt) -> None:
        """Run an attempt as soon as a slot is free."""
        self._ready.put(attempt)

    def drain(self) -> None:
        """Start nothing any more: what waits is reported as released, and free threads end."""
        self._draining = True
        # Here, not when a thread is free: that may be never, and the attempts would count.
        self.withdraw()
        for _ in self._threads:
            self._ready.put(None)

    def waiting(self) -> int:
        """How many attempts no thread has taken yet."""
        return self._ready.qsize()

    def withdraw(self) -> None:
        """Report as released what no thread has taken yet."""
        with suppress(Empty):
            while True:
                attempt = self._ready.get_nowait()
                if attempt is not None:
                    self._report(attempt, Outcome("released"))

    def close(self) -> None:
        """End the event loop and the handlers in processes; a thread whose handler does not return
        ends with the process."""
        self._closing = True
        for own in self._isolated:
            own.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run_loop(self) -> None:
        try:
            while not self._closing:
                # A handler that calls sys.exit() ends the loop with it. Its attempt has the error;
                # the loop goes on, or every other handler in it would wait for ever.
                with suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
        finally:
            self._loop.close()

    def _work(self, isolated: Isolated) -> None:
        connection: HandlerConnection | None = None
        while (attempt := self._ready.get()) is not None:
            try:
                connection = self._attempt(attempt, connection, isolated)
            except BaseException as error:  # noqa: BLE001 - logged and reported
                # A slot that died would keep its task for ever: the keeper goes on renewing it.
                event(log, logging.ERROR, "slot-broken", exc_info=True, task=attempt.task)
                self._report(attempt, Outcome("failed", type(error).__name__))
        isolated.end()
        if connection is not None:
            connection.close()

    def _attempt(
        self, attempt: Attempt, connection: HandlerConnection | None, isolated: Isolated
    ) -> HandlerConnection | None:
        """Run one attempt and report how it ended; returns the session for the next one."""
        if self._draining and not attempt.lost:
            self._report(attempt, Outcome("released"))
            return connection
        kind = self._registry[attempt.kind]
        if kind.style == "transactional":
            try:
                connection = self._session(attempt, connection)
            except psycopg.Error as error:
                text = one_line(error)
                event(log, logging.WARNING, "no-connection", task=attempt.task, error=text)
                # The handler did not start: give the attempt back rather than count it. Pause, or
                # a server without free connections would see the task claimed in circles.
                time.sleep(PAUSE)
                self._report(attempt, Outcome("released"))
                return connection
        # The last moment to look: this thread may have been stopped since the claim.
        if self._too_late(attempt):
            self._report(attempt, Outcome("lost"))
            return connection
        self._report(attempt, self._run(kind, attempt, connection, isolated))
        return connection

    def _run(
        self,
        kind: Kind[Any],
        attempt: Attempt,
        connection: HandlerConnection | None,
        isolated: Isolated,
    ) -> Outcome:
        try:
            # An isolated handler's process loads it: a model's validators are its code as well.
            payload = None if kind.isolated else kind.load(attempt.payload)
        except PayloadError as error:
            return Outcome("failed", self._secrets.redact(str(error)))
        except BaseException as error:  # noqa: BLE001 - a validator may raise even SystemExit
            return Outcome("failed", describe(error, self._secrets.redact))
        attempt.give_secrets(partial(self._secrets.resolve, kind.name, kind.secrets))
        self._observe("started", attempt.lease, "")
        began = self._monotonic()
        try:
            if kind.isolated:
                isolated.run(kind, attempt, self._watchdog)
            elif kind.style == "async":
                self._run_async(kind, attempt, payload)
            elif connection is not None and kind.style == "transactional":
                self._run_transactional(kind, attempt, payload, connection)
            else:
                refuse_unfinished(kind, kind.handler(attempt, payload))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its attempt
            outcome = self._ended_by(attempt, error)
        else:
            outcome = Outcome("committed" if kind.style == "transactional" else "completed")
        self._observe("finished", attempt.lease, outcome.what)
        return replace(outcome, seconds=self._monotonic() - began)

    def _run_async(self, kind: Kind[Any], attempt: Attempt, payload: Any) -> None:
        # The interrupt cancels the task in the loop, not the future here: that would end at once,
        # and the attempt be given to others while its coroutine still cleans up.
        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            cancel = partial(self._loop.call_soon_threadsafe, task.cancel)
            with self._watchdog.interruptible(attempt, cancel):
                # Another coroutine may have kept the loop to itself since this one was sent there.
                if self._too_late(attempt):
                    raise asyncio.CancelledError
                refuse_unfinished(kind, await kind.handler(attempt, payload))

        asyncio.run_coroutine_threadsafe(body(), self._loop).result()

    def _run_transactional(
        self, kind: Kind[Any], attempt: Attempt, payload: Any, connection: HandlerConnection
    ) -> None:
        with self._watchdog.interruptible(attempt, connection.shut):
            try:
                with self._watchdog.limited(connection, CONNECT_TIMEOUT_SECONDS):
                    begin_attempt(connection, attempt.lease, attempt.lease_length)
                refuse_unfinished(kind, kind.handler(attempt, payload, connection))
                _refuse_broken_transaction(kind, connection)
                connection.reset_adapters()
            except BaseException as error:
                _roll_back(connection)
                if isinstance(error, psycopg.Error):
                    # Perhaps this server is read-only by now: the next attempt asks for another.
                    connection.close()
                raise
            began = self._monotonic()
            try:
                complete_and_commit(connection, attempt.lease)
            except BaseException as error:
                # If the lease is lost the completion raises in the server, which then skips the
                # COMMIT; closing the session rolls the handler's writes back.
                connection.close()
                # Not for a lock of the handler's own making, for which it need not wait so long.
                waited = self._monotonic() - began >= attempt.lease_length.total_seconds() / 4
                if isinstance(error, psycopg.errors.LockNotAvailable) and waited:
                    raise _CompletionBlockedError(one_line(error)) from error
                raise

    def _too_late(self, attempt: Attempt) -> bool:
        """Whether the lease is lost, or over by now: then the handler must not start."""
        if attempt.lost or attempt.believed_until <= self._monotonic():
            self._watchdog.lose(attempt, "not renewed in time")
            return True
        return False

    def _session(self, attempt: Attempt, connection: HandlerConnection | None) -> HandlerConnection:
        """A session for the next transactional handler: the last one's as if it were new, or new.

        One that ended while it was idle, or whose server has become read-only, is found out here:
        the handler has not started yet, and its attempt shall not fail for it. Raises psycopg.Error
        if no session can be had.
        """
        if connection is not None and not connection.closed:
            try:
                with (
                    self._watchdog.interruptible(attempt, connection.shut),
                    self._watchdog.limited(connection, CONNECT_TIMEOUT_SECONDS),
                ):
                    self._refresh(connection)
                # The server tells of a change with its next reply; a pooler what it once heard.
                read_only = connection.info.parameter_status("default_transaction_read_only")
                if self._pooled or read_only != "on":
                    return connection
            except psycopg.Error as error:
                event(log, logging.INFO, "slot-session-ended", error=one_line(error))
            connection.close()
        return self._connect()

    def _refresh(self, connection: HandlerConnection) -> None:
        """What an earlier handler set, locked, created or listened to is not the next one's. The
        session's start-up settings stay."""
        connection.reset()
        if self._pooled:
            # Which session this is sent to is the pooler's choice, and others use it, too: nothing
            # of it is ours to reset. It only has to be there.
            connection.execute("select")
        else:
            connection.execute("discard all")  # the role, too

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Outcome:
        if isinstance(error, psycopg.Error) and error.sqlstate == LEASE_LOST:
            self._observe("refused", attempt.lease, "complete")
            self._watchdog.lose(attempt, "refused by the fence")
            return Outcome("lost")
        if attempt.lost:
            return Outcome("lost")
        if isinstance(error, Snooze):
            return Outcome("snoozed", delay=error.delay)
        if isinstance(error, _CompletionBlockedError):
            # Nothing of the handler's is left, and it did nothing wrong: an attempt that counted
            # would bring a task to the dead letters because of somebody else's long transaction.
            text = str(error)
            event(log, logging.WARNING, "completion-blocked", task=attempt.task, error=text)
            return self._put_off(attempt, "completion-blocked")
        if isinstance(error, IsolatedNotStartedError):
            event(log, logging.WARNING, "no-process", task=attempt.task, error=str(error))
            time.sleep(PAUSE)  # as where there is no connection
            return self._put_off(attempt, "no-process")
        if isinstance(error, IsolatedHandlerError):
            return Outcome("failed", str(error))
        if isinstance(error, CancelledError):
            return Outcome("failed", "interrupted: the worker shut down before the handler ended")
        return Outcome("failed", describe(error, self._secrets.redact))

    def _put_off(self, attempt: Attempt, why: str) -> Outcome:
        """Give an attempt back for a while, for no fault of its own. Not at once: it is older than
        most that wait, and would keep its slot from these."""
        self._observe("put-off", attempt.lease, why)
        return Outcome("snoozed", delay=max(attempt.lease_length / 2, LEAST_PUT_OFF))


def _roll_back(connection: HandlerConnection) -> None:
    """Undo what a handler wrote. Where that cannot be said the session's end does it."""
    if connection.busy:  # and would keep this thread waiting, for itself
        connection.close()
        return
    try:
        connection.execute("rollback")
    except psycopg.Error as error:
        event(log, logging.INFO, "slot-session-unusable", error=one_line(error))
        connection.close()


def _refuse_broken_transaction(kind: Kind[Any], connection: HandlerConnection) -> None:
    """What the handler did to its transaction, said in its own words rather than the server's."""
    if connection.busy:
        raise RuntimeError(
            f"the handler of kind {kind.name!r} left a COPY, a stream of rows or a pipeline open on"
            " its connection: use each in a `with`, or read it to its end"
        )
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise RuntimeError(
            f"the handler of kind {kind.name!r} caught a database error and went on, but its"
            " transaction cannot commit any more: put what may fail in a `with"
            " connection.transaction():` of its own"
        )
