"""Hostile payloads and errors: refused with nothing written, or stored and run; no queue wedges."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import Connection
from pydantic import BaseModel, field_validator

from scheduler import Attempt, PayloadError, Registry, RetryPolicy, enqueue
from scheduler.kinds import LARGEST_PAYLOAD
from tests.scheduler.working import WORK, ignore, outcomes, running, statuses, task, worker
from tests.waiting import wait_for

TWICE = RetryPolicy(max_attempts=2, base=timedelta(milliseconds=1))


def nested(depth: int) -> object:
    """Lists in lists."""
    payload: object = 0
    for _ in range(depth):
        payload = [payload]
    return payload


def circular() -> object:
    """A list that contains itself."""
    payload: list[object] = []
    payload.append(payload)
    return payload


REFUSED: dict[str, tuple[object, str]] = {
    "NUL": ("a\0b", r"contains the character U\+0000"),
    "NUL in a key": ({"k\0": 1}, r"contains the character U\+0000"),
    "NUL after a backslash": (["\\\0"], r"contains the character U\+0000"),
    "a lone surrogate": ("\ud800", "cannot be written as JSON"),
    "a lone surrogate in a key": ({"\udfff": 1}, "cannot be written as JSON"),
    "deep": (nested(1000), "kind 'work'"),
    "deeper": (nested(100_000), "kind 'work'"),
    "circular": (circular(), "cannot be written as JSON"),
    "no JSON": (object(), "cannot be written as JSON"),
    "no text": (b"\xff", "cannot be written as JSON"),
    "too large": ("x" * (LARGEST_PAYLOAD - 1), f"has {LARGEST_PAYLOAD + 1} bytes of JSON"),
    "a number without end": (10**5000, "kind 'work'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_stored_is_refused_and_nothing_written(db: Connection, what: str) -> None:
    payload, message = REFUSED[what]
    with pytest.raises(PayloadError, match=message):
        enqueue(db, WORK, payload)
    assert statuses(db) == {}


FINE: dict[str, object] = {
    "a backslash before u0000": "\\u0000 and \\\\u0000",
    "as large as allowed": "x" * (LARGEST_PAYLOAD - 2),
    "nested": nested(100),
    "other planes": "\N{GRINNING FACE}\u2028\x01\x7f",
    "a large number": 10**1000,
    "null": None,
    "empty keys": {"": {"": []}},
}


def test_what_can_be_stored_arrives_as_it_was(db: Connection, dsn: str) -> None:
    arrived: dict[int, object] = {}
    anything: Any = object
    registry = Registry()

    @registry.kind("work", anything)
    def keep(attempt: Attempt, payload: object) -> None:
        arrived[attempt.task] = payload

    sent = {enqueue(db, keep, payload): payload for payload in FINE.values()}
    with running(worker(registry, dsn)):
        wait_for(lambda: statuses(db) == {"completed": len(sent)}, "all to be completed")
    assert arrived == sent


class Order(BaseModel):
    """A payload whose validator trusts its input."""

    amount: int

    @field_validator("amount", mode="before")
    @classmethod
    def from_words(cls, value: Any) -> Any:
        """Not careful: a word that it does not know is a KeyError, which pydantic lets through."""
        return {"one": 1}[value] if isinstance(value, str) else value


@pytest.mark.parametrize(
    "raw",
    [
        "'null'",
        "'{}'",
        """'{"amount": [1]}'""",
        """'{"amount": "many"}'""",
        """'{"amount": 1e5000}'""",
        "(repeat('[', 3000) || repeat(']', 3000))",
    ],
)
def test_a_payload_written_past_the_api_fails_and_others_go_on(
    db: Connection, dsn: str, raw: str
) -> None:
    registry = Registry()
    order = registry.kind("order", Order, retry=TWICE)(ignore)
    bad = enqueue(db, order, Order(amount=1))
    db.execute(f"update scheduler.tasks set payload = {raw}::jsonb".encode())
    with running(worker(registry, dsn, slots=1)):
        good = enqueue(db, order, Order(amount=2))
        wait_for(lambda: statuses(db) == {"dead": 1, "completed": 1}, "both to be over")
    assert task(db, good).status == "completed"
    assert outcomes(db, bad) == ["failed", "failed"]
    (error,) = db.execute("select last_error from scheduler.tasks where id = %s", [bad]).fetchone()  # type: ignore[misc] # the row exists
    assert error.startswith("the payload for kind 'order' is refused by its model: ")


def test_a_validator_that_raises_anything_refuses_the_payload(db: Connection) -> None:
    order = Registry().kind("order", Order)(ignore)
    with pytest.raises(PayloadError, match="refused by its model: 'many'"):
        enqueue(db, order, Order.model_construct(amount="many"))


class SilentError(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        """Fails."""
        raise RuntimeError("no words")


def raise_it(error: BaseException) -> Callable[[], None]:
    """A function that raises the error."""

    def raiser() -> None:
        raise error

    return raiser


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (ValueError("a\0b\ud800c"), "ValueError: a\N{REPLACEMENT CHARACTER}b?c"),
        (ValueError("x" * 5_000_000), "ValueError: xxx"),
        (SilentError(), "tests.scheduler.test_payloads.SilentError: <exception str() failed>"),
        (SystemExit("gone"), "SystemExit: gone"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ExceptionGroup("many", [ValueError("\0")] * 100), "ExceptionGroup: many"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("style", ["plain", "async", "transactional"])
def test_whatever_a_handler_raises_is_stored_and_others_go_on(
    db: Connection, dsn: str, error: BaseException, stored: str, style: str
) -> None:
    registry = Registry()
    raiser = raise_it(error)

    def plain(attempt: Attempt, bad: bool) -> None:
        if bad:
            raiser()

    async def asynchronous(attempt: Attempt, bad: bool) -> None:
        if bad:
            raiser()

    def transactional(attempt: Attempt, bad: bool, connection: Connection) -> None:
        if bad:
            raiser()

    if style == "transactional":
        kind = registry.transactional("work", bool, retry=TWICE)(transactional)
    else:
        kind = registry.kind("work", bool, retry=TWICE)(plain if style == "plain" else asynchronous)
    bad, good = enqueue(db, kind, True), enqueue(db, kind, False)
    with running(worker(registry, dsn, slots=1)):
        wait_for(lambda: statuses(db) == {"dead": 1, "completed": 1}, "both to be over")
    assert task(db, good).status == "completed"
    found = task(db, bad)
    assert found.last_error is not None
    assert found.last_error.startswith(stored)
    assert len(found.last_error) <= 10_000
