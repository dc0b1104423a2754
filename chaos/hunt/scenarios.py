"""Scenarios as hunters: a mutant that the explorer left is run in the scenario that shows it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from chaos.figures.replaying import shown
from chaos.hunt.found import Hunted, Kill
from chaos.hunt.pool import must_be_quiet
from chaos.keep import run_and_keep


def try_without_bugs(mutants: Iterable[str], scenarios: Path, reports: Path) -> None:
    """Run the scenarios of these mutants on the unmodified scheduler, each form of each once.

    In the hunt they wait for less long than by their own bounds, which no other run shows to be
    enough. Raises FalseAlarmError, what a run raises, and ScenarioError.
    """
    distinct = {shown(mutant, scenarios).model_dump_json(): mutant for mutant in mutants}
    for mutant in distinct.values():
        scenario = shown(mutant, scenarios)
        ran = run_and_keep(scenario, 1, "leaseproof", reports)
        failed = [
            f"{verdict.invariant}: {verdict.sentence}"
            for verdict in ran.verdicts
            if verdict.outcome == "fail"
        ]
        alarm = "; ".join([*failed, f"chaos replay {ran.directory}"]) if failed else ""
        must_be_quiet(f"scenario {scenario.name}", alarm)


def hunt_in_scenario(before: Hunted, scenarios: Path, reports: Path) -> Hunted:
    """Run it once, and add what that found. Raises what a run raises, and ScenarioError."""
    began = time.monotonic()
    scenario = shown(before.mutant, scenarios)
    ran = run_and_keep(scenario, 1, f"leaseproof:{before.mutant}", reports)
    seconds = before.seconds + time.monotonic() - began
    found = [
        Kill(
            f"scenario: {scenario.name}",
            verdict.invariant,
            verdict.sentence,
            seconds,
            f"chaos replay {ran.directory}",
        )
        for verdict in ran.verdicts
        if verdict.outcome == "fail"
    ]
    kill = next((one for one in found if one.invariant == before.named), None)
    others = (*before.others, *(one for one in found if one is not kill))
    return replace(before, kill=kill, others=others, runs=1, seconds=seconds, broke="")
