"""How surely a recorded failure fails again: planted bugs are run, and each failure is replayed.

A bug is run until a run fails by the invariant that names it, which is then the recorded failure; a
replay counts if the same invariant fails. A bug that no run showed keeps the figure from holding:
the harness should have shown it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.keep import Ran, run_and_keep
from chaos.mutants import MUTANTS
from chaos.replay import failed, recorded
from chaos.scenario import Bounds, Scenario, load_scenario

TRIES = 3  # replays of one failure, at most; and runs of a bug until there is one
SHARE = 0.9  # of the failures that must fail again
# Tasks of three seconds stand in line for a slot where they have met faults: on a busy machine the
# scheduler as it is takes almost eight seconds until the last of them is done. Where slowness is
# the bug, the scenario has none of these, and a longer bound would wait for the bug to get there.
BOUNDS = Bounds(reclaim=1, progress=10)
TIGHT_BOUNDS = Bounds(reclaim=1, progress=2.5)
# One for each of twelve kinds of fault: races, lost replies, kills, pauses, clocks, a failover.
BUGS = (
    "cancelled-task-completes",
    "claim-without-lock",
    "claims-by-its-own-clock",
    "complete-without-fence",
    "effect-before-completion",
    "fenced-by-token-only",
    "forgets-the-rest-at-shutdown",
    "holds-its-row-throughout",
    "last-attempt-never-over",
    "lost-commit-is-a-failure",
    "occurrence-planned-twice",
    "reclaim-ignores-expiry",
)


class Replayed(NamedTuple):
    """One planted bug: how many runs it took to record a failure, and which replay failed again.

    runs: None if none failed by the bug's invariant. replay: None if none of the tries did.
    """

    bug: str
    invariant: str
    scenario: str
    runs: int | None
    replay: int | None


def shown(bug: str, scenarios: Path) -> Scenario:
    """The scenario that shows a planted bug, at the share of its length that does.

    Some bugs never let a run converge: it waits for less long than by the scenario's own bounds.
    """
    name, scale = MUTANTS[bug].shown_by
    scenario = load_scenario(scenarios / f"{name}.yaml").scaled(scale)
    bounds = TIGHT_BOUNDS if MUTANTS[bug].invariant == "progress" else BOUNDS
    return scenario.model_copy(update={"bounds": bounds})


def measure(
    bugs: Sequence[str],
    scenarios: Path,
    reports: Path,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Replayed]:
    """Record a failure of each bug and replay it. Raises what a run raises, and ScenarioError."""
    found = []
    for bug in bugs:
        one = _replayed(bug, shown(bug, scenarios), reports)
        found.append(one)
        tell(f"{bug}: {_told(one)}")
    return found


def record(bug: str, scenario: Scenario, reports: Path) -> tuple[Ran, int] | None:
    """Run a bug until its own invariant fails: that run, and how many it took; None if none did."""
    for runs in range(1, TRIES + 1):
        ran = run_and_keep(scenario, runs, f"leaseproof:{bug}", reports)
        if MUTANTS[bug].invariant in failed(ran.verdicts):
            return ran, runs
    return None


def _replayed(bug: str, scenario: Scenario, reports: Path) -> Replayed:
    invariant = MUTANTS[bug].invariant
    found = record(bug, scenario, reports)
    if found is None:
        return Replayed(bug, invariant, scenario.name, None, None)
    ran, runs = found
    for turn in range(1, TRIES + 1):
        # From the directory, as `chaos replay` does.
        kept = recorded(ran.directory)
        again = run_and_keep(kept.scenario, kept.seed, kept.system, reports, kept.plan)
        if invariant in failed(again.verdicts):
            return Replayed(bug, invariant, scenario.name, runs, turn)
    return Replayed(bug, invariant, scenario.name, runs, None)


def page(replayed: Sequence[Replayed]) -> list[str]:
    """The figure as lines of Markdown: a table, and what it shows."""
    lines = [
        "| planted bug | invariant | scenario | recorded | replayed |",
        "|---|---|---|---|---|",
    ]
    for one in replayed:
        recording = "no run failed so" if one.runs is None else f"in run {one.runs}"
        replay = "-" if one.runs is None else _told(one)
        lines.append(
            f"| `{one.bug}` | `{one.invariant}` | `{one.scenario}` | {recording} | {replay} |"
        )
    failures = [one for one in replayed if one.runs is not None]
    again = sum(one.replay is not None for one in failures)
    at_once = sum(one.replay == 1 for one in failures)
    lines += [
        "",
        f"{again} of {len(failures)} recorded failures failed again by the same invariant within"
        f" {TRIES} tries, {at_once} of them in the first; {SHARE:.0%} are asked for:"
        f" {'held' if held(replayed) else 'NOT held'}.",
    ]
    return lines


def held(replayed: Sequence[Replayed]) -> bool:
    """Whether each bug's failure was recorded, and enough of them failed again."""
    again = sum(one.replay is not None for one in replayed)
    return all(one.runs is not None for one in replayed) and again >= SHARE * len(replayed)


def _told(one: Replayed) -> str:
    if one.runs is None:
        return f"none of {TRIES} runs failed {one.invariant}"
    if one.replay is None:
        return f"did not fail again in {TRIES} tries"
    return f"failed again in try {one.replay}"
