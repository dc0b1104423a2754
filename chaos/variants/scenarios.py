"""Scenarios over a correct variant: whole workers run it, in short, with ever new seeds."""

from __future__ import annotations

import time
from collections import Counter
from math import inf
from pathlib import Path

import psutil
from pydantic import ValidationError

from chaos.invariants.judge import overall, why
from chaos.invariants.verdict import Outcome
from chaos.keep import BREAKS, Ran, run_and_keep
from chaos.report import write
from chaos.scenario import Scenario, ScenarioError, load_scenario
from chaos.soak import soak
from chaos.terminal import messages
from chaos.variants import UNMODIFIED, Variant
from chaos.variants.burners import burning
from chaos.variants.tried import Alarm, Tried
from chaos.variants.variant import marks_in


def loaded(variant: Variant, scenarios: Path) -> list[Scenario]:
    """The variant's scenarios in short, as it has them run. Raises ScenarioError."""
    return [
        adapted(load_scenario(scenarios / f"{name}.yaml"), variant) for name in variant.scenarios
    ]


def adapted(scenario: Scenario, variant: Variant) -> Scenario:
    """The scenario in short, with the variant's settings and faults. Raises ScenarioError."""
    plain = scenario.in_short().model_dump(mode="json", exclude_defaults=True)
    plain["workers"] |= variant.workers
    plain["faults"] = [*plain.get("faults", ()), *variant.faults]
    try:
        return Scenario.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ScenarioError(f"{scenario.name} as {variant.name}: {first['msg']}") from error


def run(
    variant: Variant, scenarios: list[Scenario], runs: int, seed: int, reports: Path, news: str
) -> Tried:
    """Run the scenarios in turn, so often in all; what did not pass is kept below `reports`.

    A run that cannot be finished ends the variant. Raises KeyboardInterrupt.
    """
    outcomes: Counter[Outcome] = Counter()
    alarms: list[Alarm] = []
    undecided: list[str] = []
    broke: list[str] = []
    marks: set[str] = set()
    bit: Counter[str] = Counter()
    burnt = 0.0
    system = "leaseproof" if variant is UNMODIFIED else f"leaseproof:{variant.name}"
    began = time.monotonic()

    def play(scenario: Scenario, seed: int, system: str, reports: Path) -> Ran:
        nonlocal burnt
        messages.print(f"{news}, run {outcomes.total() + 1} of {runs}", highlight=False)
        with burning(variant.burners) as burners:
            ran = run_and_keep(scenario, seed, system, reports)
            burnt += sum(psutil.Process(pid).cpu_times().user for pid in burners)
        outcomes[overall(ran.history, ran.verdicts)] += 1
        bit.update(fault.name for fault in ran.history.faults if fault.action == "bite")
        marks.update(marks_in(ran.directory))
        return ran

    def keep(ran: Ran) -> None:
        write(ran.history, ran.verdicts, ran.directory)
        reason = why(ran.history, ran.verdicts)
        scenario = f"scenario: {ran.history.about['scenario']}"
        if overall(ran.history, ran.verdicts) == "fail":
            alarms.append(Alarm(scenario, reason, f"chaos replay {ran.directory}"))
        else:
            undecided.append(f"{scenario}: {reason}: {ran.directory}")

    try:
        if soak(scenarios, inf, seed, system, reports, play, runs, keep).interrupted:
            raise KeyboardInterrupt
    except BREAKS as error:
        broke.append(" ".join(str(error).split()))
    unmet = [f"in no worker: {what}" for what in sorted(variant.marks - marks)]
    unmet += [
        f"fault {kind} never bit"
        for kind in sorted({str(fault["kind"]) for fault in variant.faults})
        if not bit[kind]
    ]
    if variant.burners and not burnt:
        unmet.append("nothing was burnt")
    return Tried(
        variant.name,
        outcomes=outcomes,
        alarms=tuple(alarms),
        undecided=tuple(undecided),
        unmet=tuple(unmet) if outcomes else (),
        broke=tuple(broke),
        seconds=time.monotonic() - began,
    )
