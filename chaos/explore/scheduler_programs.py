"""Small programs over the scheduler, ready to be explored: its races in their smallest form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from psycopg import Connection

import scheduler
from chaos.explore import clock
from chaos.explore import scheduler_actors as act
from chaos.explore.program import Actor, Endings, Program
from chaos.explore.run import Bounds
from chaos.explore.scheduler_watch import Watch
from scheduler.slots import LEASE_LOST


def install(connection: Connection) -> None:
    """The scheduler's schema, under the explorer's clock, and a table for effects."""
    scheduler.migrate(connection.info.dsn)
    clock.install_clock(connection, "scheduler")
    connection.execute(
        "create table explorer_effects (task bigint not null, token bigint not null)"
    )


_EXPECTED = (LEASE_LOST, "57P01")  # the latter is a session that was terminated


def ended_well(connection: Connection, endings: Endings) -> None:
    """Of the database's errors an actor met none but a lost connection or a lost lease."""
    for name, ending in endings.items():
        error = ending.error
        cut = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        if isinstance(error, psycopg.Error) and not cut:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            assert error.sqlstate in _EXPECTED, f"progress: {name} ended with {what}"


def effects_once(connection: Connection, endings: Endings) -> None:
    """An effect is there exactly once if its task is completed, and never more than once."""
    ended_well(connection, endings)
    wrong = connection.execute(
        "select task.id, task.status, count(effect.task) from scheduler.tasks as task"
        " left join explorer_effects as effect on effect.task = task.id group by task.id"
        " having count(effect.task) <> (task.status = 'completed')::int order by task.id"
    ).fetchone()
    assert wrong is None, "effect-once: task {}, which is {}, has {} effects".format(*(wrong or ()))


@dataclass(frozen=True, slots=True)
class Known:
    """A program with how far `chaos explore` searches it by default."""

    program: Program
    bounds: Bounds
    about: str


def _program(name: str, actors: Mapping[str, Actor], tasks: int = 1) -> Program:
    watch = Watch(tasks=tasks, attempts=2, claims=1)
    return Program(
        setup=watch.setup,
        actors=actors,
        invariant=watch.invariant,
        at_end=ended_well,
        install=install,
        advance=clock.advance,
        autocommit=True,
        imported=f"{__name__}:PROGRAMS[{name!r}].program",
    )


PROGRAMS = {
    "claims": Known(
        _program(
            "claims",
            {name: partial(act.claimer, owner=f"{name}/1") for name in ("a", "b", "c")},
            tasks=2,
        ),
        Bounds(preemptions=2, crashes=1),
        "three workers claim two tasks",
    ),
    "completions": Known(
        _program(
            "completions", {name: partial(act.completer, owner=f"{name}/1") for name in ("a", "b")}
        ),
        Bounds(preemptions=None, crashes=1),
        "two workers claim and complete one task",
    ),
    "successions": Known(
        _program(
            "successions",
            {
                "a": partial(act.one_after_another, owner="a"),
                "b": partial(act.completer, owner="b/1"),
            },
            tasks=2,
        ),
        Bounds(preemptions=2, crashes=1),
        "one completes and claims with one commit, beside another worker",
    ),
    "zombie": Known(
        _program(
            "zombie",
            {
                "a": partial(act.completer, owner="a/1"),
                "b": partial(act.rescuer, owner="b/1"),
            },
        ),
        Bounds(preemptions=2, advances=1),
        "a lease expires while its holder works, and another worker takes over",
    ),
    "reclaim": Known(
        _program("reclaim", {"a": partial(act.renewer, owner="a/1"), "b": act.reclaimer}),
        Bounds(preemptions=None, crashes=1, advances=1),
        "a holder renews and completes while a reaper looks for expired leases",
    ),
    "endings": Known(
        _program(
            "endings",
            {
                "a": partial(act.failer, owner="a/1"),
                "b": partial(act.snoozer, owner="b/1"),
                "c": act.canceller,
            },
        ),
        Bounds(preemptions=2),
        "one fails, one snoozes, and an operator cancels",
    ),
    "releases": Known(
        _program(
            "releases",
            {
                "a": partial(act.releaser, owner="a/1"),
                "b": partial(act.forgetter, owner="b/1"),
                "c": act.reclaimer,
            },
        ),
        Bounds(preemptions=2, advances=1),
        "claims are given back, by lease and by owner, beside a reaper",
    ),
    "effect": Known(
        replace(
            _program("effect", {"a": partial(act.transactional, owner="a/1"), "b": act.reclaimer}),
            at_end=effects_once,
        ),
        Bounds(preemptions=2, crashes=1, lost_replies=1, advances=1),
        "a transactional handler completes with its effect, or not at all",
    ),
}
