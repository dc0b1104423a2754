"""Runs the handlers of isolated kinds in a process of their own, one process a slot.

A handler that keeps the interpreter to itself starves every thread of the worker, the one that
renews leases too. In a process of its own it starves only itself, and it can be stopped for good:
when its lease is lost, or the worker's time to shut down is over, the process is killed.

The process is a new interpreter (multiprocessing's "spawn"), started when its slot first needs it
and used again for later attempts. It inherits stdout, stderr, environment and current directory,
but nothing that the worker's code set up: logging, for one, is configured where the application's
module does it. Processes that a handler starts by itself are its own to end.

Nothing is left behind if the worker is killed: a thread sees the worker's end, and for a handler
that lets no thread run the kernel does (Linux only).
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import inf
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from scheduler.errors import PayloadError
from scheduler.kinds import Kind, Snooze
from scheduler.lease import Attempt, Lease
from scheduler.outcome import Outcome, describe, refuse_unfinished
from scheduler.secret_references import Secrets
from scheduler.watchdog import Watchdog

T = TypeVar("T")

PROCESS_NAME = "scheduler-isolated"
LONGEST_START = 120.0  # seconds until the process must be ready: it imports the main module
LONGEST_GOODBYE = 2.0  # seconds that a process with nothing to do gets to end by itself
LONGEST_DEATH = 5.0  # seconds that the kernel gets to end a killed process
LOOK_EVERY = 1.0  # seconds between looks at a process whose pipe says nothing
LOOK_FOR_END = 0.01  # seconds between looks at a process that is about to end
PR_SET_PDEATHSIG = 1  # of prctl(2)
READY = "ready"  # what the process says first

_SPAWN = multiprocessing.get_context("spawn")
_TO_THE_GROUP = (signal.SIGINT, signal.SIGTERM)  # a terminal or supervisor sends these to all

# Starting a process reaps all that have ended, those of other slots too. Whoever starts, kills or
# reaps holds this, so that nobody kills by the number of a process that was just reaped.
_processes = Lock()


class IsolatedHandlerError(Exception):
    """The handler failed in its process; the message is the task's error."""


class IsolatedNotStartedError(Exception):
    """This machine cannot start a process now. No handler began; the message is the system's."""


class Request(NamedTuple):
    """An attempt as plain data, on its way to the process that runs it."""

    module: str
    qualname: str
    kind: str
    lease: Lease
    payload: str
    number: int
    max_attempts: int
    due: datetime
    lease_length: timedelta
    schedule: str | None
    occurrence: datetime | None


