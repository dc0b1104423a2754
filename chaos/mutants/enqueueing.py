"""Planted bugs in keys, limits, caps and schedules."""

from __future__ import annotations

from chaos.mutants.mutant import Edit, Mutant, Shown

ALL = (
    Mutant(
        name="claim-ignores-the-count",
        row=23,
        invariant="limit-held",
        stands_for="a limit is checked for each claim alone, not with what runs already",
        shown_by=Shown("limited-kind", 0.2),
        edits=(
            Edit("claim", "held.kind = limited.kind))", "held.kind = limited.kind and false))"),
        ),
    ),
    Mutant(
        name="cap-read-then-updated",
        row=23,
        invariant="limit-held",
        stands_for="a quota is read, then updated: a race of enqueues exceeds it",
        shown_by=Shown("capped-source", 0.5),
        edits=(
            Edit(
                "migrations/0002_access",
                "where name = task_source and outstanding + wanted <= max_outstanding;",
                "where name = task_source and (select outstanding + wanted <= max_outstanding"
                " from scheduler.sources where name = task_source);",
            ),
        ),
    ),
    Mutant(
        name="keys-without-an-index",
        row=24,
        invariant="key-once",
        stands_for="uniqueness is looked for before the insert, and no index makes sure of it",
        shown_by=Shown("unique-keys", 0.5),
        edits=(
            Edit(
                "migrations/0001_core", "create unique index tasks_key ", "create index tasks_key "
            ),
        ),
    ),
    Mutant(
        name="asking-again-resets",
        row=25,
        invariant="key-once",
        stands_for="enqueueing a key again puts back the task that stands, even while it runs",
        shown_by=Shown("unique-keys", 0.2),
        edits=(
            Edit(
                "migrations/0002_access",
                "            return query select found_id, false;\n",
                "            update scheduler.tasks set next_run_at = scheduler.now()"
                " where id = found_id;\n"
                "            return query select found_id, false;\n",
            ),
        ),
    ),
    Mutant(
        name="occurrence-planned-twice",
        row=26,
        invariant="occurrence-once",
        stands_for="two schedulers fire one slot: none compares what it read, no index decides",
        shown_by=Shown("recurring", 0.5),
        edits=(
            Edit(
                "migrations/0003_schedules", " and schedule.next_at = computed.was_next_at\n", "\n"
            ),
            Edit(
                "migrations/0003_schedules",
                "    on conflict (schedule, occurrence) where schedule is not null do nothing\n",
                "",
            ),
            Edit(
                "migrations/0001_core",
                "create unique index tasks_occurrence ",
                "create index tasks_occurrence ",
            ),
        ),
    ),
)
