"""What came of trying a variant: how much of it was run, and what cried at it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from chaos.invariants.verdict import Outcome


class Alarm(NamedTuple):
    """Something that cried at a correct variant.

    where: the explorer's program or the scenario. what: what was said. shown_by: the schedule, or
    the command that shows the run again.
    """

    where: str
    what: str
    shown_by: str


@dataclass(frozen=True, slots=True)
class Tried:
    """One variant after it was tried.

    programs, schedules: what the explorer searched. outcomes: of scenario runs. undecided: why runs
    were inconclusive, which is no alarm, and where they are. unmet: which of its changes never ran:
    of those, silence says nothing. broke: what the harness could not do.
    """

    name: str
    programs: int = 0
    schedules: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    alarms: tuple[Alarm, ...] = ()
    undecided: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    broke: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def runs(self) -> int:
        """How many scenario runs there were."""
        return self.outcomes.total()

    @property
    def held(self) -> bool:
        """Whether nothing cried, and that means something."""
        return not (self.alarms or self.unmet or self.broke)

    def besides(self, other: Tried) -> Tried:
        """This and the other part of trying the same variant."""
        return replace(
            self,
            programs=self.programs + other.programs,
            schedules=self.schedules + other.schedules,
            outcomes=self.outcomes + other.outcomes,
            alarms=self.alarms + other.alarms,
            undecided=self.undecided + other.undecided,
            unmet=self.unmet + other.unmet,
            broke=self.broke + other.broke,
            seconds=self.seconds + other.seconds,
        )
