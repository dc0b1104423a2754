"""The queue's numbers: what tasks are live, of each kind, and how hooks and limits stand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg import Connection
from psycopg.rows import class_row

from scheduler.dead_letter_hooks import HookCounts, hooks
from scheduler.statements import fetch, statement

COUNTING = "30s"  # for each statement, at most
COUNTED = 50_000  # tasks of all kinds that wait, or are dead, and are counted one by one
SAMPLED = 1_500  # pages of the table that are read when there are more


@dataclass(frozen=True, slots=True)
class KindCounts:
    """The live tasks of a kind: `due` are those of the pending whose time has come, `expired` those
    of the running whose lease is over and not yet taken back. `oldest_running_seconds` is since the
    claim of the oldest attempt that is still held. How many are pending, due or dead may be an
    estimate."""

    kind: str
    pending: int
    pending_estimated: bool
    due: int
    due_estimated: bool
    running: int
    expired: int
    dead: int
    dead_estimated: bool
    oldest_due_seconds: float | None
    oldest_running_seconds: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """What the server has counted since its statistics were last reset, as by a crash: rows of
    tasks and of deaths, rolled back ones too."""

    enqueued: int
    deaths: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All the numbers."""

    kinds: list[KindCounts]
    limits: dict[str, int]
    totals: Totals
    hooks: list[HookCounts]


def ask(connection: Connection) -> Snapshot:
    """Ask the database for all of it.

    With more time than a request has otherwise: a machine that is busy may need it, and whoever
    gave up meanwhile finds the answer there the next time that he asks. By index, even where the
    planner takes a table for small because it was filled a moment ago.
    """
    with connection.transaction():
        connection.execute(
            "select set_config('statement_timeout', %s, true),"
            " set_config('enable_seqscan', 'off', true),"
            " set_config('enable_bitmapscan', 'off', true)",
            [COUNTING],
        )
        return Snapshot(
            kinds=live_counts(connection),
            limits=dict(fetch(connection, "kind_limits", {})),
            totals=_totals(connection),
            hooks=hooks(connection, COUNTED),
        )


def live_counts(connection: Connection) -> list[KindCounts]:
    """Count the live tasks; of kinds that have a great many waiting or dead, estimate
    those."""
    with connection.cursor(row_factory=class_row(KindCounts)) as cursor:
        counts = cursor.execute(statement("live_counts"), {"most": COUNTED}).fetchall()
    if not any(count.pending_estimated or count.dead_estimated for count in counts):
        return counts
    sampled = {
        kind: numbers for kind, *numbers in fetch(connection, "sampled_counts", {"pages": SAMPLED})
    }
    return [_estimated(count, *sampled.get(count.kind, (0, 0, 0))) for count in counts]


def _estimated(count: KindCounts, pending: int, due: int, dead: int) -> KindCounts:
    """With the sample's numbers, where they were not counted to their end: there are no fewer than
    were counted, and no more are due than wait."""
    if count.pending_estimated:
        count = replace(count, pending=max(count.pending, pending))
    if count.due_estimated:
        count = replace(count, due=min(count.pending, max(count.due, due)))
    if count.dead_estimated:
        count = replace(count, dead=max(count.dead, dead))
    return count


def _totals(connection: Connection) -> Totals:
    [(enqueued, deaths)] = fetch(connection, "totals", {})
    return Totals(enqueued, deaths)
