"""What becomes of a request that no honest client sends, or that tries what its token may not.

The log has a line for each. The audit is a table, which strangers must not be able to fill: it gets
one row a minute for each reason and token, with how many requests there were and the last of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Event, Lock, Thread
from typing import Any

import psycopg
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.events import event, one_line
from scheduler.service.database import Database
from scheduler.service.problems import SLUG
from scheduler.service.tokens import Caller
from scheduler.statements import fetch

log = logging.getLogger("scheduler.service")

CALLER = "leaseproof.caller"  # where in a request's scope its caller is left
AUDIT = "leaseproof.audit"  # and where to count what is refused
EVERY = 60.0  # seconds between two writes to the audit
MOST_ROWS = 200  # of one write; further tokens are counted together
LONGEST_PATH = 200  # characters of it that are kept
LOGGED = frozenset(
    {
        "malformed-request",
        "method-not-allowed",
        "body-too-slow",
        "body-too-large",
        "invalid-request",
    }
)
# A flood, which the log would only make worse.
COUNTED = frozenset({"rate-limited"})


class RefusalAudit:
    """Counts refused requests, and writes the counts to the audit.

    Should the database not answer they are kept and written later; what was counted since the last
    write is lost with a process that is killed, and is in the log.
    """

    def __init__(self, database: Database, every: float = EVERY) -> None:
        self._database = database
        self._every = every
        self._lock = Lock()
        self._counts: dict[tuple[str, Caller | None], tuple[int, str]] = {}
        self._over = Event()
        self._thread = Thread(target=self._run, name="refusals", daemon=True)

    def count(self, reason: str, caller: Caller | None, request: str) -> None:
        """Count a request. It only takes a lock: nobody waits for the database here."""
        with self._lock:
            self._add((reason, caller), 1, request)

    def start(self) -> None:
        """Write what was counted, again and again."""
        self._thread.start()

    def close(self) -> None:
        """Write what was counted a last time."""
        self._over.set()
        self._thread.join()

    def write(self) -> None:
        """Write what was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        values = {
            "sources": [caller.source if caller else None for _, caller in counts],
            "counts": [count for count, _ in counts.values()],
            "details": [
                f"{reason}; token {caller.name if caller else '-'}; the last: {request}"
                for (reason, caller), (_, request) in counts.items()
            ],
        }
        try:
            with self._database.connection() as connection:
                fetch(connection, "record_refusals", values)
        except psycopg.Error as error:
            event(log, logging.WARNING, "refusals-not-audited", error=one_line(error))
            with self._lock:
                for key, (count, request) in counts.items():
                    self._add(key, count, request)

    def _add(self, key: tuple[str, Caller | None], count: int, request: str) -> None:
        if key not in self._counts and len(self._counts) >= MOST_ROWS:
            key = (key[0], None)  # there are few reasons
        so_far, _ = self._counts.get(key, (0, ""))
        self._counts[key] = (so_far + count, request)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self.write()
        self.write()


class RefusalLog:
    """Notes such refusals of all requests, and leaves in each request's scope where to count its
    own."""

    def __init__(self, app: ASGIApp, audit: RefusalAudit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_answer(scope)
            await send(message)

        scope[AUDIT] = self._audit
        await self._app(scope, receive, noting)


def note(scope: Mapping[str, Any], reason: str, /, **what: Any) -> None:
    """Log and count a refusal; `what` is what it was about."""
    caller = _count(scope, reason)
    event(
        log,
        logging.WARNING,
        "refused",
        reason=reason,
        method=scope["method"],
        path=scope["path"],
        client=client_of(scope),
        token=caller.name if caller else "-",
        source=(caller and caller.source) or "-",
        **what,
    )


def _note_answer(scope: Scope) -> None:
    slug = scope.get(SLUG, "")
    # A thing that is not there, at a path that is: nothing odd, unless `auth` hides it and says so.
    nowhere = slug == "not-found" and not hasattr(scope.get("route"), "path_format")
    if slug in LOGGED or nowhere:
        note(scope, slug)
    elif slug in COUNTED:
        _count(scope, slug)


def _count(scope: Mapping[str, Any], reason: str) -> Caller | None:
    caller, audit = scope.get(CALLER), scope[AUDIT]
    assert caller is None or isinstance(caller, Caller)
    assert isinstance(audit, RefusalAudit)
    # Escaped, as the database takes no NUL.
    path = scope["path"][:LONGEST_PATH].encode("unicode_escape").decode()
    audit.count(reason, caller, f"{scope['method'][:10]} {path} from {client_of(scope)}")
    return caller


def client_of(scope: Mapping[str, Any]) -> str:
    """The address that a request came from, `-` if it has none."""
    return str(scope["client"][0]) if scope.get("client") else "-"
