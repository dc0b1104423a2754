"""One piece of work whose outcomes its own tasks decide, what they must be, and what they were.

Each task carries its name in its payload; ids, owners and tokens are the run's own and say nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from chaos.history.journal import read_journals
from chaos.systems import Order
from chaos.workload import Behaviour, Job

# Seconds until a task that is put off is due: longer than a run takes, less than clocks are wrong
# by, and so little that by its priority it goes first wherever somebody thinks it due.
LATER, FIRST = 100.0, 3
LONG = 3e8  # seconds, ten years: how long a key is kept, so that no run meets the end of its period
HELD = 3.0  # seconds that a handler takes whose lease has to be renewed meanwhile


class Outcome(NamedTuple):
    """What became of a task.

    attempts: as its row counts them. ends: how each attempt ended, but for those that were given
    back uncounted: how many of these there are is the run's own. effects: how often its effect
    happened, within its transaction or outside the database.
    """

    name: str
    status: str
    attempts: int
    ends: tuple[str, ...]
    effects: int


def _group(
    what: str,
    count: int,
    behaviour: Behaviour,
    most: int,
    failures: int = 0,
    *,
    seconds: float = 0.0,
    delay: float = 0.0,
    priority: int = 1,
    keyed: bool = False,
) -> Iterator[Order]:
    for number in range(1, count + 1):
        name = f"{what} {number}"
        job = Job(number, behaviour, seconds, failures, text=name)
        key = name if keyed else None
        yield Order(job, delay, most, key=key, until=LONG, priority=priority)


WORK: tuple[Order, ...] = (
    *_group("quick", 8, "quick", 3),
    *_group("only one attempt", 4, "quick", 1),
    *_group("in a transaction", 4, "transactional", 3),
    *_group("fails once", 4, "flaky", 3, 1),
    *_group("fails twice", 4, "flaky", 3, 2),
    *_group("fails too often", 2, "flaky", 2, 2),
    *_group("always fails", 2, "failing", 3),
    *_group("snoozes", 3, "snoozing", 1, 1),
    *_group("put off", 3, "quick", 3, delay=LATER, priority=FIRST),
    *_group("asked for twice", 3, "quick", 3, keyed=True),
)
# First one that runs until its lease was renewed: whoever has it leaves the rest to others.
LONG_WORK = (*_group("held", 1, "slow", 3, seconds=HELD), *WORK)


def expected(work: Iterable[Order]) -> list[Outcome]:
    """The outcomes of this work, by its payloads alone. What is put off is cancelled in the end."""
    return sorted(_expected(order) for order in work)


def _expected(order: Order) -> Outcome:
    name, most = order.job.text, order.max_attempts
    if order.delay:
        return Outcome(name, "cancelled", 0, (), 0)
    failures = {"failing": most, "flaky": order.job.failures}.get(order.job.behaviour, 0)
    if failures >= most:
        return Outcome(name, "dead", most, ("failed",) * most, 0)
    return Outcome(name, "completed", failures + 1, ("failed",) * failures + ("completed",), 1)


def observed(dsn: str, journals: Path) -> list[Outcome]:
    """The outcomes of all tasks there are."""
    with psycopg.connect(dsn) as connection:
        tasks = connection.execute(
            "select id, payload ->> 'text', status, attempts from scheduler.tasks"
        ).fetchall()
        attempts = connection.execute(
            "select task_id, outcome from scheduler.run_log"
            " where outcome not in ('released', 'snoozed') order by task_id, lease_token"
        ).fetchall()
        effects = Counter(task for (task,) in connection.execute("select task from effects"))
    effects.update(note.task for note in read_journals(journals, 0) if note.what == "effect")
    ends: defaultdict[int, tuple[str, ...]] = defaultdict(tuple)
    for task, how in attempts:
        ends[task] += (how,)
    return sorted(
        Outcome(name, status, counted, ends[task], effects[task])
        for task, name, status, counted in tasks
    )
