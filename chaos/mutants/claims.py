"""Planted bugs in what a claim takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from psycopg import Connection
from psycopg.rows import TupleRow

from chaos.mutants.mutant import Edit, Mutant, Patch, Shown

Fetch = Callable[[Connection, str, Mapping[str, object]], list[TupleRow]]


def _with_own_clock(fetch: Fetch) -> Fetch:
    def patched(connection: Connection, name: str, values: Mapping[str, object]) -> list[TupleRow]:
        if name == "claim":
            values = {**values, "own_clock": datetime.now(UTC)}
        return fetch(connection, name, values)

    return patched


ALL = (
    Mutant(
        name="claim-without-lock",
        row=1,
        invariant="no-overlap",
        stands_for="two workers select the same row: no lock between reading and updating it",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(Edit("claim", "    for update skip locked\n", ""),),
    ),
    Mutant(
        name="attempts-counted-on-failure-only",
        row=20,
        invariant="attempts-bounded",
        stands_for="a crash does not count as an attempt, so a poison task kills workers for ever",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(
            Edit(
                "claim",
                "    attempts = task.attempts + 1,\n",
                "    attempts = greatest(1, task.attempts),\n",
            ),
        ),
    ),
    Mutant(
        name="claim-takes-future-tasks",
        row=46,
        invariant="not-early",
        stands_for="tasks run before they are due",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(Edit("claim", "          and next_run_at <= scheduler.now()\n", ""),),
    ),
    Mutant(
        name="claim-takes-twice-the-limit",
        row=2,
        invariant="claim-bounded",
        stands_for="a claim takes more rows than it was asked for",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(Edit("claim", "        limit share.size\n", "        limit 2 * share.size\n"),),
    ),
    Mutant(
        name="claims-by-its-own-clock",
        row=11,
        invariant="not-early",
        stands_for="the worker's clock decides what is due",
        shown_by=Shown("wrong-clocks", 0.5),
        edits=(
            Edit(
                "claim",
                "and next_run_at <= scheduler.now()",
                "and next_run_at <= %(own_clock)s::timestamptz",
            ),
        ),
        patches=(Patch("scheduler.dispatch:fetch", _with_own_clock),),
    ),
    Mutant(
        name="low-priority-never-runs",
        row=38,
        invariant="progress",
        stands_for="tasks of the lowest priority are never looked at",
        shown_by=Shown("priorities", 0.3),
        edits=(Edit("claim", "generate_series(0, 3)", "generate_series(1, 3)"),),
    ),
    Mutant(
        name="claim-waits-for-locked-rows",
        row=41,
        invariant="progress",
        stands_for="a claim waits for locked rows instead of passing over them",
        shown_by=Shown("row-lock", 0.5),
        edits=(Edit("claim", "    for update skip locked\n", "    for update\n"),),
    ),
    Mutant(
        name="lost-claims-count",
        row=45,
        invariant="attempts-bounded",
        stands_for="a claim whose reply was lost uses up an attempt of tasks that never started",
        shown_by=Shown("reply-lost", 0.5),
        edits=(
            Edit(
                "release_claim",
                "set status = 'pending', attempts = task.attempts - 1,",
                "set status = 'pending',",
            ),
        ),
    ),
)
