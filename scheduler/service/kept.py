"""Answers that are asked for rarely, however often they are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import psycopg
from psycopg import Connection

from scheduler.service.database import Database

KEPT_SECONDS = 5.0
LARGEST_SHARE = 0.05  # of one connection's time
LONGEST_FAILURE = 60.0  # seconds

T = TypeVar("T")


class Aged(NamedTuple, Generic[T]):
    """An answer, and how many seconds ago it was asked for."""

    answer: T
    age_seconds: float


class Kept(Generic[T]):
    """The newest answer of the database to one question, or a new one when that is too old.

    Kept for some seconds, and for twenty times as long as it took: the question may have at most a
    twentieth of one connection, however large the queue becomes and however many ask. That it took
    too long is kept as well, or a database that cannot answer in time would be asked all the time;
    but for a minute at most, since numbers must come back soon after the database does.

    ask: asks it, and is given the answer that there is already, which may save it something.
    """

    def __init__(
        self,
        database: Database,
        ask: Callable[[Connection, T | None], T],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._ask = ask
        self._monotonic = monotonic
        self._asking = Lock()
        self._newest: tuple[T, float] | None = None  # and when it was asked for
        self._failure: psycopg.Error | None = None  # of the last question
        self._until = float("-inf")  # from when on it is asked again

    def get(self) -> Aged[T]:
        """The answer. Raises psycopg.Error if a new one is wanted and cannot be had: an old one
        would look like a queue that stands still."""
        # Who comes while another asks has what there was before that, or waits if there was
        # nothing: the service's threads are for others, too.
        if self._asking.acquire(blocking=self._newest is None and self._failure is None):
            try:
                if self._monotonic() >= self._until:
                    self._renew()
            finally:
                self._asking.release()
        failure, newest = self._failure, self._newest
        if failure is not None:
            raise failure.with_traceback(None)  # or it would grow with each that is told
        assert newest is not None
        answer, asked = newest
        return Aged(answer, max(0.0, self._monotonic() - asked))

    def _renew(self) -> None:
        asked = self._monotonic()
        try:
            with self._database.connection() as connection:
                asked = self._monotonic()
                answer = self._ask(connection, self._newest[0] if self._newest else None)
                took = self._monotonic() - asked
        except psycopg.errors.QueryCanceled as error:
            self._failure, ended = error, self._monotonic()
            self._until = ended + min((ended - asked) / LARGEST_SHARE, LONGEST_FAILURE)
        except psycopg.Error as error:  # it cost the database nothing: the next may ask at once
            self._failure = error
        else:
            self._newest, self._failure = (answer, asked), None
            self._until = asked + took + max(KEPT_SECONDS, took / LARGEST_SHARE)
