"""The fault that some session holds due tasks locked, and does not let go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import psycopg
from pydantic import Field

from chaos.faults.database import DatabaseFault
from chaos.faults.fault import Arena, Injection
from chaos.history.events import History
from chaos.invariants.words import many


class RowLock(DatabaseFault):
    """Hold the oldest due tasks locked, as a forgotten session of somebody might.

    It bit if others were claimed meanwhile: nobody stood in line behind those.
    """

    kind: Literal["row-lock"]
    rows: int = Field(default=5, ge=1, le=10_000)
    lasts: float = Field(gt=0, le=3600)

    def strike(self, arena: Arena) -> Callable[[], int] | None:
        """Lock them, if any is due; let go to heal. Sees how many it held to the end."""
        session = psycopg.connect(arena.server.dsn(arena.database))
        try:
            held = arena.system.lock_due(session, self.rows)
        except BaseException:
            session.close()
            raise
        if not held:
            session.close()
            return None

        def heal() -> int:
            # Lost with the server, it held nothing at the end.
            with suppress(psycopg.OperationalError), session:
                session.execute("select")
                return held
            return 0

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """Tasks were claimed while it held others."""
        claimed = {
            (row.task, row.token)
            for commit in history.commits
            for _, row in commit.changes
            if row is not None
            and row.claimed_at is not None
            and injection.placed <= row.claimed_at < injection.ended
        }
        if not injection.seen or not claimed:
            return None
        held = many(injection.seen, "due task")
        return f"held {held} while {many(len(claimed), 'other')} were claimed"
