"""Planted bugs: our scheduler with one clause of its SQL changed.

Each stands for a bug that real queues had, and names the invariant that must catch it. A mutant is
applied inside the worker process that runs it; the source tree is never touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from scheduler import statements


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug: in `sql/<statement>.sql`, `old` becomes `new`, wherever it stands."""

    name: str
    statement: str
    old: str
    new: str
    invariant: str
    stands_for: str


_ALL = (
    Mutant(
        "claim-without-lock",
        "claim",
        "    for update skip locked\n",
        "",
        "no-overlap",
        "two workers select the same row: no lock between reading and updating it",
    ),
    Mutant(
        "complete-without-fence",
        "complete",
        " and task.lease_token = held.token and task.lease_owner = held.owner",
        " and task.status = 'running'",
        "fenced",
        "a zombie completes by id and overwrites a newer attempt",
    ),
    Mutant(
        "reclaim-ignores-expiry",
        "reclaim",
        " and lease_expires_at < scheduler.now()",
        "",
        "no-overlap",
        "recovery resets rows that live workers hold",
    ),
    Mutant(
        "attempts-counted-on-failure-only",
        "claim",
        "    attempts = task.attempts + 1,\n",
        "    attempts = greatest(1, task.attempts),\n",
        "attempts-bounded",
        "a crash does not count as an attempt, so a poison task kills workers for ever",
    ),
    Mutant(
        "claim-takes-future-tasks",
        "claim",
        "          and next_run_at <= scheduler.now()\n",
        "",
        "not-early",
        "tasks run before they are due",
    ),
    Mutant(
        "claim-takes-twice-the-limit",
        "claim",
        "        limit share.size\n",
        "        limit 2 * share.size\n",
        "claim-bounded",
        "a claim takes more rows than it was asked for",
    ),
    Mutant(
        "never-renews",
        "renew",
        "    order by task.id\n",
        "    where false\n    order by task.id\n",
        "explained-duplicate",
        "a lease is never renewed, so tasks longer than it run twice",
    ),
    Mutant(
        "fails-without-backoff",
        "fail",
        "task.attempts, task.id, task.lease_token)\n",
        "task.attempts, task.id, task.lease_token) * 0\n",
        "backs-off",
        "a failed task is retried at once",
    ),
    Mutant(
        "snooze-lowers-the-token",
        "snooze",
        "attempts = task.attempts - 1,\n",
        "attempts = task.attempts - 1, lease_token = task.lease_token - 1,\n",
        "legal-steps",
        "fencing by a number that snoozing lowers again",
    ),
    Mutant(
        "keeps-the-first-error",
        "fail",
        "        last_error = mine.error,\n",
        "        last_error = coalesce(task.last_error, mine.error),\n",
        "attempts-bounded",
        "dead-lettering keeps an error that is not the one that ended it",
    ),
)

MUTANTS = {mutant.name: mutant for mutant in _ALL}


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[None]:
    """While inside, this process's scheduler runs with the mutant's SQL.

    Raises ValueError if the clause does not stand in its file: a mutant that changes nothing would
    be counted as a bug that nobody caught.
    """
    if mutant is None:
        yield
        return
    genuine = statements.SQL
    with TemporaryDirectory(prefix="leaseproof-mutant-") as directory:
        copy = Path(directory) / "sql"
        shutil.copytree(genuine, copy)
        file = copy / f"{mutant.statement}.sql"
        text = file.read_text()
        if mutant.old not in text:
            raise ValueError(f"mutant {mutant.name}: its clause does not stand in {file.name}")
        file.write_text(text.replace(mutant.old, mutant.new))
        statements.SQL = copy
        statements.statement.cache_clear()
        try:
            yield
        finally:
            statements.SQL = genuine
            statements.statement.cache_clear()
