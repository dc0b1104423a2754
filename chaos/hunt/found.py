"""What came of hunting a mutant: who caught it, by which invariant, how soon, by which schedule."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal, NamedTuple

from chaos.mutants import MUTANTS, Mutant

Result = Literal["killed", "by another", "equivalent", "survived", "stale", "broken", "unmet"]

SOON = 60.0  # seconds in which a planted bug is to be caught
# What each result says of the harness. `killed` and `equivalent` are what they should be, `unmet`
# says nothing, and any other is an error (see `Hunted.held`).
MEANS: dict[Result, str] = {
    "killed": "caught, by its named invariant if it names one",
    "equivalent": "nothing caught it, and it is written down why nothing can",
    "by another": "caught, but by another invariant than the one it names",
    "survived": "nothing caught it",
    "stale": "caught, though it is written down that nothing can",
    "broken": "a hunter could not do its work",
    "unmet": "it is out of reach of those who hunted",
}


class Kill(NamedTuple):
    """One failure that a mutant caused.

    hunter: the explorer's program, the state machine, the test or the scenario. invariant: None for
    what no invariant names: an actor that raises, or waits for ever. sentence: what was found.
    seconds: from when the hunt for this mutant began. replay: the command that shows the failure
    again.
    schedule: of the explorer; of the state machine how many steps it took, and the last.
    """

    hunter: str
    invariant: str | None
    sentence: str
    seconds: float
    replay: str
    schedule: str = ""


def hunt_again(mutant: Mutant) -> str:
    """The command that hunts this mutant alone."""
    generated = () if mutant.name in MUTANTS else ("--generated",)
    return shlex.join(["chaos", "hunt", *generated, "--only", mutant.name])


@dataclass(frozen=True, slots=True)
class Hunted:
    """One mutant after the hunt.

    named: the invariant that must catch it; empty if any may. kill: by that invariant. others: what
    else was found until then. schedules, runs, examples, tests: of the explorer, of scenarios, of
    the state machine and of tests, for this mutant. reason: why nothing can catch it, where that is
    written down.
    """

    mutant: str
    stands_for: str
    named: str
    kill: Kill | None = None
    others: tuple[Kill, ...] = ()
    schedules: int = 0
    seconds: float = 0.0
    runs: int = 0
    examples: int = 0
    tests: int = 0
    reason: str = ""
    broke: str = ""

    @property
    def result(self) -> Result:
        """What it comes to."""
        caught = self.kill is not None or bool(self.others)
        if caught and self.reason:
            return "stale"
        if self.kill is not None:
            return "killed"
        if self.broke:
            return "broken"
        looked = self.schedules or self.runs or self.examples or self.tests
        if not (self.others or looked or self.reason):
            return "unmet"
        if self.others:
            return "by another"
        return "equivalent" if self.reason else "survived"

    @property
    def slow(self) -> bool:
        """Whether it was caught, and too late: nobody waits for a hunter that takes so long."""
        return self.kill is not None and self.kill.seconds > SOON

    @property
    def held(self) -> bool:
        """Whether this is as it should be; what nobody met says nothing."""
        return self.result in ("killed", "equivalent", "unmet") and not self.slow
