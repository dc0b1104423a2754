"""The command line `chaos`: list and run scenarios, judge a saved run again, explore."""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import psycopg
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from chaos.cluster import ClusterError
from chaos.explore.cli import explore_command
from chaos.forkserver import ForkServerError
from chaos.history.events import History
from chaos.history.store import HistoryError, load, save
from chaos.history.witness import WitnessError
from chaos.invariants.judge import INVARIANTS, judge, overall, why
from chaos.invariants.verdict import Outcome, Verdict
from chaos.runner import Progress, run
from chaos.scenario import Scenario, ScenarioError, load_scenario
from chaos.systems import UnknownSystemError, system

HISTORY = "history.jsonl.gz"
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
USAGE, BROKEN = 2, 4
WORST_FIRST = (BROKEN, EXIT_CODES["fail"], EXIT_CODES["inconclusive"], EXIT_CODES["pass"])
# What a run that cannot be finished raises: a part, the database, its log, a file or the network.
BREAKS = (ClusterError, ForkServerError, WitnessError, psycopg.Error, OSError)
SCENARIOS = Path("scenarios")
KILLED = str(-signal.SIGKILL)  # how a poison task ends its worker

Ran = tuple[History, tuple[Verdict, ...], Path]
COLOURS: dict[Outcome, str] = {"pass": "green", "fail": "red", "inconclusive": "yellow"}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Breaks a PostgreSQL-backed queue and judges what it did.",
    epilog="Exit codes: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 the harness itself broke,"
    " 130 interrupted.",
)
messages = Console(stderr=True)


def main() -> None:
    """Run the command line. What nobody foresaw is the harness's fault, never a verdict."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    try:
        app()
    except Exception:  # noqa: BLE001 - told whole, and not as exit code 1, which means a failure
        traceback.print_exc()
        sys.exit(BROKEN)


app.command("explore")(explore_command)


@app.command("run")
def run_command(
    scenario_file: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="A scenario file.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Run every scenario of a directory, one by one.")
    ] = False,
    scenarios: Annotated[Path, typer.Option(help="The directory that --all runs.")] = SCENARIOS,
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
    if (scenario_file is None) is not all_:
        _end("name a scenario file, or give --all", USAGE)
    if all_ and as_json:
        _end("--json is for one scenario; with --all, each run's directory has its JSON", USAGE)
    files = [scenario_file] if scenario_file is not None else _files(scenarios)
    try:
        loaded = [(file, load_scenario(file).scaled(scale)) for file in files]
        system(system_name)
    except (ScenarioError, UnknownSystemError) as error:
        _end(str(error), USAGE)
    told = []
    for file, scenario in loaded:
        chosen = scenario.seed if seed is None else seed
        began = time.monotonic()
        try:
            ran = _run_and_keep(file, scenario, chosen, system_name, reports)
        except BREAKS as error:
            if not all_:
                _end(f"the harness could not do its work: {error}", BROKEN)
            messages.print(f"{scenario.name}: {error}", style="red", markup=False)
            ran = None
        except KeyboardInterrupt:
            _end("interrupted; the workers and servers are gone", 130)
        if ran is not None and not all_:
            _show(*ran, as_json)
        told.append((scenario, time.monotonic() - began, ran))
    _show_all(told)


@app.command("list")
def list_command(
    scenarios: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", help="Where the scenario files are.")
    ] = SCENARIOS,
) -> None:
    """Tell what each scenario proves: what is modelled, what must hold and what must bite."""
    try:
        loaded = [load_scenario(file) for file in _files(scenarios)]
    except ScenarioError as error:
        _end(str(error), USAGE)
    out = _stdout()
    for scenario in loaded:
        out.print(f"[bold]{scenario.name}[/]  {scenario.about}", highlight=False)
        out.print(f"  holds  {', '.join(n for n in INVARIANTS if n in scenario.invariants)}")
        out.print(f"  bites  {', '.join(scenario.must_bite)}\n")


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


def _files(scenarios: Path) -> list[Path]:
    files = sorted(scenarios.glob("*.yaml"))
    if not files:
        _end(f"there are no scenario files (*.yaml) in {scenarios}", USAGE)
    return files


def _run_and_keep(
    file: Path, scenario: Scenario, seed: int, system_name: str, reports: Path
) -> Ran:
    """Run and judge a scenario; its directory has the scenario, the history and the verdicts."""
    directory = _new_directory(reports, scenario, system_name)
    (directory / "scenario.yaml").write_text(file.read_text())
    history = _run_and_show(scenario, seed, system_name, directory)
    save(history, directory / HISTORY)
    verdicts = judge(history)
    (directory / "verdicts.json").write_text(_json(history, verdicts, directory) + "\n")
    return history, verdicts, directory


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
    out = _stdout()
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
    for name, injected, bit in _counts(history):
        out.print(f"fault {name}: injected {injected} times, bit {bit} times")
    for fault in history.faults:
        if fault.action == "death" and fault.detail != KILLED:
            out.print(f"[yellow]worker {fault.target} ended: {fault.detail}; see its log[/]")
    out.print(f"run: {directory}")
    reason = escape(why(history, verdicts))
    out.print(f"[bold {COLOURS[outcome]}]{outcome}[/]" + (f": {reason}" if reason else ""))
    raise typer.Exit(EXIT_CODES[outcome])


def _show_all(told: Sequence[tuple[Scenario, float, Ran | None]]) -> NoReturn:
    """Print one line a scenario, and end with the exit code that the worst calls for."""
    table = Table(box=None, padding=(0, 1))
    for heading in ("scenario", "verdict", "seconds", "what bit (of how often)"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    codes = set()
    for scenario, seconds, ran in told:
        if ran is None:
            codes.add(BROKEN)
            table.add_row(scenario.name, "[red]broken[/]", f"{seconds:.1f}", "")
            continue
        history, verdicts, directory = ran
        outcome = overall(history, verdicts)
        codes.add(EXIT_CODES[outcome])
        bites = ", ".join(f"{name} {bit}/{injected}" for name, injected, bit in _counts(history))
        if outcome != "pass":
            bites = f"{bites}\n{why(history, verdicts)}: {directory}"
        table.add_row(
            scenario.name, f"[{COLOURS[outcome]}]{outcome}[/]", f"{seconds:.1f}", escape(bites)
        )
    _stdout().print(table)
    raise typer.Exit(next(code for code in WORST_FIRST if code in codes))


def _counts(history: History) -> list[tuple[str, int, int]]:
    """Each fault's name, how often it was injected, and how often it bit."""
    counts = Counter((fault.name, fault.action) for fault in history.faults)
    names = sorted({fault.name for fault in history.faults if fault.action != "death"})
    return [(name, counts[name, "inject"], counts[name, "bite"]) for name in names]


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


def _stdout() -> Console:
    """Stdout; where nobody looks, wide enough that a path or a sentence is seldom folded."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _end(message: str, code: int) -> NoReturn:
    messages.print(f"error: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(code)
