"""Runs scenarios in turn, with ever new seeds, for a time, and sums up what happened."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

from chaos.invariants.judge import overall, why
from chaos.invariants.verdict import Outcome
from chaos.keep import Ran, counts, run_and_keep
from chaos.scenario import Scenario

Play = Callable[[Scenario, int, str, Path], Ran]


@dataclass(slots=True)
class Soaked:
    """What many runs came to.

    faults: how often each was injected, and how often it bit. lost, unexplained: tasks and effects
    outside the database that must not be. kept: why a run did not pass, and where it is.
    interrupted: whether somebody ended it before its time, in the middle of a run that is not told.
    """

    seed: int
    seconds: float = 0.0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    tasks: int = 0
    lost: int = 0
    effects: int = 0
    explained: int = 0
    unexplained: int = 0
    faults: dict[str, tuple[int, int]] = field(default_factory=dict)
    kept: list[tuple[str, Path]] = field(default_factory=list)
    interrupted: bool = False

    def add(self, ran: Ran) -> Outcome:
        """Take one run in."""
        outcome = overall(ran.history, ran.verdicts)
        self.outcomes[outcome] += 1
        facts = {verdict.invariant: verdict.evidence for verdict in ran.verdicts}
        self.tasks += len(ran.history.finals)
        self.lost += int(facts["no-lost-task"]["failures"])
        duplicates = facts["explained-duplicate"]
        self.effects += int(duplicates["effects"])
        self.explained += int(duplicates["duplicates_explained"])
        self.unexplained += int(duplicates["failures"])
        for name, injected, bit in counts(ran.history):
            before = self.faults.get(name, (0, 0))
            self.faults[name] = (before[0] + injected, before[1] + bit)
        return outcome


def soak(
    scenarios: Sequence[Scenario],
    seconds: float,
    seed: int,
    system_name: str,
    reports: Path,
    play: Play = run_and_keep,
    runs: int | None = None,
    keep: Callable[[Ran], None] = lambda ran: None,
) -> Soaked:
    """Run at least one scenario, and go on until `seconds` have passed or there were so many runs.

    The directory of a run that passed is removed: days of histories would fill the disk; `keep` is
    told of each other run. Raises what `play` and `keep` raise.
    """
    soaked = Soaked(seed)
    began = time.monotonic()
    for scenario, number in zip(cycle(scenarios), count(seed), strict=False):
        try:
            ran = play(scenario, number, system_name, reports)
        except KeyboardInterrupt:
            soaked.interrupted = True
            break
        if soaked.add(ran) == "pass":
            shutil.rmtree(ran.directory)
        else:
            keep(ran)
            soaked.kept.append((why(ran.history, ran.verdicts), ran.directory))
        soaked.seconds = time.monotonic() - began
        if soaked.seconds >= seconds or sum(soaked.outcomes.values()) == runs:
            break
    return soaked


def told(soaked: Soaked) -> list[str]:
    """The sums, one sentence a line."""
    runs = sum(soaked.outcomes.values())
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in soaked.outcomes.items())
    return [
        f"{runs} runs in {soaked.seconds:.0f} s, seeds from {soaked.seed}: {outcomes}",
        f"{soaked.tasks} tasks, {soaked.lost} lost",
        f"{soaked.effects} effects, {soaked.explained} explained duplicates,"
        f" {soaked.unexplained} unexplained",
        *(
            f"fault {name}: injected {injected} times, bit {bit} times"
            for name, (injected, bit) in sorted(soaked.faults.items())
        ),
        *(f"{reason}: {directory}" for reason, directory in soaked.kept),
    ]
