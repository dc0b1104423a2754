"""Runs handlers: plain ones in a thread, async ones in an event loop, transactional ones with a
connection whose writes commit together with the task's completion."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal

import psycopg
from psycopg import Connection, Cursor
from psycopg.errors import PipelineAborted
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from scheduler.errors import PayloadError
from scheduler.finish import LONGEST_ERROR, begin_attempt, complete_in_transaction
from scheduler.kinds import Kind, Registry, Snooze
from scheduler.lease import Attempt
from scheduler.watchdog import Observe, Watchdog, shut

log = logging.getLogger("scheduler")

PAUSE = 0.5  # seconds before an attempt is given back because no connection could be had
MOST_CAUSES = 5  # exceptions behind an exception that a task's error names
MOST_FRAMES = 6  # of a traceback in a task's error: where the handler was, and the innermost
LEASE_LOST = "LP001"  # the SQLSTATE of scheduler.refuse_lost_lease


_NOT_THEIRS = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a handler ended, before the database has heard of it.

    `committed`: its own transaction completed the task. `lost`: nothing may be written.
    """

    what: Literal["completed", "failed", "snoozed", "released", "committed", "lost"]
    error: str = ""
    delay: timedelta = timedelta(0)


Report = Callable[[Attempt, Outcome], None]


