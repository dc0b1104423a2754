"""Planted bugs in what a claim takes."""

from __future__ import annotations

from chaos.mutants.mutant import Edit, Mutant, Patch, Shown
from chaos.mutants.own_clock import with_own_clock

ALL = (
    Mutant(
        name="never-looks-below",
        row=47,
        invariant="in-turn",
        stands_for="a claim starts at a cursor, and nobody looks for what comes back below it",
        shown_by=Shown("backlog", 0.5),
        patches=(Patch("scheduler.floors:Floors.old", lambda _: lambda floors: False),),
    ),
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
        patches=(Patch("scheduler.dispatch:fetch", with_own_clock),),
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
    Mutant(
        name="limit-counted-without-lock",
        row=23,
        invariant="limit-held",
        stands_for="a limit is counted while another claim of its kind is under way",
        shown_by=Shown("limited-kind", 0.4),
        edits=(
            Edit(
                "claim",
                "or limited.kind = any(nullif(current_setting('scheduler.limits', true), '')"
                "::text[])",
                "or true",
            ),
        ),
    ),
    Mutant(
        name="retries-count-against-their-limit",
        row=14,
        invariant="progress",
        stands_for="what the dead held counts against the limit that it needs to run again",
        shown_by=Shown("limited-kind", 0.4),
        edits=(
            Edit(
                "claim",
                "where held.status = 'running' and held.kind = limited.kind",
                "where (held.status = 'running' or held.status = 'pending' and held.attempts > 0)"
                " and held.kind = limited.kind",
            ),
        ),
    ),
    Mutant(
        name="one-row-aborts-the-claim",
        row=44,
        invariant="progress",
        stands_for="a row that a constraint refuses aborts the claim of all others, every time",
        shown_by=Shown("poison-pill", 0.3),
        edits=(
            Edit("claim", "          and attempts < max_attempts\n", ""),
            Edit(
                "migrations/0001_core",
                "status <> 'pending' or attempts < max_attempts)",
                "status <> 'pending' or attempts <= max_attempts)",
            ),
            Edit(
                "reclaim",
                "set status = case when task.attempts >= task.max_attempts"
                " then 'dead' else 'pending' end,\n"
                "        finished_at = case when task.attempts >= task.max_attempts"
                " then scheduler.now() end,",
                "set status = 'pending',",
            ),
        ),
    ),
)
