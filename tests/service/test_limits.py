"""The rate limit by itself, with time as an input; a body that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.types import Message, Receive, Scope, Send

from scheduler.service.limits import (
    ADDRESS_BURST,
    MOST_ADDRESSES,
    STRANGERS_BURST,
    BodyLimit,
    RateLimit,
)
from scheduler.service.problems import Problem
from scheduler.service.tokens import Caller

CALLER = Caller("a", "shop", frozenset(), None)


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(rates: RateLimit, digest: bytes, client: str = "192.0.2.1") -> Iterator[int]:
    """Counts shares until there is none."""
    number = 0
    while True:
        try:
            rates.take(digest, client)
        except Problem:
            return
        number += 1
        yield number


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    time = Time()
    rates = RateLimit(2.0, 5, time)
    rates.know(b"a", CALLER)
    assert len(list(taken(rates, b"a"))) == 4  # the first was the request that it was known by
    time.now += 0.4
    with pytest.raises(Problem) as refused:
        rates.take(b"a", "192.0.2.1")
    assert (refused.value.headers or {})["Retry-After"] == "1"
    time.now += 0.2
    assert len(list(taken(rates, b"a"))) == 1
    time.now += 3600
    assert len(list(taken(rates, b"a"))) == 5


def test_one_tokens_haste_is_not_anothers() -> None:
    rates = RateLimit(1.0, 2, Time())
    rates.know(b"a", CALLER)
    rates.know(b"b", CALLER)
    list(taken(rates, b"a"))
    assert len(list(taken(rates, b"b"))) == 1


def test_those_who_guess_tokens_share_one_bucket_and_exhaust_nobody_elses() -> None:
    rates = RateLimit(1.0, 2, Time())
    rates.know(b"a", CALLER)
    for guess in range(STRANGERS_BURST):
        rates.take(b"%d" % guess, f"192.0.2.{guess}")
    with pytest.raises(Problem, match="50 requests a second"):
        rates.take(b"another guess", "192.0.2.200")
    rates.take(b"a", "192.0.2.1")
    rates.forget(b"a")
    with pytest.raises(Problem):
        rates.take(b"a", "192.0.2.1")


@pytest.mark.parametrize("more", ["192.0.2.1", "2001:db8::1"])
def test_who_guesses_from_one_address_leaves_a_share_to_tokens_that_are_not_known_yet(
    more: str,
) -> None:
    time = Time()
    rates = RateLimit(1.0, 2, time)
    assert len(list(taken(rates, b"a guess", more))) == ADDRESS_BURST < STRANGERS_BURST
    for _ in range(100):
        time.now += 0.125
        assert list(taken(rates, b"a guess", more))
        rates.take(b"a valid token after a restart", "192.0.2.2")
    with pytest.raises(Problem, match="10 requests a second") as refused:
        rates.take(b"a guess", more)
    assert (refused.value.headers or {})["Retry-After"] == "1"


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_this_machines_own_address_may_be_a_proxys_and_has_no_share_of_its_own(client: str) -> None:
    rates = RateLimit(1, 1, lambda: 0.0)
    for number in range(STRANGERS_BURST):
        rates.take(str(number).encode(), client)
    with pytest.raises(Problem):
        rates.take(b"one too many", client)


def test_the_addresses_of_one_network_of_ipv6_are_one() -> None:
    rates = RateLimit(1.0, 2, Time())
    for guess in range(ADDRESS_BURST):
        rates.take(b"a guess", f"2001:db8::{guess:x}")
    with pytest.raises(Problem, match="10 requests a second"):
        rates.take(b"a guess", "2001:db8:0:0:ffff::1")
    rates.take(b"a guess", "2001:db8:0:1::1")


def test_of_so_many_addresses_those_seen_longest_ago_are_forgotten() -> None:
    time = Time()
    rates = RateLimit(1.0, 2, time)
    list(taken(rates, b"a guess", "first"))
    list(taken(rates, b"a guess", "second"))
    for number in range(MOST_ADDRESSES - 2):
        time.now += 0.03125
        rates.take(b"a guess", f"other {number}")
    rates.take(b"a guess", "first")
    rates.take(b"a guess", "one more")
    assert len(rates._addresses) == MOST_ADDRESSES
    assert "second" not in rates._addresses


def test_a_body_that_does_not_arrive_in_time_is_given_up() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            await receive()

    async def trickle() -> Message:
        await asyncio.sleep(0.005)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Message) -> None:
        raise AssertionError("nothing is to be sent")

    limited = BodyLimit(app, seconds=0.05)
    # In a thread of its own: a browser's tests leave a loop running in this one.
    request: Scope = {"type": "http", "headers": []}
    with ThreadPoolExecutor(1) as thread:
        given_up = thread.submit(asyncio.run, limited(request, trickle, send))
    with pytest.raises(Problem) as refused:
        given_up.result()
    assert refused.value.slug == "body-too-slow"
