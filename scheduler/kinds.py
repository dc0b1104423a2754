"""Kinds of task: which code runs them, what their payload looks like, how they are retried."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, get_args

from psycopg import Connection
from pydantic import TypeAdapter, ValidationError

from scheduler import checks
from scheduler.errors import PayloadError, UnknownKindError
from scheduler.lease import Attempt
from scheduler.priority import Priority
from scheduler.recurring import Cron, Every, Missed, OnDead, Rule, Schedule
from scheduler.retry import RetryPolicy
from scheduler.secret_references import checked

P = TypeVar("P")

LARGEST_PAYLOAD = 1_048_576  # bytes of JSON
SHORTEST_LEASE = timedelta(milliseconds=500)
LONGEST_LEASE = timedelta(days=1)
MOST_AT_ONCE = 1_000_000

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")

Plain = Callable[[Attempt, P], None]
Async = Callable[[Attempt, P], Awaitable[None]]
Transactional = Callable[[Attempt, P, Connection], None]
Style = Literal["plain", "async", "transactional"]


class Snooze(Exception):  # noqa: N818 - raised to say "later", not because something went wrong
    """Raised by a handler to be run again after a delay; the attempt does not count."""

    def __init__(self, delay: timedelta) -> None:
        checks.of_type("a snooze", delay, timedelta)
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
    limit: int | None
    secrets: Mapping[str, str]
    isolated: bool

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
    """The kinds and schedules of one application, by name.

    `application` tells applications on one database apart: a worker that starts takes the schedules
    which its application no longer declares out of use. Raises ValueError for what is no name.
    """

    kinds: dict[str, Kind[Any]] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    application: str = "default"

    def __post_init__(self) -> None:
        _check_name("an application", self.application)

    def kind(
        self,
        name: str,
        payload: type[P],
        *,
        lease: timedelta = timedelta(seconds=60),
        retry: RetryPolicy | None = None,
        queue: str = "default",
        limit: int | None = None,
        secrets: Mapping[str, str] | None = None,
        isolated: bool = False,
    ) -> Callable[[Plain[P] | Async[P]], Kind[P]]:
        """Register a function, plain or async, that runs tasks of this kind.

        `payload` is any type pydantic can validate. `lease` is how long a worker may be silent
        before others take the task back; it is renewed while the handler runs, however long.
        `queue` lets workers serve some kinds and leave others to workers of their own. `limit` is
        how many tasks of the kind may run at once, in all workers together. `secrets` are
        references by name, `env:NAME` or `file:/absolute/path`: `attempt.secret(name)` reads the
        value.

        `isolated` runs a plain handler in a process of its own, kept from one attempt to the next
        (one a slot): for handlers that keep the interpreter to themselves, such as a long regular
        expression, and so would keep the worker from renewing leases. It can be stopped for good:
        it is killed when its lease is lost or the worker's grace is over, so `attempt.lost` is
        never set. That process imports the module anew and shares nothing with the worker but
        environment, stdout and stderr; the handler must be where its module and name say.
        """

        def register(handler: Plain[P] | Async[P]) -> Kind[P]:
            _refuse_generator(name, handler)
            style: Style = "async" if inspect.iscoroutinefunction(handler) else "plain"
            if isolated:
                _refuse_isolation(name, style, handler)
            return self._add(
                name, style, handler, payload, lease, retry, queue, limit, secrets, isolated
            )

        return register

    def transactional(
        self,
        name: str,
        payload: type[P],
        *,
        lease: timedelta = timedelta(seconds=60),
        retry: RetryPolicy | None = None,
        queue: str = "default",
        limit: int | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Callable[[Transactional[P]], Kind[P]]:
        """Register a function whose writes on the given connection commit with the completion.

        Such an effect happens exactly once. The handler must not commit by itself (psycopg refuses
        it) and must not stay idle in its transaction for longer than the lease. What it does to the
        session is gone for the next handler, except through a pooler: see `Worker`.
        """

        def register(handler: Transactional[P]) -> Kind[P]:
            _refuse_generator(name, handler)
            if inspect.iscoroutinefunction(handler):
                raise TypeError(
                    f"kind {name!r}: a transactional handler must be a plain function,"
                    " because it is given a synchronous psycopg connection"
                )
            return self._add(
                name,
                "transactional",
                handler,
                payload,
                lease,
                retry,
                queue,
                limit,
                secrets,
                isolated=False,
            )

        return register

    def schedule(
        self,
        name: str,
        kind: Kind[P],
        payload: P,
        rule: Rule,
        *,
        missed: Missed = "once",
        on_dead: OnDead = "stop",
        priority: Priority = Priority.NORMAL,
    ) -> Schedule:
        """Declare a recurring task: workers enqueue it whenever `rule` says, once each time.

        While one occurrence waits or runs the next is not planned. `missed` says what becomes of
        due times that went by, because of that or because no worker ran: `once` makes up for all of
        them by one run, `all` by one run each, in order (the last hundred), and `skip` by none that
        is more than a minute late.
        `once` is the default because most such tasks bring something up to date: after a night
        without workers a nightly report should exist, and hourly ones need not run eight times.

        `on_dead` says whether a dead occurrence stops the schedule until it is requeued or
        discarded, or whether it goes on. An attempt's `occurrence` is its due time by the rule.

        Raises ValueError for a name or setting that cannot be meant, TypeError for what is no rule,
        PayloadError for a payload that the kind's model refuses.
        """
        _check_name("a schedule", name)
        what = f"schedule {name!r}"
        if name in self.schedules:
            raise ValueError(f"{what} is declared twice")
        checks.of_type(f"{what}: its kind", kind, Kind)
        if self.kinds.get(kind.name) is not kind:
            raise ValueError(f"{what}: kind {kind.name!r} is not of this registry")
        if not isinstance(rule, Every | Cron):
            raise TypeError(f"{what}: a rule is an Every or a Cron, not {rule!r}")
        for setting, value, known in (
            ("missed", missed, get_args(Missed)),
            ("on_dead", on_dead, get_args(OnDead)),
            ("priority", priority, tuple(Priority)),
        ):
            if value not in known:
                names = ", ".join(repr(one) for one in known)
                raise ValueError(f"{what}: {setting} must be one of {names}, not {value!r}")
        schedule = Schedule(
            name, kind.name, kind.dump(payload), rule, missed, on_dead, int(priority)
        )
        self.schedules[name] = schedule
        return schedule

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
        limit: int | None,
        secrets: Mapping[str, str] | None,
        isolated: bool,
    ) -> Kind[P]:
        _check_name("a kind", name)
        _check_name("a queue", queue)
        if name in self.kinds:
            raise ValueError(f"kind {name!r} is registered twice")
        checks.of_type(f"kind {name!r}: a lease", lease, timedelta)
        if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise ValueError(
                f"kind {name!r}: a lease must be from {SHORTEST_LEASE} to {LONGEST_LEASE},"
                f" not {lease}"
            )
        if retry is not None:
            checks.of_type(f"kind {name!r}: retry", retry, RetryPolicy)
        if limit is not None and not (
            1 <= checks.of_type(f"kind {name!r}: a limit", limit, int) <= MOST_AT_ONCE
        ):
            raise ValueError(
                f"kind {name!r}: a limit must be from 1 to {MOST_AT_ONCE} tasks, not {limit}"
            )
        wanted = ["attempt", "payload", "connection"][: 3 if style == "transactional" else 2]
        try:
            inspect.signature(handler).bind(*wanted)
        except (TypeError, ValueError) as error:  # a builtin class may not say what it takes
            raise TypeError(
                f"the handler of kind {name!r} must take {', '.join(wanted)}: {error}"
            ) from error
        kind = Kind(
            name,
            style,
            handler,
            TypeAdapter(payload),
            lease,
            retry or RetryPolicy(),
            queue,
            limit,
            checked(name, secrets),
            isolated,
        )
        self.kinds[name] = kind
        return kind


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{checks.shown(name)} cannot name {what}: use 1 to 100 letters, digits, '_', '.', ':'"
            " or '-'"
        )


def _refuse_generator(name: str, handler: Callable[..., object]) -> None:
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(
            f"kind {name!r}: a handler with `yield` in it is a generator, which nobody would run"
        )


def _refuse_isolation(name: str, style: Style, handler: Callable[..., object]) -> None:
    """Only what another process can find again and run by itself can be isolated."""
    if style == "async":
        raise TypeError(
            f"kind {name!r}: an async handler cannot be isolated, its event loop is the worker's:"
            " make it a plain function"
        )
    qualname = getattr(handler, "__qualname__", None)
    if qualname is None or "<" in qualname:  # <locals>, <lambda>
        raise ValueError(
            f"kind {name!r}: an isolated handler is looked up in another process by its module and"
            f" name, and {qualname or handler!r} cannot be found so: define it with `def` in the"
            " module itself"
        )
    if handler.__module__ == "__main__" and not _main_is_imported_elsewhere():
        raise ValueError(
            f"kind {name!r}: another process, where an isolated handler runs, cannot import the"
            " main module of this one: define the handler in a module of its own"
        )


def _main_is_imported_elsewhere() -> bool:
    """Whether multiprocessing imports this process's main module in those that it starts: it does
    so with scripts and `python -m module`; not with what was typed in, nor a package's main."""
    main = sys.modules["__main__"]
    if main.__spec__ is None:
        return hasattr(main, "__file__")
    return main.__spec__.name.rpartition(".")[2] != "__main__"


def _brief(error: Exception) -> str:
    """The first problem of an error, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return (f"{where}: " if where else "") + first["msg"] + more
    return str(error).splitlines()[0] if str(error) else type(error).__name__