class Isolated:
    """One slot's process for isolated handlers. Its methods are for the slot's thread, except
    `interrupt` and `close`, which any thread may call.

    The slot's thread must start the process itself: the kernel's promise to kill the process is
    bound to the thread that started it, and this one lives for as long as the process is wanted.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # of the three that `interrupt` and `close` use
        self._pipe: Connection | None = None
        self._interrupted = False
        self._closed = False
        self._process: SpawnProcess | None = None
        self._ready = False

    def run(self, kind: Kind[Any], attempt: Attempt, watchdog: Watchdog) -> None:
        """Run one attempt and return when its handler has.

        Raises Snooze if the handler did, IsolatedHandlerError if it failed or its process ended,
        CancelledError if it was interrupted, IsolatedNotStartedError if there can be no process.
        """
        if self._process is not None and not self._alive():
            self.end()  # it was killed while it had nothing to do: no attempt's fault
        with self._lock:
            self._interrupted = self._closed
        reply: Outcome | None = None
        with watchdog.interruptible(attempt, self.interrupt):
            if self._process is None:
                try:
                    self._start()
                except OSError as error:  # no memory, no descriptors, no process numbers left
                    raise IsolatedNotStartedError(str(error)) from error
            ready = self._ready or self._says_ready()
            if ready:
                reply = self._ask(_request(kind, attempt))
        # From here on nobody interrupts this attempt any more.
        if reply is None or self._interrupted:
            how = self._end(0.0 if self._interrupted else LONGEST_GOODBYE)
            if reply is None and self._interrupted:
                raise CancelledError
            if reply is None and not ready:
                raise IsolatedHandlerError(
                    f"the process for isolated handlers {how} before it was ready, for which it has"
                    f" {LONGEST_START:.0f} s: see what it wrote to stderr; it imports the worker's"
                    " main script, whose own work must be under `if __name__ == '__main__':`"
                )
            if reply is None:
                raise IsolatedHandlerError(f"the process that ran the handler {how}")
        assert reply is not None
        if reply.what == "snoozed":
            raise Snooze(reply.delay)
        if reply.what == "failed":
            raise IsolatedHandlerError(reply.error)

    def interrupt(self) -> None:
        """Make `run` kill the process and return. Does not block.

        It only shuts the pipe, which the slot's thread waits on: killing and reaping stay with one
        thread, so no process's number can be used after it was given to another.
        """
        with self._lock:
            self._interrupted = True
            if self._pipe is not None:
                borrowed = socket.socket(fileno=self._pipe.fileno())
                try:
                    with suppress(OSError):  # the process has gone already
                        borrowed.shutdown(socket.SHUT_RDWR)
                finally:
                    borrowed.detach()

    def close(self) -> None:
        """Interrupt what runs and let nothing run again: the worker's life is over."""
        with self._lock:
            self._closed = True
        self.interrupt()

    def end(self) -> None:
        """End the process, if there is one: by itself if it does so soon."""
        if self._process is not None:
            self._end(LONGEST_GOODBYE)

    def _start(self) -> None:
        ours, theirs = _SPAWN.Pipe()
        try:
            with self._lock:
                self._pipe = ours
            self._ready = False
            process = _SPAWN.Process(target=serve, args=(theirs,), name=PROCESS_NAME)
            # First, by itself: starting this helper of multiprocessing's unblocks the signals.
            resource_tracker.ensure_running()
            with _processes:
                # The process is born with these blocked, so that they cannot kill it before it has
                # handlers of its own for them.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_THE_GROUP)
                try:
                    process.start()
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._process = process
        except BaseException:
            self._drop_pipe()
            raise
        finally:
            theirs.close()

    def _says_ready(self) -> bool:
        said = self._talk(lambda pipe: self._hear(pipe, LONGEST_START))
        self._ready = said is not None
        return self._ready

    def _ask(self, request: Request) -> Outcome | None:
        def ask(pipe: Connection) -> Outcome | None:
            pipe.send(request)
            heard: Outcome | None = self._hear(pipe, inf)
            return heard

        return self._talk(ask)

    def _talk(self, talk: Callable[[Connection], T]) -> T | None:
        """What came back; None if the process is gone or the attempt was interrupted."""
        with self._lock:
            # An interrupt that came before there was a pipe had nothing to shut.
            if self._interrupted or self._pipe is None:
                return None
            pipe = self._pipe
        try:
            return talk(pipe)
        except (EOFError, OSError):
            return None

    def _hear(self, pipe: Connection, seconds: float) -> Any:
        """The next message; None if none came in time, or if the process is gone."""
        until = time.monotonic() + seconds
        while not pipe.poll(LOOK_EVERY):
            # A process that outlives ours because it was forked from it keeps the pipe open.
            if time.monotonic() > until or not (self._alive() or pipe.poll()):
                return None
        return pipe.recv()

    def _alive(self) -> bool:
        with _processes:
            return self._process is not None and self._process.is_alive()

    def _end(self, seconds: float) -> str:
        """End the process, killing it after so many seconds; says how it ended."""
        process, self._process = self._process, None
        self._drop_pipe()  # without a worker to ask it, it ends
        assert process is not None
        code = _exit_code(process, seconds)
        if code is None:
            with _processes:
                process.kill()
            code = _exit_code(process, LONGEST_DEATH)
        if code is None:
            return "ended in an unknown way"
        process.close()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name
            name = str(-code)
        return f"was killed by signal {name}"

    def _drop_pipe(self) -> None:
        with self._lock:
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()


