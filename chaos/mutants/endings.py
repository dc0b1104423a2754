"""Planted bugs in how attempts end."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import Connection

from chaos.mutants.mutant import Edit, Mutant, Patch, Shown
from chaos.mutants.own_clock import with_own_clock
from scheduler.lease import Lease


def _after_a_commit(complete: Callable[..., None]) -> Callable[..., None]:
    def patched(connection: Connection, lease: Lease) -> None:
        connection.execute("commit")
        connection.execute("begin")
        complete(connection, lease)

    return patched


ALL = (
    Mutant(
        name="complete-without-fence",
        row=3,
        invariant="fenced",
        stands_for="a zombie completes by id and overwrites a newer attempt",
        shown_by=Shown("pause-past-lease", 0.4),
        edits=(
            Edit(
                "complete",
                " and task.lease_token = held.token and task.lease_owner = held.owner",
                " and task.status = 'running'",
            ),
        ),
    ),
    Mutant(
        name="fenced-by-token-only",
        row=43,
        invariant="fenced",
        stands_for=(
            "a failover lost claims, their tokens are issued again, and a holder from before writes"
        ),
        # A zombie meets another holder of its token only where a token is issued twice.
        shown_by=Shown("failover-asynchronous", 0.4),
        edits=(
            *(
                Edit(file, " and task.lease_owner = held.owner", " and task.status = 'running'")
                for file in ("complete", "fail", "release", "renew", "snooze")
            ),
            Edit(
                "complete_in_transaction",
                " and task.lease_owner = %(owner)s",
                " and task.status = 'running'",
            ),
            # The answer is then the asker's as well.
            Edit("renew", "select task.id, held.lease", "select task.id, held.owner, held.lease"),
            Edit("renew", "task.lease_token, task.lease_owner,", "task.lease_token, mine.owner,"),
        ),
    ),
    Mutant(
        name="fails-without-backoff",
        row=22,
        invariant="backs-off",
        stands_for="a failed task is retried at once",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(
            Edit(
                "fail",
                "task.attempts, task.id, task.lease_token)\n",
                "task.attempts, task.id, task.lease_token) * 0\n",
            ),
        ),
    ),
    Mutant(
        name="snooze-lowers-the-token",
        row=4,
        invariant="legal-steps",
        stands_for="fencing by a number that snoozing lowers again",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(
            Edit(
                "snooze",
                "attempts = task.attempts - 1,\n",
                "attempts = task.attempts - 1, lease_token = task.lease_token - 1,\n",
            ),
        ),
    ),
    Mutant(
        name="keeps-the-first-error",
        row=39,
        invariant="attempts-bounded",
        stands_for="dead-lettering keeps an error that is not the one that ended it",
        shown_by=Shown("retry-storm", 0.3),
        edits=(
            Edit(
                "fail",
                "        last_error = mine.error,\n",
                "        last_error = coalesce(task.last_error, mine.error),\n",
            ),
        ),
    ),
    Mutant(
        name="dies-one-attempt-early",
        row=21,
        invariant="attempts-bounded",
        stands_for="one attempt too few",
        shown_by=Shown("retry-storm", 0.3),
        edits=(
            Edit(
                "fail",
                "task.attempts >= task.max_attempts",
                "task.attempts >= task.max_attempts - 1",
            ),
            Edit(
                "migrations/0001_core",
                "status <> 'dead' or (attempts >= max_attempts and",
                "status <> 'dead' or (attempts >= max_attempts - 1 and",
            ),
        ),
    ),
    Mutant(
        name="errors-stored-as-they-are",
        row=28,
        invariant="progress",
        stands_for="an error with characters that the database cannot store ends its worker",
        shown_by=Shown("poison-pill", 0.3),
        patches=(Patch("scheduler.finish:storable", lambda _: str),),
    ),
    Mutant(
        name="lost-commit-is-a-failure",
        row=32,
        invariant="effect-once",
        stands_for="the reply of a COMMIT is lost, and the worker puts back what is done",
        shown_by=Shown("reply-lost", 1),
        edits=(
            Edit(
                "fail",
                " and task.lease_token = held.token and task.lease_owner = held.owner",
                " and task.lease_token = held.token",
            ),
            Edit(
                "fail",
                "task.attempts, task.claimed_at, held.error",
                "task.attempts, coalesce(task.claimed_at, scheduler.now()) as claimed_at,"
                " held.error",
            ),
        ),
    ),
    Mutant(
        name="effect-before-completion",
        row=33,
        invariant="effect-once",
        stands_for="effect and completion in two transactions",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(
            Edit(
                "complete_in_transaction",
                "when current_setting('scheduler.attempt', true)",
                "when false and current_setting('scheduler.attempt', true)",
            ),
        ),
        patches=(Patch("scheduler.slots:complete_and_commit", _after_a_commit),),
    ),
    Mutant(
        name="cancelled-task-completes",
        row=40,
        invariant="fenced",
        stands_for="a task that was cancelled while it ran is completed all the same",
        shown_by=Shown("operators", 0.4),
        edits=(
            Edit(
                "complete",
                "task.lease_token = held.token and task.lease_owner = held.owner",
                "task.lease_token = held.token"
                " and (task.lease_owner = held.owner or task.status = 'cancelled')",
            ),
            Edit(
                "complete",
                "task.attempts, task.claimed_at\n",
                "task.attempts, coalesce(task.claimed_at, scheduler.now()) as claimed_at\n",
            ),
        ),
    ),
    Mutant(
        name="holds-its-row-throughout",
        row=42,
        invariant="reclaimed-in-time",
        stands_for="a worker that stands still in its transaction holds the row for ever",
        shown_by=Shown("stopped-in-transaction", 0.5),
        edits=(
            Edit(
                "begin_attempt",
                "select\n",
                "select (select id from scheduler.tasks where status = 'running'"
                " and id || ':' || lease_owner || ':' || lease_token = %(mark)s for update),\n",
            ),
            Edit("begin_attempt", "%(idle)s", "'0'"),
        ),
    ),
    Mutant(
        name="backs-off-by-its-own-clock",
        row=11,
        invariant="backs-off",
        stands_for="the worker's clock decides when a retry is due",
        shown_by=Shown("wrong-clocks", 0.5),
        edits=(
            Edit(
                "fail",
                "else scheduler.now() + scheduler.retry_delay(",
                "else %(own_clock)s::timestamptz + scheduler.retry_delay(",
            ),
        ),
        patches=(Patch("scheduler.finish:fetch", with_own_clock),),
    ),
)