class Slots:
    """A fixed number of threads that run attempts and report how each ended."""

    def __init__(
        self,
        count: int,
        registry: Registry,
        connect: Callable[[], Connection],
        watchdog: Watchdog,
        monotonic: Callable[[], float],
        observe: Observe,
        report: Report,
    ) -> None:
        self.count = count
        self._registry = registry
        self._connect = connect
        self._watchdog = watchdog
        self._monotonic = monotonic
        self._observe = observe
        self._report = report
        self._ready: SimpleQueue[Attempt | None] = SimpleQueue()
        self._draining = False
        self._closing = False
        self._loop_thread = Thread(target=self._run_loop, name="scheduler-loop", daemon=True)
        self._threads = [
            Thread(target=self._work, name=f"scheduler-slot-{n}", daemon=True) for n in range(count)
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
        with suppress(Empty):
            while True:
                attempt = self._ready.get_nowait()
                if attempt is not None:
                    self._report(attempt, Outcome("released"))
        for _ in self._threads:
            self._ready.put(None)

    def close(self) -> None:
        """End the event loop; a thread whose handler does not return ends with the process."""
        self._closing = True
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

    def _work(self) -> None:
        connection: Connection | None = None
        while (attempt := self._ready.get()) is not None:
            try:
                connection = self._attempt(attempt, connection)
            except BaseException as error:
                # A slot that died would keep its task for ever: the keeper goes on renewing it.
                log.exception("the handler of task %d broke its slot's own code", attempt.task)
                self._report(attempt, Outcome("failed", type(error).__name__))
        if connection is not None:
            connection.close()

    def _attempt(self, attempt: Attempt, connection: Connection | None) -> Connection | None:
        """Run one attempt and report how it ended; returns the session for the next one."""
        if self._draining and not attempt.lost:
            self._report(attempt, Outcome("released"))
            return connection
        kind = self._registry[attempt.kind]
        if kind.style == "transactional" and (connection is None or connection.closed):
            try:
                connection = self._connect()
                connection.prepare_threshold = None  # `discard all` forgets prepared statements
            except psycopg.Error as error:
                log.warning("task %d cannot start, no connection: %s", attempt.task, error)
                # The handler did not start: give the attempt back rather than count it. Pause, or
                # a server without free connections would see the task claimed in circles.
                time.sleep(PAUSE)
                self._report(attempt, Outcome("released"))
                return connection
        # The last moment to look: this thread may have been stopped since the claim.
        if attempt.lost or attempt.believed_until <= self._monotonic():
            self._watchdog.lose(attempt, "not renewed in time")
            self._report(attempt, Outcome("lost"))
            return connection
        self._report(attempt, self._run(kind, attempt, connection))
        return connection

    def _run(self, kind: Kind[Any], attempt: Attempt, connection: Connection | None) -> Outcome:
        try:
            payload = kind.load(attempt.payload)
        except PayloadError as error:
            return Outcome("failed", str(error))
        except BaseException as error:  # noqa: BLE001 - a validator may raise even SystemExit
            return Outcome("failed", describe(error))
        self._observe("started", attempt.lease, "")
        try:
            if kind.style == "async":
                self._run_async(kind, attempt, payload)
            elif connection is not None and kind.style == "transactional":
                self._run_transactional(kind, attempt, payload, connection)
            else:
                _refuse_unfinished(kind, kind.handler(attempt, payload))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its attempt
            outcome = self._ended_by(attempt, error)
        else:
            outcome = Outcome("committed" if kind.style == "transactional" else "completed")
        self._observe("finished", attempt.lease, outcome.what)
        return outcome

    def _run_async(self, kind: Kind[Any], attempt: Attempt, payload: Any) -> None:
        # The interrupt cancels the task in the loop, not the future here: that would end at once,
        # and the attempt be given to others while its coroutine still cleans up.
        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            cancel = partial(self._loop.call_soon_threadsafe, task.cancel)
            with self._watchdog.interruptible(attempt, cancel):
                _refuse_unfinished(kind, await kind.handler(attempt, payload))

        asyncio.run_coroutine_threadsafe(body(), self._loop).result()

    def _run_transactional(
        self, kind: Kind[Any], attempt: Attempt, payload: Any, connection: Connection
    ) -> None:
        with self._watchdog.interruptible(attempt, lambda: shut(connection)):
            self._refresh(connection)
            transaction = connection.transaction()
            transaction.__enter__()
            try:
                begin_attempt(connection, attempt.lease, attempt.lease_length)
                _refuse_unfinished(kind, kind.handler(attempt, payload, connection))
                _refuse_broken_transaction(kind, connection)
            except BaseException as error:
                transaction.__exit__(*sys.exc_info())
                if isinstance(error, psycopg.Error):
                    # Perhaps this server is read-only by now: the next attempt asks for another.
                    connection.close()
                raise
            # One flight for both: between the completion and its COMMIT there is no moment in
            # which this process could be stopped holding the row. If the lease is lost the
            # completion raises in the server, which then skips the COMMIT; closing the session
            # rolls the handler's writes back.
            try:
                with connection.pipeline():
                    complete_in_transaction(connection, attempt.lease)
                    transaction.__exit__(None, None, None)
            except psycopg.Error as error:
                connection.close()
                # The completion's error and then the COMMIT's "aborted" come out of the pipeline as
                # either, depending on when they arrived.
                cause = error.__context__
                if isinstance(error, PipelineAborted) and isinstance(cause, psycopg.Error):
                    raise cause from None
                raise

    def _refresh(self, connection: Connection) -> None:
        """Give the next handler a session as if it were new: what an earlier one set, locked,
        created or listened to is not its own. The session's start-up settings stay."""
        connection.row_factory = tuple_row
        connection.cursor_factory = Cursor
        connection.execute("reset role")
        connection.execute("discard all")

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Outcome:
        if isinstance(error, psycopg.Error) and error.sqlstate == LEASE_LOST:
            self._observe("refused", attempt.lease, "complete")
            self._watchdog.lose(attempt, "refused by the fence")
            return Outcome("lost")
        if attempt.lost:
            return Outcome("lost")
        if isinstance(error, Snooze):
            return Outcome("snoozed", delay=error.delay)
        if isinstance(error, CancelledError):
            return Outcome("failed", "interrupted: the worker shut down before the handler ended")
        return Outcome("failed", describe(error))


def _refuse_unfinished(kind: Kind[Any], returned: object) -> None:
    """A coroutine, generator or future that a handler returns is work not done: no completion."""
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    elif not (
        inspect.isawaitable(returned)
        or inspect.isasyncgen(returned)
        or isinstance(returned, Future)
    ):
        return
    raise TypeError(
        f"the handler of kind {kind.name!r} returned {type(returned).__name__}, for which nobody"
        " waits: do the work in the function, or register an `async def`"
    )


def _refuse_broken_transaction(kind: Kind[Any], connection: Connection) -> None:
    """What the handler did to its transaction, said in its own words rather than the server's."""
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise RuntimeError(
            f"the handler of kind {kind.name!r} caught a database error and went on, but its"
            " transaction cannot commit any more: put what may fail in a `with"
            " connection.transaction():` of its own"
        )


def describe(error: BaseException) -> str:
    """An exception as text for the task's last error: its message first, then what caused it, then
    where in the handler it arose."""
    lines = "".join(_said(error))[: LONGEST_ERROR // 2]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        said = "".join(_said(cause)).strip()
        lines += f"caused by {said[: LONGEST_ERROR // 10]}\n"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    frames = traceback.extract_tb(error.__traceback__)
    # The way to the handler is the same for all and tells nobody anything.
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)] or frames
    shown = theirs if len(theirs) <= MOST_FRAMES else [theirs[0], *theirs[1 - MOST_FRAMES :]]
    return lines + "\n" + "".join(traceback.format_list(shown))


def _said(error: BaseException) -> list[str]:
    """What an exception says of itself, even if it cannot be asked."""
    try:
        return traceback.format_exception_only(error)
    except Exception:  # noqa: BLE001 - an exception's own methods may raise anything
        return [f"{type(error).__name__}\n"]
