"""Runs a scenario, judges it, and keeps both in a directory of their own under `reports/`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from chaos.cluster import ClusterError
from chaos.cluster.server import Cluster, ClusterKind, cluster
from chaos.directories import new_directory
from chaos.forkserver import ForkServerError
from chaos.history.events import History
from chaos.history.store import save
from chaos.history.watched import WitnessError
from chaos.invariants.judge import judge, overall, why
from chaos.invariants.verdict import Verdict
from chaos.plan import Planned
from chaos.progress import Progress
from chaos.runner import run
from chaos.saved import HISTORY, SCENARIO, VERDICTS
from chaos.scenario import Scenario
from chaos.terminal import messages

# What a run that cannot be finished raises: a part, the database, its log, a file or the network.
BREAKS = (ClusterError, ForkServerError, WitnessError, psycopg.Error, OSError)


class Ran(NamedTuple):
    """A run that is over: what happened, what was found, and where it is kept."""

    history: History
    verdicts: tuple[Verdict, ...]
    directory: Path


def run_and_keep(
    scenario: Scenario,
    seed: int,
    system_name: str,
    reports: Path,
    plan: Sequence[Planned] | None = None,
    kind: ClusterKind = "process",
) -> Ran:
    """Run and judge a scenario, in a new directory below `reports`; see `run_in`."""
    cluster(kind)  # if there is none of the kind, no directory is made either
    directory = new_directory(reports, run_name(scenario, system_name))
    return run_in(directory, scenario, seed, system_name, plan, kind)


def run_in(
    directory: Path,
    scenario: Scenario,
    seed: int,
    system_name: str,
    plan: Sequence[Planned] | None = None,
    kind: ClusterKind = "process",
) -> Ran:
    """Run and judge a scenario; its directory has the scenario, the history and the verdicts."""
    parts = cluster(kind)
    (directory / SCENARIO).write_text(scenario.text())
    history = _run_and_show(scenario, seed, system_name, directory, plan, parts)
    save(history, directory / HISTORY)
    ran = Ran(history, judge(history), directory)
    (directory / VERDICTS).write_text(as_text(ran) + "\n")
    return ran


def _run_and_show(
    scenario: Scenario,
    seed: int,
    system_name: str,
    directory: Path,
    plan: Sequence[Planned] | None,
    parts: Cluster[Any],
) -> History:
    """Run with a live line of progress on a terminal, and one line a phase elsewhere."""
    messages.print(f"{scenario.name}: {scenario.total} tasks, seed {seed}, system {system_name}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tasks"),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=messages, transient=True) as bar:
        line = bar.add_task("start", total=scenario.total, news="")

        def tell(progress: Progress) -> None:
            injected = ", ".join(f"{count} {name}" for name, count in progress.injected.items())
            news = f"{injected or 'no faults yet'}, {progress.reclaimed} reclaims"
            bar.update(line, description=progress.phase, completed=progress.done, news=news)

        return run(
            scenario,
            seed=seed,
            system_name=system_name,
            directory=directory,
            tell=tell,
            plan=plan,
            cluster=parts,
        )


def counts(history: History) -> list[tuple[str, int, int]]:
    """Each fault's name, how often it was injected, and how often it bit."""
    found = Counter((fault.name, fault.action) for fault in history.faults)
    names = sorted({fault.name for fault in history.faults if fault.action != "death"})
    return [(name, found[name, "inject"], found[name, "bite"]) for name in names]


def as_text(ran: Ran) -> str:
    """The verdicts of a run as one JSON document."""
    history, verdicts, directory = ran
    return json.dumps(
        {
            "outcome": overall(history, verdicts),
            "why": why(history, verdicts),
            "about": history.about,
            "run": str(directory),
            "verdicts": [
                {
                    "invariant": verdict.invariant,
                    "named": verdict.invariant in history.named,
                    "outcome": verdict.outcome,
                    "judged": verdict.judged,
                    "sentence": verdict.sentence,
                    "failures": [failure.sentence for failure in verdict.failures],
                    "evidence": verdict.evidence,
                }
                for verdict in verdicts
            ],
            "faults": [fault._asdict() for fault in history.faults],
        },
        indent=2,
    )


def run_name(scenario: Scenario, system_name: str) -> str:
    """How the names of the directories of such runs begin."""
    return f"{scenario.name}-{system_name.replace(':', '-')}"
