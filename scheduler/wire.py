"""Connections that another thread can cut off at any time.

A call that waits for the network ends at once if its socket is shut, and by nothing else. But the
connection's own descriptor is not for another thread to touch: libpq closes it by itself when the
peer is gone, and so may a handler, and the number is given to whatever is opened next. Between
reading it and using it that could be another connection. So whoever is to shut a socket has a
descriptor of its own for it, which nobody closes while it is being used.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any

import psycopg
from psycopg import Connection


class Wire:
    """A second descriptor of a socket, to shut it by. To be had early: when it is needed there may
    be none left. Raises OSError if there is none now."""

    def __init__(self, descriptor: int) -> None:
        self._lock = Lock()
        self._descriptor: int | None = None
        self._descriptor = os.dup(descriptor)

    def shut(self) -> None:
        """Shut the socket, so that a call waiting on it fails now. Safe from any thread."""
        with self._lock:
            if self._descriptor is None:
                return
            borrowed = socket.socket(fileno=self._descriptor)
            try:
                with suppress(OSError):  # the peer has ended it, which is what was wanted
                    borrowed.shutdown(socket.SHUT_RDWR)
            finally:
                borrowed.detach()

    def close(self) -> None:
        """Give the descriptor back. To the peer a socket is open for as long as any is."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __del__(self) -> None:
        self.close()


class WorkerConnection(Connection):
    """A connection that can be shut from another thread."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        try:
            self._wire = Wire(self.pgconn.socket)
        except OSError as error:  # as libpq says that it has no descriptor
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no second descriptor: {error.strerror}") from error

    def shut(self) -> None:
        """Cut it off, so that a call waiting on it fails now. Safe from any thread, at any time."""
        self._wire.shut()

    def close(self) -> None:
        """Close it. To the server it is open for as long as any descriptor is."""
        try:
            super().close()
        finally:
            self._wire.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """As of any connection. One that broke is not closed by that."""
        try:
            super().__exit__(exc_type, exc_val, exc_tb)
        finally:
            self.close()
