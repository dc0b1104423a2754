"""An actor: a thread that runs one function at a time on a connection that leads through the gate.

Thread and connection are kept from schedule to schedule; a connection that was lost is replaced.
"""

from __future__ import annotations

import socket
from queue import SimpleQueue
from threading import Thread

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from chaos.explore.program import Actor, Ending


class ActorThread:
    """Runs an actor's function; `wake` becomes readable when it has ended."""

    def __init__(self, name: str, body: Actor, dsn: str, autocommit: bool) -> None:
        self.wake, self._bell = socket.socketpair()
        self.ending: Ending | None = None
        self._body = body
        self._dsn = dsn
        self._autocommit = autocommit
        self._connection: Connection | None = None
        self._jobs: SimpleQueue[bool] = SimpleQueue()
        self._thread = Thread(target=self._loop, name=f"actor {name}", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Run the function from its beginning."""
        self.ending = None
        self._jobs.put(True)

    def close(self) -> None:
        """End the thread; the sockets of its connections must have been cut before."""
        self._jobs.put(False)
        self._thread.join()
        if self._connection is not None:
            self._connection.close()
        self.wake.close()
        self._bell.close()

    def _loop(self) -> None:
        while self._jobs.get():
            self.ending = self._run()
            self._bell.send(b".")

    def _run(self) -> Ending:
        try:
            connection = self._connected()
            try:
                returned = self._body(connection)
            finally:
                # What a process leaves open is rolled back when it ends. A step like any other.
                if connection.info.transaction_status in (
                    TransactionStatus.INTRANS,
                    TransactionStatus.INERROR,
                ):
                    connection.rollback()
        except BaseException as error:  # noqa: BLE001 - whatever the function raises is its ending
            return Ending(error=error)
        return Ending(returned)

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.closed:
            connection = psycopg.connect(self._dsn)
            self._connection = connection
        # As new: the function may have changed these in the schedule before.
        connection.autocommit = self._autocommit
        connection.isolation_level = connection.read_only = connection.deferrable = None
        connection.row_factory = tuple_row
        return connection
