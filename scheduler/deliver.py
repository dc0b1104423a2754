"""Delivers dead letters to a hook: takes what is due, tells it, and notes how that went.

It has nothing to do with workers and holds no row of a task: a receiver that is slow, or away for a
day, holds up nobody but itself. Any number of deliverers share a hook. One that is killed after it
told the hook and before it noted so leaves the delivery to be made again: at least once, under the
same key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg
from psycopg import Connection, IsolationLevel

from scheduler import dead_letter_hooks
from scheduler.dead_letter_hooks import MOST_ATTEMPTS, Death, Delivery
from scheduler.errors import DatabaseUnreachableError
from scheduler.events import event, one_line
from scheduler.finish import storable
from scheduler.migrate import check_schema
from scheduler.roles import needing
from scheduler.session import CONNECT_TIMEOUT_SECONDS, FINDS_DEAD_PEER
from scheduler.webhook import DeliveryError

log = logging.getLogger("scheduler.deliver")

PAUSE = 1.0  # seconds after a failure, doubled with each in a row
LONGEST_PAUSE = 30.0
GIVE_UP = 300.0  # seconds that the database may be away
LONGEST_ERROR = 500  # characters

Tell = Callable[[Death], None]


class Deliverer:
    """Delivers to one hook until stopped.

    tell: called with each death; what it raises is a failed attempt. poll: seconds between looks
    when nothing is due.
    """

    def __init__(self, dsn: str, hook: str, tell: Tell, poll: float = 1.0) -> None:
        self._dsn = dsn
        self._hook = hook
        self._tell = tell
        self._poll = poll
        # A SimpleQueue may be put to from a signal handler.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._failures = 0

    def stop(self) -> None:
        """Return from `run` after the delivery that is under way. Safe from a signal handler."""
        self._stopping = True
        self._news.put(None)

    def run(self) -> None:
        """Register the hook and deliver. Raises DatabaseUnreachableError if the database stays
        away, SchemaError or AccessError if it is there and will not do, ValueError for the hook's
        name."""
        failing_since: float | None = None
        while not self._stopping:
            try:
                with self._connect() as connection, needing(connection, "scheduler_operator"):
                    check_schema(connection)
                    dead_letter_hooks.register(connection, self._hook)
                    event(log, logging.INFO, "delivering", hook=self._hook)
                    while not self._stopping:
                        self._wait(self.turn(connection))
                        failing_since = None
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                text = one_line(error)
                if now - failing_since > GIVE_UP:
                    raise DatabaseUnreachableError(
                        f"the database has not answered for {now - failing_since:.0f} s: {text}"
                    ) from error
                event(log, logging.WARNING, "deliverer-lost-session", hook=self._hook, error=text)
                self._wait(PAUSE)

    def turn(self, connection: Connection) -> float:
        """Make one delivery if one is due; returns for how many seconds to wait then."""
        delivery = dead_letter_hooks.take(connection, self._hook)
        if delivery is None:
            return self._poll
        try:
            self._tell(delivery.death)
        except Exception as error:  # noqa: BLE001 - whatever the hook raises is a failed delivery
            text = _said(error)
            dead_letter_hooks.failed(connection, delivery, text)
            self._log_failure(delivery, text)
            # The receiver may be away altogether: not all that waits shall use up its attempts.
            pause = min(PAUSE * 2.0**self._failures, LONGEST_PAUSE)
            self._failures = min(self._failures + 1, 10)
            return pause
        dead_letter_hooks.delivered(connection, delivery)
        self._failures = 0
        event(
            log,
            logging.INFO,
            "delivered",
            hook=self._hook,
            task=delivery.death.task,
            key=delivery.death.key,
            attempt=f"{delivery.attempt}/{MOST_ATTEMPTS}",
        )
        return 0.0

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._news.get(timeout=max(seconds, 0.001))

    def _log_failure(self, delivery: Delivery, text: str) -> None:
        last = delivery.attempt >= MOST_ATTEMPTS
        event(
            log,
            logging.ERROR if last else logging.WARNING,
            "delivery-failed",
            hook=self._hook,
            task=delivery.death.task,
            key=delivery.death.key,
            attempt=f"{delivery.attempt}/{MOST_ATTEMPTS}",
            error=text,
        )

    def _connect(self) -> Connection:
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            prepare_threshold=None,
            application_name=f"scheduler deliver {self._hook}",
            client_encoding="UTF8",
            **FINDS_DEAD_PEER,
        )
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        return connection


def _said(error: Exception) -> str:
    name = type(error).__name__
    try:
        text = str(error) if isinstance(error, DeliveryError) else f"{name}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is is still one
        text = name
    return one_line(storable(text))[:LONGEST_ERROR]
