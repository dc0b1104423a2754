"""Bounds on what one client can ask of the server: size and time of a body, and requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from threading import Lock

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.kinds import LARGEST_PAYLOAD
from scheduler.service.problems import SLUG, Problem
from scheduler.service.tokens import Caller

LARGEST_BODY = LARGEST_PAYLOAD + 65_536  # bytes: the largest payload and what is said around it
BODY_SECONDS = 30.0  # in which a body must have arrived
# The server would read what still comes, for as long as it comes, to keep the connection.
HANG_UP = {"Connection": "close"}
# Requests a second with tokens that were not found valid yet: of all clients, and of one address.
STRANGERS_RATE = 50.0
STRANGERS_BURST = 100
ADDRESS_RATE = 10.0
ADDRESS_BURST = 50
MOST_ADDRESSES = 1_000  # that are remembered


class BodyLimit:
    """Refuses a body that is too large, by its announced length or while it streams in, or that
    takes too long to arrive."""

    def __init__(
        self, app: ASGIApp, largest: int = LARGEST_BODY, seconds: float = BODY_SECONDS
    ) -> None:
        self._app = app
        self._largest = largest
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        # Its digits only say more than that it is too long, and int() may refuse so many.
        if announced.isdigit() and (len(announced) > 15 or int(announced) > self._largest):
            scope[SLUG] = "body-too-large"
            await self._too_large().response()(scope, receive, send)
            return
        arrived, complete, deadline = 0, False, None

        async def bounded() -> Message:
            nonlocal arrived, complete, deadline
            if complete:  # what comes now is the end of the connection, whenever that may be
                return await receive()
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._seconds if deadline is None else deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"the body must arrive within {self._seconds:g} seconds"
                raise Problem("body-too-slow", detail, headers=HANG_UP) from None
            if message["type"] == "http.request":
                arrived += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if arrived > self._largest:
                    raise self._too_large()
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> Problem:
        detail = (
            f"a body may have {self._largest} bytes: store it elsewhere and enqueue a reference"
        )
        return Problem("body-too-large", detail, headers=HANG_UP)


class _Bucket:
    """Holds `burst` shares and gets `rate` a second."""

    __slots__ = ("at", "burst", "rate", "shares")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.shares = float(burst)
        self.at = now

    def take(self, now: float) -> float:
        """Take a share; the seconds until there is one, 0 if it was had."""
        self.shares = min(self.burst, self.shares + (now - self.at) * self.rate)
        self.at = now
        if self.shares < 1:
            return (1 - self.shares) / self.rate
        self.shares -= 1
        return 0.0


class RateLimit:
    """A bucket for each token, of `burst` requests, that fills with `rate` a second.

    In this process: behind several servers a client has several buckets. Tokens that were never
    found valid here share one: who guesses makes the database look, and may do so only so often.
    After a restart the tokens of all honest clients are such. So each address has a bucket before
    that one, which is smaller: who guesses from one address leaves something to the others. (But
    for this machine's own, where a proxy may speak for all.) An address that is forgotten has a
    full bucket when it comes again, and no more than all have together.
    """

    def __init__(
        self, rate: float, burst: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._lock = Lock()
        self._strangers = _Bucket(STRANGERS_RATE, STRANGERS_BURST, monotonic())
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()  # the last seen at the end
        self._known: dict[bytes, tuple[_Bucket, Caller]] = {}  # no more than there are tokens

    def take(self, digest: bytes, client: str) -> None:
        """Take one request's share, of a client at this address. Raises Problem, which says when to
        come again."""
        with self._lock:
            now = self._monotonic()
            if digest in self._known:
                bucket, _ = self._known[digest]
                wait = bucket.take(now)
            else:
                bucket, wait = self._strangers, 0.0
                if not _is_proxy(client):
                    bucket = self._address(client, now)
                    wait = bucket.take(now)
                if wait == 0:
                    bucket = self._strangers
                    wait = bucket.take(now)
        if wait > 0:
            raise Problem(
                "rate-limited",
                f"{bucket.rate:g} requests a second are let through",
                headers={"Retry-After": str(math.ceil(wait))},
            )

    def know(self, digest: bytes, caller: Caller) -> None:
        """Give a token that was found valid a bucket of its own."""
        with self._lock:
            if digest not in self._known:
                bucket = _Bucket(self._rate, self._burst, self._monotonic())
                bucket.take(bucket.at)  # this very request
                self._known[digest] = bucket, caller

    def known(self, digest: bytes) -> Caller | None:
        """Whose token it was when it was last found valid: to name who asks too much, not to let
        anybody in."""
        with self._lock:
            _, caller = self._known.get(digest, (None, None))
        return caller

    def forget(self, digest: bytes) -> None:
        """Count a token that is not valid, or no longer, among the strangers."""
        with self._lock:
            self._known.pop(digest, None)

    def _address(self, client: str, now: float) -> _Bucket:
        network = _network(client)
        bucket = self._addresses.pop(network, None) or _Bucket(ADDRESS_RATE, ADDRESS_BURST, now)
        self._addresses[network] = bucket
        if len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        return bucket


def _is_proxy(client: str) -> bool:
    """Whether this address may stand for any number of clients: the TLS proxy on this machine."""
    try:
        return ip_address(client).is_loopback
    except ValueError:
        return False


def _network(client: str) -> str:
    """What one client is sure to have no more than one of: an address, of IPv6 the first half."""
    try:
        address = IPv6Address(client)
    except ValueError:
        return client
    return address.exploded[:19]
