"""Connecting: bounded in all, whatever a name's addresses do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest

from scheduler.dial import dial, is_loopback


@pytest.fixture
def full() -> Iterator[tuple[str, int]]:
    """An address that swallows whoever comes: its queue is full, and the rest is not answered."""
    with ExitStack() as open_for_now:
        server = open_for_now.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(64):
            waiting = open_for_now.enter_context(socket.socket())
            waiting.settimeout(0.5)
            try:
                waiting.connect(server.getsockname())
            except TimeoutError:
                break
        yield server.getsockname()


def named(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Let each name have these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_an_address_that_swallows_everything_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float | None] = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        asked.append(self.gettimeout())
        if len(asked) == 1:
            raise TimeoutError("timed out")
        real(self, address)

    with socket.create_server(("127.0.0.1", 0)) as server:
        named(monkeypatch, ("127.0.0.1", 1), server.getsockname())
        monkeypatch.setattr(socket.socket, "connect", connect)
        with dial("any", 1, 60) as connection:
            assert connection.getpeername() == server.getsockname()
    first, second = asked
    assert 0 < (first or 0) <= 30 < (second or 0) <= 60


def test_an_address_of_a_kind_that_the_machine_lacks_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = [
            (9999, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", server.getsockname()),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with dial("any", 1, 60) as connection:
            assert connection.getpeername() == server.getsockname()


def test_all_addresses_together_have_the_time_that_one_has(
    monkeypatch: pytest.MonkeyPatch, full: tuple[str, int]
) -> None:
    given: list[float] = []
    real = socket.socket.settimeout

    def noting(self: socket.socket, seconds: float) -> None:
        given.append(seconds)
        real(self, seconds)

    monkeypatch.setattr(socket.socket, "settimeout", noting)
    named(monkeypatch, *[full] * 4)
    with pytest.raises(TimeoutError):
        dial("any", 1, 0.2)
    assert sum(given) <= 0.2 + 1e-6


def test_a_name_that_is_not_looked_up_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Event()

    def silent(*_: Any, **__: Any) -> list[Any]:
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    try:
        with pytest.raises(TimeoutError):
            dial("any", 1, 0.05)
    finally:
        over.set()


@pytest.mark.parametrize("name", ["no.such.host.invalid", "a..b", "a" * 64 + ".example"])
def test_what_is_no_host_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith(".invalid"):

        def unknown(*_: Any, **__: Any) -> list[Any]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match=r"not known|no name of a host"):
        dial(name, 1, 30)


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)),
        *(("10.0.0.1", False), ("example.com", False), ("", False), ("localhost.example", False)),
    ],
)
def test_loopback_is_known(host: str, is_one: bool) -> None:
    assert is_loopback(host) == is_one
