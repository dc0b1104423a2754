"""A connection that another thread shuts: it and no other, whatever becomes of it meanwhile."""

from __future__ import annotations

import gc
import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psycopg
import pytest

from scheduler.wire import WorkerConnection
from tests.waiting import wait_for


def test_shutting_a_connection_that_is_gone_is_no_error(dsn: str) -> None:
    with WorkerConnection.connect(dsn) as connection:
        connection.execute("select 1")
        connection.shut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        connection.shut()
    connection.close()
    connection.shut()


def test_what_is_opened_while_a_connection_is_shut_is_left_alone(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own thread may close a connection at the very moment in which another shuts it, and give
    the number of its descriptor to something else."""
    connection = WorkerConnection.connect(dsn)
    number = connection.fileno()
    closing = Thread(target=connection.close)
    others: list[socket.socket] = []
    real = socket.socket.shutdown

    def late(shut: socket.socket, how: int) -> None:
        closing.start()
        wait_for(lambda: connection.closed, "the connection to be closed")
        while not any(other.fileno() == number for other in others):
            others.extend(socket.socketpair())
        real(shut, how)

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "shutdown", late)
        connection.shut()
    closing.join()
    for one, other in zip(others[::2], others[1::2], strict=True):
        one.sendall(b"there")
        assert other.recv(10) == b"there"
        one.close()
        other.close()


@pytest.mark.parametrize("how", ["closed", "broken", "dropped"])
def test_nothing_of_a_connection_stays_open(dsn: str, how: str) -> None:
    before = sockets()
    connection = WorkerConnection.connect(dsn)
    assert sockets() - before
    if how == "closed":
        connection.close()
    elif how == "broken":
        with connection:
            connection.shut()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
    else:
        connection.pgconn.finish()
        del connection
        gc.collect()
    assert sockets() - before == set()


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which they are listed
            found.add(str(descriptor.readlink()))
    return {it for it in found if it.startswith("socket:")}


def test_no_second_descriptor_is_no_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    with pytest.raises(psycopg.OperationalError, match="no second descriptor: Too many open"):
        WorkerConnection.connect(dsn)
