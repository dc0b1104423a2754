"""Whether the service can do its work: the database answers, with the schema that it needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock

import psycopg

from scheduler.errors import SchemaError
from scheduler.events import event, one_line
from scheduler.migrate import check_schema
from scheduler.service.database import Database

log = logging.getLogger("scheduler.service")

KEPT_SECONDS = 1.0


class Readiness:
    """The newest answer, or a new one when that is too old."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._lock = Lock()
        self._ready = False
        self._fresh_until = float("-inf")

    def ready(self) -> bool:
        """Whether the service could do its work a moment ago."""
        with self._lock:
            if self._monotonic() >= self._fresh_until:
                self._ready = self._look()
                self._fresh_until = self._monotonic() + KEPT_SECONDS
            return self._ready

    def _look(self) -> bool:
        try:
            with self._database.connection() as connection:
                check_schema(connection)
        except (psycopg.Error, SchemaError) as error:
            event(log, logging.WARNING, "not-ready", error=one_line(error))
            return False
        return True
