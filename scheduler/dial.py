"""Connects to a host within one bound on all that takes, and tells whether one is this machine."""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any


def dial(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the first address that answers.

    Each address has an equal share of the time that is left, so that one that swallows everything
    does not keep us from the next. Raises TimeoutError, or OSError for what else goes wrong.
    """
    deadline = time.monotonic() + seconds
    addresses = _look_up(host, port, seconds)
    failure: OSError = TimeoutError("timed out")
    for left, (family, kind, protocol, _, address) in zip(
        range(len(addresses), 0, -1), addresses, strict=True
    ):
        share = (deadline - time.monotonic()) / left
        if share <= 0:
            raise TimeoutError("timed out") from failure
        try:  # a machine without IPv6 may have addresses of it
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            connection.settimeout(share)
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _look_up(host: str, port: int, seconds: float) -> list[tuple[Any, ...]]:
    """The addresses. In a thread, since nothing else bounds how long a look-up takes; one that is
    given up ends by itself, once the resolver has asked all its servers."""
    answers: SimpleQueue[list[tuple[Any, ...]] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except UnicodeError:  # a label that is empty or too long
            answers.put(OSError("that is no name of a host"))
        except OSError as error:
            answers.put(error)

    Thread(target=ask, name="look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError("timed out") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def is_loopback(host: str) -> bool:
    """Whether what goes to this host stays on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
