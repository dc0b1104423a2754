"""Several workers at once: Hypothesis draws what each of them does and how that is interleaved.

A rule adds a word to somebody's part, or a step to the schedule. When both are drawn the explorer
runs them on a real database, one statement at a time, and judges each commit. So a failure shrinks
in both at once, to the fewest workers, words and steps that show it, and replays exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from psycopg import Connection

from chaos.explore import Bounds, Endings, Program, clock
from chaos.explore.run import Trace, run
from chaos.explore.schedule import CRASH, CRASH_AFTER, LOST_REPLY, STEP, Advance, Choice, Step
from chaos.explore.scheduler_watch import WATCHED, Watch
from chaos.explore.stage import Stage
from chaos.history.events import Note
from chaos.invariants.keys import key_once
from chaos.lowering.actors import play
from chaos.lowering.script import RESET, install

NAMES = ("a", "b", "c")
TASKS, ATTEMPTS, CLAIMS = 2, 2, 2
OFTEN = ("claim", "complete", "reclaim", "claim:2", "fail", "renew", "transact")
SELDOM = ("release", "snooze", "cancel", "cancel:2", "requeue", "discard", "ask")
FAULTS = (STEP, STEP, STEP, CRASH, CRASH_AFTER, LOST_REPLY)


@dataclass
class Theatre:
    """A stage for actors whose parts change from run to run."""

    stage: Stage | None = None
    parts: dict[str, list[str]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    runs: int = 0

    def play(self, connection: Connection, name: str) -> None:
        """What an actor does in the present run."""
        words = " ".join(self.parts.get(name, ()))
        play(connection, name, words, limited=False, until="finished", notes=self.notes)

    def run(self, parts: dict[str, list[str]], schedule: list[Choice]) -> Trace:
        """Run these parts in this order; steps that cannot be taken are left out."""
        assert self.stage is not None
        self.parts = parts
        self.runs += 1
        return run(self.stage, schedule, Bounds(), strict=False)


def effects_of_completions(connection: Connection, endings: Endings) -> None:
    """A task has an effect only if it is completed, and then one at most."""
    wrong = connection.execute(
        "select task.id, task.status, count(*) from scheduler.tasks as task"
        " join explorer_effects as effect on effect.task = task.id group by task.id"
        " having count(*) > (task.status = 'completed')::int"
    ).fetchone()
    assert wrong is None, "task {}, which is {}, has {} effects".format(*(wrong or ()))


@contextmanager
def theatre(dsn: str) -> Iterator[Theatre]:
    """The machine's explorer on this empty database."""
    made = Theatre()
    watch = Watch(
        TASKS,
        ATTEMPTS,
        CLAIMS,
        invariants=(*WATCHED, key_once),
        notes=lambda: tuple(made.notes),
    )

    def setup(connection: Connection) -> None:
        made.notes.clear()
        watch.setup(connection)
        connection.execute(RESET)

    program = Program(
        setup=setup,
        actors={name: partial(made.play, name=name) for name in NAMES},
        invariant=watch.invariant,
        at_end=effects_of_completions,
        install=install,
        advance=clock.advance,
        autocommit=True,
    )
    with Stage(dsn, program) as stage:
        made.stage = stage
        yield made


class Interleaving(RuleBasedStateMachine):
    """What several actors do, and in which order."""

    theatre: ClassVar[Theatre | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[str]] = {}
        self.schedule: list[Choice] = []

    @rule(actor=st.sampled_from(NAMES), word=st.sampled_from(OFTEN) | st.sampled_from(SELDOM))
    def does(self, actor: str, word: str) -> None:
        """The actor does this as well."""
        self.parts.setdefault(actor, []).append(word)

    @rule(actor=st.sampled_from(NAMES), fault=st.sampled_from(FAULTS))
    def steps(self, actor: str, fault: str) -> None:
        """Then it is the actor's turn, or something happens to it."""
        self.schedule.append(Step(actor, fault))

    @rule(seconds=st.sampled_from((1, 31)))
    def waits(self, seconds: int) -> None:
        """Then time goes by: a little, or longer than a lease."""
        self.schedule.append(Advance(timedelta(seconds=seconds)))

    def teardown(self) -> None:
        """All is drawn: let it happen."""
        assert self.theatre is not None
        trace = self.theatre.run(self.parts, self.schedule)
        assert trace.violation is None, f"{told(self.parts)}\n{trace}"


def told(parts: dict[str, list[str]]) -> str:
    """Who does what, as a line for people."""
    return "; ".join(f"{name}: {' '.join(words)}" for name, words in sorted(parts.items()))
