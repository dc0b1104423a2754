"""What must hold of the scheduler after every step: the harness's own invariants.

After each step the committed rows are read. A step commits one transaction at most, so what
changed since the step before is that transaction, and the whole makes a history that the
invariants judge like that of any run.
"""

from __future__ import annotations

import json
from dataclasses import replace

from psycopg import Connection

from chaos.explore.clock import RESET, TICK
from chaos.history.events import Change, Commit, Ended, History, Phases, Row
from chaos.history.lives import lives
from chaos.invariants.attempts import attempts_bounded, backs_off
from chaos.invariants.claiming import claim_bounded, not_early
from chaos.invariants.fencing import fenced
from chaos.invariants.judge import Invariant
from chaos.invariants.leases import no_overlap
from chaos.invariants.lifecycle import legal_steps
from chaos.systems.leaseproof import RULES, Leaseproof

# Those that a prefix of a history can break; the others speak of its end. `legal-steps` comes last:
# what breaks another invariant often breaks it too, and the other says more.
INVARIANTS: tuple[Invariant, ...] = (
    no_overlap,
    fenced,
    not_early,
    attempts_bounded,
    backs_off,
    claim_bounded,
    legal_steps,
)
_TASKS, _LOG, _ = Leaseproof().watched()
_FOREVER = 10**18
_SETUP = (
    "delete from explorer_effects;"
    " delete from scheduler.run_log;"
    " delete from scheduler.tasks;"
    f" {RESET};"
    " insert into scheduler.tasks (id, kind, payload, next_run_at, max_attempts, backoff_base,"
    " backoff_factor, backoff_cap, backoff_jitter, enqueued_at) overriding system value"
    " select n, 'job', '{{}}', at, {attempts}, 1, 2, 60, 0, at"
    " from explorer_clock.reading, generate_series(1, {tasks}) as n"
)


def _array(columns: tuple[str, ...]) -> str:
    return "json_build_array(" + ", ".join(f"{column}::text" for column in columns) + ")::text"


# Reading moves the clock a little: no two commits share an instant, as no two statements would.
_READ = (
    f"select 0, {_array(_TASKS.columns)} from {_TASKS.table}"
    f" union all select 1, {_array(_LOG.columns)} from {_LOG.table}"
    f" union all select 2, {TICK}::text"
).encode()


_Raw = tuple[tuple[int, str], ...]  # which table, and a row of it as JSON


def _parse(raw: _Raw) -> tuple[dict[int, Row], list[Ended]]:
    tasks: dict[int, Row] = {}
    log: list[Ended] = []
    for which, text in raw:
        watched = _LOG if which else _TASKS
        event = watched.read(dict(zip(watched.columns, json.loads(text), strict=True)))
        if isinstance(event, Row):
            tasks[event.task] = event
        elif isinstance(event, Ended):
            log.append(event)
    return tasks, log


class Watch:
    """`setup` and `invariant` of a program: the latter judges the commits since the former."""

    def __init__(self, tasks: int, attempts: int, claims: int) -> None:
        """So many tasks, all due, with so many attempts each; a claim may take `claims`."""
        self._setup = _SETUP.format(tasks=tasks, attempts=attempts).encode()
        self._rules = replace(RULES, claim_limit=claims, snooze_delay=None)
        self._commits: dict[tuple[_Raw, ...], tuple[Commit, ...]] = {}  # judged, and found right
        self._begin()

    def _begin(self) -> None:
        self._seen: tuple[_Raw, ...] = ()

    def setup(self, connection: Connection) -> None:
        """Put the tasks back to where every schedule starts."""
        connection.execute(self._setup)
        self._begin()

    def invariant(self, connection: Connection) -> None:
        """Judge what is committed now; raises AssertionError with the first failure."""
        *rows, _ = connection.execute(_READ).fetchall()
        raw: _Raw = tuple(sorted(rows))
        if self._seen and self._seen[-1] == raw:
            return
        # Schedules begin alike, so most of these histories have been judged before.
        before = self._commits.get(self._seen, ())
        self._seen = (*self._seen, raw)
        commits = self._commits.get(self._seen)
        if commits is None:
            commits = (*before, *self._commit(len(before)))
            self._judge(commits)
            self._commits[self._seen] = commits

    def _commit(self, seq: int) -> tuple[Commit, ...]:
        """What was committed between the last two looks. When, no invariant here asks."""
        was: _Raw = self._seen[-2] if len(self._seen) > 1 else ()
        tasks_were, log_was = _parse(was)
        tasks, log = _parse(self._seen[-1])
        changes = [Change(task, row) for task, row in tasks.items() if tasks_were.get(task) != row]
        changes += [Change(task, None) for task in tasks_were.keys() - tasks.keys()]
        new = tuple(ended for ended in log if ended not in log_was)
        return (Commit(seq, seq, seq, tuple(changes), new, ()),) if changes or new else ()

    def _judge(self, commits: tuple[Commit, ...]) -> None:
        history = History(
            about={},
            rules=self._rules,
            phases=Phases(0, _FOREVER, _FOREVER, _FOREVER, _FOREVER, 0),
            commits=commits,
        )
        told = lives(history)
        for invariant in INVARIANTS:
            verdict = invariant(history, told)
            if verdict.outcome == "fail":
                raise AssertionError(f"{verdict.invariant}: {verdict.sentence}")
