"""Lowers a recorded run with the bug that was planted in it, and looks how it goes without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.cluster.postgres import Postgres
from chaos.explore.explore import replay
from chaos.explore.schedule import show
from chaos.history.events import History
from chaos.lowering.lower import Lowered, lower
from chaos.lowering.projection import CannotLowerError
from chaos.mutants import MUTANTS, planted


@dataclass(frozen=True)
class LoweredRun:
    """A recorded failure, found again. stands: whether the same schedule is right without the bug;
    None if none was planted."""

    lowered: Lowered
    mutant: str | None
    stands: bool | None

    def test(self) -> str:
        """As the source of a test module."""
        return self.lowered.test(self.mutant)


def lower_run(
    history: History,
    server: Postgres,
    name: str,
    invariant: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> LoweredRun:
    """Lower a failure of a run, on a server of the explorer's; see `lower`.

    `name` is a word that no other run lowered on that server has. Raises CannotLowerError, and
    ExplorerError, ClusterError or psycopg.Error if it cannot do its work.
    """
    mutant = mutant_of(history)
    bug = None if mutant is None else MUTANTS[mutant]
    server.create_database(name)
    with planted(bug):
        lowered = lower(history, server.dsn(name), invariant, tell)
    if bug is None:
        return LoweredRun(lowered, None, None)
    server.create_database(f"{name}_without")
    schedule = show(lowered.trace.choices)
    program = lowered.script.program()
    again = replay(program, schedule, server.dsn(f"{name}_without"), strict=False)
    return LoweredRun(lowered, mutant, again.violation is None)


def mutant_of(history: History) -> str | None:
    """The planted bug that a run was made with; None for the scheduler as it is.

    Raises CannotLowerError for a run of another system.
    """
    name = str(history.about.get("system"))
    system, _, mutant = name.partition(":")
    if system != "leaseproof" or (mutant and mutant not in MUTANTS):
        raise CannotLowerError(
            f"the run was one of {name}, and a script's words are leaseproof's own code"
        )
    return mutant or None
