"""A script: a small program over the scheduler in words, which can be run, judged and written down.

Script(actors={"a": "claim complete", "b": "reclaim claim"}, invariant="fenced")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial

from psycopg import Connection

from chaos.explore import clock, scheduler_programs
from chaos.explore.crash_actors import WORK
from chaos.explore.errors import ExplorerError
from chaos.explore.program import Actor, Program
from chaos.explore.scheduler_actors import KIND, LEASE
from chaos.explore.scheduler_watch import Watch
from chaos.history.events import Note, Recurrence
from chaos.invariants.judge import INVARIANTS
from chaos.lowering.actors import WORDS, play
from chaos.systems.leaseproof import RULES
from scheduler import Every, Registry
from scheduler.access import limit_source
from scheduler.dispatch import declare_limits
from scheduler.recurring import Missed
from scheduler.schedules import declare_schedules

EVERY = timedelta(seconds=60)  # of the schedule, whose first run is due from the start
RESET = (
    "delete from scheduler.kind_limits; delete from scheduler.sources;"
    " delete from scheduler.schedules;"
    " select setval(pg_get_serial_sequence('scheduler.tasks', 'id'), 100)"
)


@dataclass(frozen=True)
class Script:
    """What each actor does, in words of `chaos.lowering.actors`, and what must hold all the time.

    tasks, attempts: so many tasks stand at the start, with so many attempts each.
    delays: in how many seconds a task is due, if not at once.
    claims: how many tasks a claim may take, for `claim-bounded`.
    limit: of how many tasks their kind may run at once.
    cap: how many tasks their source may have outstanding.
    until: how long a task keeps the key that is asked for: `started`, `finished` or `period`.
    missed: what becomes of missed runs of the schedule, if there is one.
    """

    actors: Mapping[str, str]
    invariant: str
    tasks: int = 1
    attempts: int = 5
    delays: Mapping[int, int] = field(default_factory=dict)
    claims: int = 1
    limit: int | None = None
    cap: int | None = None
    until: str = "finished"
    missed: Missed | None = None

    def __post_init__(self) -> None:
        if self.invariant not in INVARIANTS:
            raise ExplorerError(
                f"no invariant is called {self.invariant!r}; known: {', '.join(INVARIANTS)}"
            )
        for words in self.actors.values():
            for word in words.split():
                if word.partition(":")[0] not in WORDS:
                    raise ExplorerError(f"no actor can {word!r}; known words: {', '.join(WORDS)}")

    def __str__(self) -> str:
        """As Python that makes it again, without what is as usual."""
        told = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value not in ({}, one.default):
                told.append(f"    {one.name}={value!r},\n")
        return f"Script(\n{''.join(told)})"

    def steps(self, word: str) -> int:
        """How many steps a word takes, if it does anything; a claim takes hold of limits first."""
        act = word.partition(":")[0]
        return WORDS[act].steps + (act == "claim" and self.limit is not None)

    def program(self) -> Program:
        """The program to explore. Its database may be used by other scripts' programs, too."""
        notes: list[Note] = []
        watch = Watch(
            tasks=self.tasks,
            attempts=self.attempts,
            claims=self.claims,
            invariants=(INVARIANTS[self.invariant],),
            rules=replace(
                RULES,
                limits={} if self.limit is None else {KIND: self.limit},
                schedules={}
                if self.missed is None
                else {"tick": Recurrence(EVERY // _MICROSECOND, self.missed)},
            ),
            notes=lambda: tuple(notes),
        )

        def setup(connection: Connection) -> None:
            notes.clear()
            watch.setup(connection)
            connection.execute(RESET)
            self._prepare(connection, watch)

        limited = self.limit is not None
        actors: dict[str, Actor] = {
            name: partial(
                play, name=name, words=words, limited=limited, until=self.until, notes=notes
            )
            for name, words in self.actors.items()
        }
        return Program(
            setup=setup,
            actors=actors,
            invariant=watch.invariant,
            install=install,
            advance=clock.advance,
            autocommit=True,
            imported=f"{__name__}:{self}.program()",
        )

    def _prepare(self, connection: Connection, watch: Watch) -> None:
        for task, delay in self.delays.items():
            connection.execute(
                "update scheduler.tasks set next_run_at = next_run_at + %s where id = %s",
                [timedelta(seconds=delay), task],
            )
        if self.limit is not None:
            declare_limits(connection, {KIND: self.limit})
        if self.cap is not None:
            source = connection.info.user
            limit_source(connection, source, self.cap)
            watch.rules = replace(watch.rules, caps={source: self.cap})
        if self.missed is not None:
            declare_schedules(connection, _registry(self.missed))
            clock.advance(connection, EVERY)


_MICROSECOND = timedelta(microseconds=1)


def install(connection: Connection) -> None:
    """As for the explorer's other programs, once a database."""
    [(standing,)] = connection.execute("select to_regclass('explorer_effects')")
    if standing is None:
        scheduler_programs.install(connection)


def _registry(missed: Missed) -> Registry:
    registry = Registry()
    job = registry.kind(KIND, int, lease=LEASE)(WORK.handler)
    registry.schedule("tick", job, 1, Every(EVERY), missed=missed)
    return registry
