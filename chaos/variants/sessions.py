"""Variants of the sessions in which the same statements run: isolation, plans, a pooler's terms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self
from weakref import WeakSet

from psycopg import Connection, RawCursor
from psycopg.errors import SerializationFailure
from psycopg.pq import TransactionStatus

from chaos.mutants import Patch
from chaos.variants.variant import Variant, mark
from scheduler.statements import numbered

RETRIED = "a statement was run again after a serialization failure"
_TRIES = 50  # of one statement; each failure means that another transaction has committed


def _at(level: str, genuine: type[RawCursor]) -> type[RawCursor]:
    begun: WeakSet[Connection] = WeakSet()  # sessions that are at the level

    class AtLevel(genuine):  # type: ignore[valid-type, misc] # a class that is known at run time
        """Runs what is a transaction by itself at the level, and again if it fails for that.

        A client's transaction stays at the client's level. So does a limited claim, whose second
        statement counts under a snapshot that must be later than the lock of its first.
        """

        def execute(self, query: Any, *arguments: Any, **named: Any) -> Self:
            if self.connection.info.transaction_status != TransactionStatus.IDLE:
                if query == numbered("lock_limits").text:
                    super().execute("set transaction isolation level read committed")
                super().execute(query, *arguments, **named)
                return self
            if self.connection not in begun:
                begun.add(self.connection)
                super().execute(f"set default_transaction_isolation = '{level}'".encode())
            for _ in range(_TRIES - 1):
                try:
                    super().execute(query, *arguments, **named)
                except SerializationFailure:
                    mark(RETRIED)
                else:
                    return self
            super().execute(query, *arguments, **named)
            return self

    return AtLevel


def _pooled(construct: Callable[..., None]) -> Callable[..., None]:
    def patched(worker: Any, *arguments: Any, **options: Any) -> None:
        construct(worker, *arguments, **{**options, "pooled": True})

    return patched


def _statements_at(level: str) -> tuple[Patch, ...]:
    return (Patch("scheduler.statements:RawCursor", partial(_at, level)),)


ALL = (
    Variant(
        name="serializable",
        differs="workers' statements run at SERIALIZABLE, and again if they cannot be serialized",
        right=(
            "each is a transaction by itself, which failed as a whole; what it would have looked at"
            " again in its newest version it sees when it is run again"
        ),
        code=_statements_at("serializable"),
        leaves=(RETRIED,),
        scenarios=("kill-mid-run", "thundering-start", "limited-kind", "operators", "retry-storm"),
    ),
    Variant(
        name="repeatable-read",
        differs="workers' statements run at REPEATABLE READ, and again if a row has changed",
        right="as for SERIALIZABLE: no statement relies on what an earlier one saw",
        code=_statements_at("repeatable read"),
        leaves=(RETRIED,),
        scenarios=("kill-mid-run", "thundering-start", "limited-kind", "pause-past-lease"),
    ),
    Variant(
        name="reads-whole-tables",
        differs="no index is used: tables are read as they lie",
        right="a plan is a matter of speed",
        settings=dict.fromkeys(
            ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"), "off"
        ),
        scenarios=("kill-mid-run", "priorities", "stale-statistics", "operators"),
    ),
    Variant(
        name="reads-by-index",
        differs="indexes and nested loops alone: no table is read whole, nothing is hashed",
        right="a plan is a matter of speed",
        settings=dict.fromkeys(
            ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_hashagg"), "off"
        ),
        scenarios=("kill-mid-run", "priorities", "stale-statistics", "retry-storm"),
    ),
    Variant(
        name="plans-anew",
        differs="each statement is planned for its arguments, each time",
        right="a plan is a matter of speed",
        settings={"plan_cache_mode": "force_custom_plan"},
        scenarios=("stale-statistics", "kill-mid-run", "thundering-start", "retry-storm"),
        explored=False,  # the explorer has its own say in this, lest schedules differ
    ),
    Variant(
        name="pooled",
        differs="workers behave as behind a transaction pooler: no settings, nothing listens",
        right="so they are documented to run: a poll finds what nobody announces",
        code=(Patch("scheduler.worker:Worker.__init__", _pooled),),
        scenarios=("kill-mid-run", "graceful-shutdown", "retry-storm", "operators"),
        explored=False,
    ),
)
