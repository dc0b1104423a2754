"""What must hold of the scheduler after every step: seven of the harness's own invariants.

After each step the committed rows are read. A step commits one transaction at most, so what
changed since the step before is that transaction, and the whole makes a history that the
invariants judge like that of any run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from psycopg import Connection

from chaos.explore.clock import RESET, TICK
from chaos.history.events import Change, Commit, Effect, Ended, History, Note, Phases, Row, Rules
from chaos.history.lives import lives
from chaos.invariants.attempts import attempts_bounded, backs_off
from chaos.invariants.claiming import claim_bounded, not_early
from chaos.invariants.fencing import fenced
from chaos.invariants.judge import Invariant
from chaos.invariants.leases import no_overlap
from chaos.invariants.lifecycle import legal_steps
from chaos.systems.leaseproof import RULES, Leaseproof

# Those of a plain task, which the beginning of a history can break. It can break four more
# (`lowering/projection.py` has all eleven), which are of effects, keys, limits and schedules:
# programs that have such look at them at their end, and scripts ask for them. `legal-steps` comes
# last: what breaks another invariant often breaks it too, and the other says more.
WATCHED: tuple[Invariant, ...] = (
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
# The last row is the time.
_READ = (
    f"select 0, {_array(_TASKS.columns)} from {_TASKS.table}"
    f" union all select 1, {_array(_LOG.columns)} from {_LOG.table}"
    " union all select 2, json_build_array(task, token)::text from explorer_effects"
    f" union all select 3, (extract(epoch from at + {TICK} * interval '1 millisecond')"
    " * 1000000)::bigint::text from explorer_clock.reading"
).encode()


_Raw = tuple[tuple[int, str], ...]  # which table, and a row of it as JSON


class _Found(NamedTuple):
    """What stands in the tables."""

    tasks: dict[int, Row]
    log: list[Ended]
    effects: Counter[Effect]


def _parse(raw: _Raw) -> _Found:
    found = _Found({}, [], Counter())
    for which, text in raw:
        values = json.loads(text)
        if which == 2:
            found.effects[Effect(*values)] += 1
            continue
        watched = _LOG if which else _TASKS
        event = watched.read(dict(zip(watched.columns, values, strict=True)))
        if isinstance(event, Row):
            found.tasks[event.task] = event
        elif isinstance(event, Ended):
            found.log.append(event)
    return found


class Watch:
    """`setup` and `invariant` of a program: the latter judges the commits since the former."""

    def __init__(
        self,
        tasks: int,
        attempts: int,
        claims: int,
        *,
        invariants: Sequence[Invariant] = WATCHED,
        rules: Rules = RULES,
        notes: Callable[[], tuple[Note, ...]] = tuple,
    ) -> None:
        """So many tasks, all due, with so many attempts each; a claim may take `claims`.

        `notes` tells what the actors have noted since `setup`.
        """
        self._setup = _SETUP.format(tasks=tasks, attempts=attempts).encode()
        self.rules = replace(rules, claim_limit=claims, snooze_delay=None)
        self._invariants = invariants
        self._notes = notes
        # Judged, and found right.
        self._commits: dict[tuple[tuple[_Raw, ...], tuple[Note, ...]], tuple[Commit, ...]] = {}
        self._begin()

    def _begin(self) -> None:
        self._seen: tuple[_Raw, ...] = ()
        self._noted: tuple[Note, ...] = ()

    def setup(self, connection: Connection) -> None:
        """Put the tasks back to where every schedule starts."""
        connection.execute(self._setup)
        self._begin()

    def invariant(self, connection: Connection) -> None:
        """Judge what is committed now; raises AssertionError with the first failure."""
        *rows, (_, now) = connection.execute(_READ).fetchall()
        raw: _Raw = tuple(sorted(rows))
        notes = self._notes()
        if self._seen and self._seen[-1] == raw and notes == self._noted:
            return
        # Schedules begin alike, so most of these histories have been judged before.
        before = self._commits.get((self._seen, self._noted), ())
        self._seen, self._noted = (*self._seen, raw), notes
        commits = self._commits.get((self._seen, notes))
        if commits is None:
            commits = (*before, *self._commit(len(before), int(now)))
            self._judge(commits)
            self._commits[self._seen, notes] = commits

    def _commit(self, seq: int, now: int) -> tuple[Commit, ...]:
        """What was committed between the last two looks."""
        was = _parse(self._seen[-2] if len(self._seen) > 1 else ())
        found = _parse(self._seen[-1])
        changes = [
            Change(task, row) for task, row in found.tasks.items() if was.tasks.get(task) != row
        ]
        changes += [Change(task, None) for task in was.tasks.keys() - found.tasks.keys()]
        new = tuple(ended for ended in found.log if ended not in was.log)
        effects = tuple((found.effects - was.effects).elements())
        if not (changes or new or effects):
            return ()
        return (Commit(seq, now, seq, tuple(changes), new, effects),)

    def _judge(self, commits: tuple[Commit, ...]) -> None:
        history = History(
            about={},
            rules=self.rules,
            phases=Phases(0, _FOREVER, _FOREVER, _FOREVER, _FOREVER, 0),
            commits=commits,
            notes=self._noted,
        )
        told = lives(history)
        for invariant in self._invariants:
            verdict = invariant(history, told)
            if verdict.outcome == "fail":
                raise AssertionError(f"{verdict.invariant}: {verdict.sentence}")
