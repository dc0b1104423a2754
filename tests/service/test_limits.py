"""The rate limit by itself, with time as an input; a body that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.types import Message, Receive, Scope, Send

from scheduler.service.limits import STRANGERS_BURST, BodyLimit, RateLimit
from scheduler.service.problems import Problem
from scheduler.service.tokens import Caller

CALLER = Caller("a", "shop", frozenset(), None)


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(rates: RateLimit, digest: bytes) -> Iterator[int]:
    """Counts shares until there is none."""
    number = 0
    while True:
        try:
            rates.take(digest)
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
        rates.take(b"a")
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
        rates.take(str(guess).encode())
    with pytest.raises(Problem, match="50 requests a second"):
        rates.take(b"another guess")
    rates.take(b"a")
    rates.forget(b"a")
    with pytest.raises(Problem):
        rates.take(b"a")


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