def _exit_code(process: SpawnProcess, seconds: float) -> int | None:
    """How the process ended, once it has; None if it did not in time."""
    until = time.monotonic() + seconds
    while True:
        # Not by waiting for its sentinel: what it forked keeps that open, and it may close it.
        with _processes:
            code = process.exitcode
        if code is not None or time.monotonic() > until:
            return code
        time.sleep(LOOK_FOR_END)


def find(module: str, qualname: str, name: str) -> Kind[Any]:
    """The isolated kind whose handler has this module and name; as its process looks it up.

    Raises ValueError if there is something else, and what importing the module raises.
    """
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Kind) and found.name == name:
        return found
    raise ValueError(
        f"{module}.{qualname} is not the kind {name!r}, and the process for isolated handlers finds"
        " it only there: register the handler with a decorator where it is defined"
    )


def refuse_isolated_worker() -> None:
    """Raise RuntimeError in a process for isolated handlers: it is about to become a worker."""
    if multiprocessing.current_process().name == PROCESS_NAME:
        raise RuntimeError(
            "the process for isolated handlers imports the worker's main script, which starts a"
            " worker when it is imported: put that under `if __name__ == '__main__':`"
        )


def _request(kind: Kind[Any], attempt: Attempt) -> Request:
    return Request(
        module=kind.handler.__module__,
        qualname=kind.handler.__qualname__,
        kind=kind.name,
        lease=attempt.lease,
        payload=attempt.payload,
        number=attempt.number,
        max_attempts=attempt.max_attempts,
        due=attempt.due,
        lease_length=attempt.lease_length,
        schedule=attempt.schedule,
        occurrence=attempt.occurrence,
    )


# In the process.


def serve(pipe: Connection) -> None:
    """The process's life: run what is asked for until the worker wants no more."""
    _end_with_the_worker()
    for number in _TO_THE_GROUP:
        # The worker decides when this ends. Not SIG_IGN, which what a handler starts would inherit.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_THE_GROUP)
    secrets = Secrets()
    with suppress(EOFError, OSError):  # the worker has closed its end
        pipe.send(READY)
        while True:
            pipe.send(_answer(pipe.recv(), secrets))


def _end_with_the_worker() -> None:
    worker = multiprocessing.parent_process()
    assert worker is not None
    if sys.platform == "linux":
        # For a handler that lets no thread run. Where the kernel refuses, the thread has to do.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != worker.pid:
            os._exit(1)  # the worker died before the kernel was asked

    def watch() -> None:
        worker.join()
        os._exit(1)

    Thread(target=watch, name="scheduler-watch", daemon=True).start()


def _answer(request: Request, secrets: Secrets) -> Outcome:
    try:
        try:
            kind = find(request.module, request.qualname, request.kind)
            payload = kind.load(request.payload)
        except PayloadError as error:
            return Outcome("failed", secrets.redact(str(error)))
        attempt = _attempt(request)
        attempt.give_secrets(partial(secrets.resolve, kind.name, kind.secrets))
        try:
            refuse_unfinished(kind, kind.handler(attempt, payload))
        except Snooze as snooze:
            return Outcome("snoozed", delay=snooze.delay)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its attempt
        return Outcome("failed", describe(error, secrets.redact))
    return Outcome("completed")


def _attempt(request: Request) -> Attempt:
    """The attempt as its handler sees it. It is never lost: it is killed instead."""
    return Attempt(
        request.lease,
        request.kind,
        request.payload,
        request.number,
        request.max_attempts,
        request.due,
        request.lease_length,
        inf,
        request.schedule,
        request.occurrence,
    )
