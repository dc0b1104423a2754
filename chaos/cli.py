"""The command line `chaos`: run a scenario, judge a saved run again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from chaos.cluster import ClusterError
from chaos.history.events import History
from chaos.history.store import HistoryError, load, save
from chaos.invariants.judge import judge, overall, toothless
from chaos.invariants.verdict import Outcome, Verdict
from chaos.runner import Progress, run
from chaos.scenario import Scenario, ScenarioError, load_scenario
from chaos.systems import UnknownSystemError, system

HISTORY = "history.jsonl.gz"
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
USAGE, BROKEN = 2, 4
COLOURS: dict[Outcome, str] = {"pass": "green", "fail": "red", "inconclusive": "yellow"}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Breaks a PostgreSQL-backed queue and judges what it did.",
    epilog="Exit codes: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 the harness itself broke.",
)
messages = Console(stderr=True)


def main() -> None:
    """Run the command line."""
    app()


@app.command("run")
def run_command(
    scenario_file: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file.")],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Instead of the scenario's own seed.")
    ] = None,
    system_name: Annotated[
        str, typer.Option("--system", help="leaseproof, or leaseproof:MUTANT.")
    ] = "leaseproof",
    scale: Annotated[
        float,
        typer.Option(min=0.01, max=1000, help="Run this share of its tasks, faults and time."),
    ] = 1.0,
    reports: Annotated[Path, typer.Option(help="Where the run's directory is made.")] = Path(
        "reports"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Run a scenario, judge its history, and keep both in a directory of its own."""
    try:
        scenario = load_scenario(scenario_file).scaled(scale)
        system(system_name)
    except (ScenarioError, UnknownSystemError) as error:
        _end(str(error), USAGE)
    chosen = scenario.seed if seed is None else seed
    try:
        directory = _new_directory(reports, scenario, system_name)
        (directory / "scenario.yaml").write_text(scenario_file.read_text())
        history = _run_and_show(scenario, chosen, system_name, directory)
        save(history, directory / HISTORY)
    except (ClusterError, OSError) as error:
        _end(f"the harness could not do its work: {error}", BROKEN)
    except KeyboardInterrupt:
        _end("interrupted; the workers and servers are gone", 130)
    verdicts = judge(history)
    (directory / "verdicts.json").write_text(_json(history, verdicts, directory) + "\n")
    _show(history, verdicts, directory, as_json)


@app.command()
def check(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge a saved history again."""
    path = run_directory / HISTORY if run_directory.is_dir() else run_directory
    try:
        history = load(path)
    except (HistoryError, OSError) as error:
        _end(str(error), USAGE)
    _show(history, judge(history), run_directory, as_json)


def _run_and_show(scenario: Scenario, seed: int, system_name: str, directory: Path) -> History:
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

        return run(scenario, seed=seed, system_name=system_name, directory=directory, tell=tell)


def _show(history: History, verdicts: tuple[Verdict, ...], directory: Path, as_json: bool) -> None:
    """Print the verdicts and end with the exit code they call for."""
    outcome = overall(history, verdicts)
    if as_json:
        sys.stdout.write(_json(history, verdicts, directory) + "\n")
        raise typer.Exit(EXIT_CODES[outcome])
    out = Console()
    table = Table(box=None, padding=(0, 1))
    for heading in ("invariant", "verdict", "judged", "evidence"):
        table.add_column(heading, justify="right" if heading == "judged" else "left")
    for verdict in verdicts:
        named = "" if verdict.invariant in history.named else " [dim](not named)[/]"
        table.add_row(
            verdict.invariant + named,
            f"[{COLOURS[verdict.outcome]}]{verdict.outcome}[/]",
            str(verdict.judged),
            verdict.sentence,
        )
    out.print(table)
    for name in sorted({fault.name for fault in history.faults}):
        count = {
            action: sum(f.name == name and f.action == action for f in history.faults)
            for action in ("inject", "bite")
        }
        out.print(f"fault {name}: injected {count['inject']} times, bit {count['bite']} times")
    for name in sorted(toothless(history)):
        out.print(f"[yellow]fault {name} never bit: this run says nothing about it[/]")
    crashes = history.about.get("crashes")
    for crash in crashes if isinstance(crashes, list) else ():
        out.print(f"[yellow]worker {crash}: see its log in the run's directory[/]")
    out.print(f"run: {directory}")
    out.print(f"[bold {COLOURS[outcome]}]{outcome}[/]")
    raise typer.Exit(EXIT_CODES[outcome])


def _json(history: History, verdicts: tuple[Verdict, ...], directory: Path) -> str:
    return json.dumps(
        {
            "outcome": overall(history, verdicts),
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


def _new_directory(reports: Path, scenario: Scenario, system_name: str) -> Path:
    label = system_name.replace(":", "-")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        directory = reports / f"{scenario.name}-{label}-{stamp}{suffix}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise OSError(f"{reports} has a hundred runs of this second already")


def _end(message: str, code: int) -> NoReturn:
    messages.print(f"error: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(code)
