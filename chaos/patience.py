"""How the harness itself lives with a database that it breaks: its sessions, and its patience."""

from __future__ import annotations

import time
from types import TracebackType

import psycopg
from psycopg.conninfo import make_conninfo

LONGEST_OUTAGE = 30.0  # seconds that the database may be away on end
HARNESS = "leaseproof "  # how the names of all sessions of the harness begin


def harness_dsn(dsn: str, purpose: str) -> str:
    """The database for the harness's own use: a call ends soon even if the table is locked.

    No call may wait for a fault to end, since it is the harness that ends it.
    """
    return make_conninfo(
        dsn,
        application_name=f"{HARNESS}{purpose}",
        connect_timeout=5,
        options="-c lock_timeout=300ms -c statement_timeout=20s",
    )


class Patience:
    """A context that bears the database's refusals, but not for longer than LONGEST_OUTAGE on end.

    What stood in the context was left at the call that failed: whoever uses this tries it again.
    For one thread.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, psycopg.OperationalError):
            self._since = None
            return False
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since < LONGEST_OUTAGE
