"""Kinds of task: which code runs them, what their payload looks like, how they are retried."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from psycopg import Connection
from pydantic import TypeAdapter, ValidationError

from scheduler.errors import PayloadError, UnknownKindError
from scheduler.lease import Attempt
from scheduler.retry import RetryPolicy

P = TypeVar("P")

LARGEST_PAYLOAD = 1_048_576  # bytes of JSON
SHORTEST_LEASE = timedelta(milliseconds=500)
LONGEST_LEASE = timedelta(days=1)

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")

Plain = Callable[[Attempt, P], None]
Async = Callable[[Attempt, P], Awaitable[None]]
Transactional = Callable[[Attempt, P, Connection], None]
Style = Literal["plain", "async", "transactional"]


class Snooze(Exception):  # noqa: N818 - raised to say "later", not because something went wrong
    """Raised by a handler to be run again after a delay; the attempt does not count."""

    def __init__(self, delay: timedelta) -> None:
        if not timedelta(0) <= delay <= timedelta(days=365):
            raise ValueError(f"a snooze must be from 0 to 365 days, not {delay}")
        super().__init__(f"snoozed for {delay}")
        self._delay = delay

    @property
    def delay(self) -> timedelta:
        """How long the task waits."""
        return self._delay


@dataclass(frozen=True, slots=True)
class Kind(Generic[P]):
    """A kind of task. Made by `Registry.kind` or `Registry.transactional`."""

    name: str
    style: Style
    handler: Callable[..., Any]
    payload: TypeAdapter[P]
    lease: timedelta
    retry: RetryPolicy
    queue: str

    def dump(self, payload: P) -> str:
        """The payload as JSON text that PostgreSQL can store and `load` accepts.

        Raises PayloadError otherwise. Reading it back here is what keeps a task that no worker
        could ever parse out of the queue.
        """
        try:
            text = self.payload.dump_json(payload, warnings=False)
        except Exception as error:  # a model's own serializers may raise anything
            raise PayloadError(
                f"the payload for kind {self.name!r} cannot be written as JSON: {_brief(error)}"
            ) from error
        if len(text) > LARGEST_PAYLOAD:
            raise PayloadError(
                f"the payload for kind {self.name!r} has {len(text)} bytes of JSON, the most is"
                f" {LARGEST_PAYLOAD}: store it elsewhere and enqueue a reference"
            )
        if _NUL.search(text):
            raise PayloadError(
                f"the payload for kind {self.name!r} contains the character U+0000, which"
                " PostgreSQL cannot store: encode such data, for example as base64"
            )
        self.load(text)
        return text.decode()

    def load(self, text: str | bytes) -> P:
        """The payload from its JSON text. Raises PayloadError if the kind's model refuses it."""
        try:
            return self.payload.validate_json(text)
        except Exception as error:  # a model's own validators may raise anything
            raise PayloadError(
                f"the payload for kind {self.name!r} is refused by its model: {_brief(error)}"
            ) from error


@dataclass(slots=True)
class Registry:
    """The kinds of one application, by name."""

    kinds: dict[str, Kind[Any]] = field(default_factory=dict)

    def kind(
        self,
        name: str,
        payload: type[P],
        *,
        lease: timedelta = timedelta(seconds=60),
        retry: RetryPolicy | None = None,
        queue: str = "default",
    ) -> Callable[[Plain[P] | Async[P]], Kind[P]]:
        """Register a function, plain or async, that runs tasks of this kind.

        `payload` is any type pydantic can validate. `lease` is how long a worker may be silent
        before others take the task back; it is renewed while the handler runs, however long.
        `queue` lets workers serve some kinds and leave others to workers of their own.
        """

        def register(handler: Plain[P] | Async[P]) -> Kind[P]:
            _refuse_generator(name, handler)
            style: Style = "async" if inspect.iscoroutinefunction(handler) else "plain"
            return self._add(name, style, handler, payload, lease, retry, queue)

        return register

    def transactional(
        self,
        name: str,
        payload: type[P],
        *,
        lease: timedelta = timedelta(seconds=60),
        retry: RetryPolicy | None = None,
        queue: str = "default",
    ) -> Callable[[Transactional[P]], Kind[P]]:
        """Register a function whose writes on the given connection commit with the completion.

        Such an effect happens exactly once. The handler must not commit by itself (psycopg refuses
        it) and must not stay idle in its transaction for longer than the lease.
        """

        def register(handler: Transactional[P]) -> Kind[P]:
            _refuse_generator(name, handler)
            if inspect.iscoroutinefunction(handler):
                raise TypeError(
                    f"kind {name!r}: a transactional handler must be a plain function,"
                    " because it is given a synchronous psycopg connection"
                )
            return self._add(name, "transactional", handler, payload, lease, retry, queue)

        return register

    def __getitem__(self, name: str) -> Kind[Any]:
        """The kind of this name. Raises UnknownKindError, which lists the known ones."""
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(sorted(self.kinds)) or "none"
            raise UnknownKindError(
                f"no kind {name!r} is registered; known kinds: {known}"
            ) from None

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self.kinds.values())

    def _add(
        self,
        name: str,
        style: Style,
        handler: Callable[..., Any],
        payload: type[P],
        lease: timedelta,
        retry: RetryPolicy | None,
        queue: str,
    ) -> Kind[P]:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a kind: use 1 to 100 letters, digits, '_', '.', ':' or '-'"
            )
        if not _NAME.fullmatch(queue):
            raise ValueError(
                f"{queue!r} cannot name a queue: use 1 to 100 letters, digits, '_', '.', ':' or '-'"
            )
        if name in self.kinds:
            raise ValueError(f"kind {name!r} is registered twice")
        if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise ValueError(
                f"kind {name!r}: a lease must be from {SHORTEST_LEASE} to {LONGEST_LEASE},"
                f" not {lease}"
            )
        wanted = ["attempt", "payload", "connection"][: 3 if style == "transactional" else 2]
        try:
            inspect.signature(handler).bind(*wanted)
        except TypeError as error:
            raise TypeError(
                f"the handler of kind {name!r} must take {', '.join(wanted)}: {error}"
            ) from error
        kind = Kind(
            name, style, handler, TypeAdapter(payload), lease, retry or RetryPolicy(), queue
        )
        self.kinds[name] = kind
        return kind


def _refuse_generator(name: str, handler: Callable[..., object]) -> None:
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(
            f"kind {name!r}: a handler with `yield` in it is a generator, which nobody would run"
        )


def _brief(error: Exception) -> str:
    """The first problem of an error, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return (f"{where}: " if where else "") + first["msg"] + more
    return str(error).splitlines()[0] if str(error) else type(error).__name__
