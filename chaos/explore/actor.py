"""An actor: a thread that runs one function at a time on a connection that leads through the gate.

Thread and connection are kept from schedule to schedule; a connection that was lost is replaced.
A coroutine function is given an AsyncConnection, and an event loop of the thread, kept likewise,
runs it: what goes over the wire is the same, and the gate sees no difference.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from chaos.explore.program import Actor, Ending

T = TypeVar("T")

ENDS_WITHIN = 10.0  # seconds, for a thread whose connections are cut


class ActorThread:
    """Runs an actor's function; `wake` becomes readable when it has ended."""

    def __init__(self, name: str, body: Actor, dsn: str, autocommit: bool) -> None:
        self.wake, self._bell = socket.socketpair()
        self.ending: Ending | None = None
        self._body: Callable[[Any], object] = body
        self._is_async = inspect.iscoroutinefunction(body)
        self._dsn = dsn
        self._autocommit = autocommit
        self._connection: Connection | AsyncConnection | None = None
        self._loop = asyncio.Runner()  # makes its event loop when it first has a coroutine to run
        self._jobs: SimpleQueue[bool] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"actor {name}", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Run the function from its beginning."""
        self.ending = None
        self._jobs.put(True)

    def close(self) -> None:
        """End the thread; the sockets of its connections must have been cut before."""
        self._jobs.put(False)
        self._thread.join(ENDS_WITHIN)
        if not self._thread.is_alive():  # else it waits for something besides the database
            self.wake.close()
            self._bell.close()

    def _work(self) -> None:
        while self._jobs.get():
            self.ending = self._run()
            self._bell.send(b".")
        if self._connection is not None:
            self._result(self._connection.close())
        self._loop.close()

    def _run(self) -> Ending:
        try:
            connection = self._connected()
            try:
                returned = self._result(self._body(connection))
                if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
                    raise TypeError("an actor is a function: of a generator nothing was run")
            finally:
                # What a process leaves open is rolled back when it ends. A step like any other.
                if connection.info.transaction_status in (
                    TransactionStatus.INTRANS,
                    TransactionStatus.INERROR,
                ):
                    self._result(connection.rollback())
        except BaseException as error:  # noqa: BLE001 - whatever the function raises is its ending
            return Ending(error=error)
        return Ending(returned)

    def _connected(self) -> Connection | AsyncConnection:
        connection = self._connection
        if connection is None or connection.closed:
            if self._is_async:
                connection = self._loop.run(AsyncConnection.connect(self._dsn))
            else:
                connection = psycopg.connect(self._dsn)
            self._connection = connection
        # As new: the function may have changed these in the schedule before.
        self._result(connection.set_autocommit(self._autocommit))
        self._result(connection.set_isolation_level(None))
        self._result(connection.set_read_only(None))
        self._result(connection.set_deferrable(None))
        connection.row_factory = tuple_row
        return connection

    def _result(self, given: Coroutine[Any, Any, T] | T) -> T:
        """What a call gave; if that is a coroutine, what it returns."""
        return self._loop.run(_alone(given)) if isinstance(given, Coroutine) else given


async def _alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns. A task that it leaves running would go on in another schedule."""
    try:
        return await coroutine
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
            raise RuntimeError(
                f"it left {len(left)} of its tasks running: an actor does one thing at a time"
            )
