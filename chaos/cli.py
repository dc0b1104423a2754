"""The command line `chaos`. Other groups and commands have files of their own."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from chaos.bench.cli import app as bench
from chaos.cluster.server import ClusterKind
from chaos.explore.cli import explore_command
from chaos.figures.cli import app as figures
from chaos.figures.page import Out, write_page
from chaos.history.store import HistoryError, load
from chaos.hunt.cli import hunt_command
from chaos.invariants.judge import INVARIANTS, judge, overall, why
from chaos.invariants.verdict import Outcome
from chaos.keep import BREAKS, Ran, as_text, counts, run_and_keep
from chaos.lowering.cli import lower_command
from chaos.replay import ReplayError, failed, recorded
from chaos.report import HTML, write, write_index
from chaos.saved import HISTORY, RunOrFile, history_of
from chaos.scenario import Scenario, ScenarioError, load_scenario
from chaos.soak import Soaked, soak, told
from chaos.summary import markdown
from chaos.systems import NotOfferedError, UnknownSystemError
from chaos.terminal import BROKEN, EXIT_CODES, USAGE, end, interrupted, messages, results, worst
from chaos.variants.cli import variants_command

SCENARIOS = Path("scenarios")
KILLED = str(-signal.SIGKILL)  # how a poison task ends its worker

COLOURS: dict[Outcome, str] = {"pass": "green", "fail": "red", "inconclusive": "yellow"}

Where = Annotated[
    ClusterKind,
    typer.Option(
        "--cluster", help="Run PostgreSQL and Toxiproxy as processes, or in containers (Docker)."
    ),
]
Short = Annotated[
    bool, typer.Option("--short", help="The short form: as little as shows what it is about.")
]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Breaks a PostgreSQL-backed queue and judges what it did.",
    epilog="Exit codes: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 the harness itself broke,"
    " 5 a failure cannot be lowered, 130 interrupted.",
)


def main() -> None:
    """Run the command line. What nobody foresaw is the harness's fault, never a verdict."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    try:
        app()
    except Exception:  # noqa: BLE001 - told whole, and not as exit code 1, which means a failure
        traceback.print_exc()
        sys.exit(BROKEN)


app.command("explore")(explore_command)
app.command("lower")(lower_command)
app.command("hunt")(hunt_command)
app.command("variants")(variants_command)
app.add_typer(bench, name="bench")
app.add_typer(figures, name="figures")


@app.command("run")
def run_command(
    scenario_file: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help="A scenario file.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Run every scenario of a directory, one by one.")
    ] = False,
    scenarios: Annotated[
        Path | None,
        typer.Option(help="The directory that --all runs.", show_default=str(SCENARIOS)),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Instead of the scenario's own seed.")
    ] = None,
    system_name: Annotated[
        str, typer.Option("--system", help="leaseproof, leaseproof:CHANGE or MODULE:ATTRIBUTE.")
    ] = "leaseproof",
    scale: Annotated[
        float,
        typer.Option(min=0.01, max=1000, help="Run this share of its tasks, faults and time."),
    ] = 1.0,
    short: Short = False,
    reports: Annotated[Path, typer.Option(help="Where the run's directory is made.")] = Path(
        "reports"
    ),
    kind: Where = "process",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append the verdicts to a file, as Markdown."),
    ] = None,
) -> None:
    """Run a scenario, judge its history, and keep both in a directory of its own."""
    if (scenario_file is None) is not all_:
        end("name a scenario file, or give --all", USAGE)
    if scenario_file is not None and scenarios is not None:
        end("--scenarios is the directory that --all runs: leave it out to run one file", USAGE)
    if all_ and as_json:
        end("--json is for one scenario; with --all, each run's directory has its JSON", USAGE)
    files = [scenario_file] if scenario_file is not None else _files(scenarios or SCENARIOS)
    try:
        loaded = _loaded(files, scale, short, system_name)
        if summary is not None:
            summary.open("a").close()  # it may be hours until it is written
    except (NotOfferedError, OSError, ScenarioError, UnknownSystemError) as error:
        end(str(error), USAGE)
    done = []
    for scenario in loaded:
        chosen = scenario.seed if seed is None else seed
        began = time.monotonic()
        try:
            ran = run_and_keep(scenario, chosen, system_name, reports, kind=kind)
            _report(ran)
        except BREAKS as error:
            if not all_:
                end(f"the harness could not do its work: {error}", BROKEN)
            messages.print(f"{scenario.name}: {error}", style="red", markup=False)
            ran = None
        except KeyboardInterrupt:
            interrupted()
        done.append((scenario, time.monotonic() - began, ran))
    if summary is not None:
        with summary.open("a") as file:
            file.write(markdown(done))
    if not all_ and ran is not None:
        _show(ran, as_json)
    _show_all(done)


@app.command("list")
def list_command(
    scenarios: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", help="Where the scenario files are.")
    ] = SCENARIOS,
) -> None:
    """Tell what each scenario proves: what is modelled, what must hold and what must bite.

    Its failure modes are those of docs/how-queues-break.md.
    """
    try:
        loaded = [load_scenario(file) for file in _files(scenarios)]
    except ScenarioError as error:
        end(str(error), USAGE)
    out = results()
    for scenario in loaded:
        out.print(f"[bold]{scenario.name}[/]  {scenario.about}", highlight=False)
        if scenario.failure_modes:
            out.print(f"  stands for failure modes {', '.join(map(str, scenario.failure_modes))}")
        out.print(f"  holds  {', '.join(n for n in INVARIANTS if n in scenario.invariants)}")
        out.print(f"  bites  {', '.join(scenario.must_bite)}\n")


@app.command()
def check(
    run: RunOrFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge a saved history again."""
    try:
        history = history_of(run)
    except (HistoryError, OSError) as error:
        end(str(error), USAGE)
    _show(Ran(history, judge(history), run), as_json)


@app.command()
def replay(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    tries: Annotated[
        int, typer.Option(min=1, max=100, help="How often to try for the recorded failure.")
    ] = 3,
    reports: Annotated[Path, typer.Option(help="Where the replays' directories are made.")] = Path(
        "reports"
    ),
    kind: Where = "process",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Run a recorded run again, with its faults at the same points, until it fails in the same way.

    Ends with the verdict of the last try. A recorded run that failed nothing is run once.
    """
    try:
        record = recorded(run_directory)
        record.scenario.system(record.system)
    except (NotOfferedError, ReplayError, UnknownSystemError) as error:
        end(str(error), USAGE)
    wanted = ", ".join(sorted(record.failed))
    messages.print(f"recorded: {f'failed {wanted}' if wanted else 'failed nothing'}")
    for turn in range(1, tries + 1 if record.failed else 2):
        try:
            ran = run_and_keep(
                record.scenario, record.seed, record.system, reports, record.plan, kind
            )
            _report(ran)
        except BREAKS as error:
            end(f"the harness could not do its work: {error}", BROKEN)
        except KeyboardInterrupt:
            interrupted()
        again = sorted(record.failed & failed(ran.verdicts))
        if again:
            messages.print(f"try {turn}: failed {', '.join(again)} again")
            break
        if record.failed:
            messages.print(f"try {turn}: did not fail that way")
    _show(ran, as_json)


@app.command("report")
def report_command(
    run_directory: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's directory.")
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="List the runs in it, in its index.html."),
    ] = None,
) -> None:
    """Write a run's report again from its saved history, or an index of the runs in a directory."""
    if (run_directory is None) is (index is None):
        end("name a run's directory, or give --index and the directory of all runs", USAGE)
    out = results()
    try:
        if index is not None:
            colours: Mapping[str, str] = dict(COLOURS.items())
            for run in reversed(write_index(index)):
                out.print(
                    f"[{colours.get(run.outcome, 'red')}]{escape(run.outcome):<12}[/]"
                    f" {escape(run.name)}{': ' if run.why else ''}{escape(run.why)}"
                )
            out.print(f"index: {index / 'index.html'}")
        elif run_directory is not None:
            history = load(run_directory / HISTORY)
            out.print(f"report: {write(history, judge(history), run_directory)}")
    except (HistoryError, OSError) as error:
        end(str(error), USAGE)


@app.command("soak")
def soak_command(
    scenario_files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SCENARIO...]", help="By default every one of --scenarios."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="For how long; the last run is finished.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="How many runs.")] = None,
    scenarios: Annotated[
        Path | None,
        typer.Option(help="A directory of scenarios.", show_default=str(SCENARIOS)),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; each next has one more.")] = 1,
    system_name: Annotated[
        str, typer.Option("--system", help="leaseproof, leaseproof:CHANGE or MODULE:ATTRIBUTE.")
    ] = "leaseproof",
    scale: Annotated[
        float, typer.Option(min=0.01, max=1000, help="Run this share of each scenario.")
    ] = 1.0,
    short: Short = False,
    reports: Annotated[
        Path, typer.Option(help="Where the directories of runs that did not pass are kept.")
    ] = Path("reports"),
    out: Out = None,
) -> None:
    """Run scenarios in turn, with ever new seeds, for a time; then tell what it came to."""
    if seconds is None and runs is None:
        end("say for how long: --seconds, --runs, or both", USAGE)
    if scenario_files and scenarios is not None:
        end("name scenario files, or give --scenarios and their directory, not both", USAGE)
    try:
        loaded = _loaded(
            scenario_files or _files(scenarios or SCENARIOS), scale, short, system_name
        )
    except (NotOfferedError, ScenarioError, UnknownSystemError) as error:
        end(str(error), USAGE)
    try:
        soaked = soak(loaded, seconds or inf, seed, system_name, reports, runs=runs, keep=_report)
    except BREAKS as error:
        end(f"the harness could not do its work: {error}", BROKEN)
    _show_soaked(soaked, out)


def _loaded(files: Sequence[Path], scale: float, short: bool, system_name: str) -> list[Scenario]:
    """The scenarios at this share of their length, or of that of their short form.

    Raises NotOfferedError for one that asks for what the system has not.
    """
    loaded = [load_scenario(file) for file in files]
    loaded = [(one.in_short() if short else one).scaled(scale) for one in loaded]
    for one in loaded:
        one.system(system_name)
    return loaded


def _report(ran: Ran) -> None:
    write(ran.history, ran.verdicts, ran.directory)


def _files(scenarios: Path) -> list[Path]:
    files = sorted(scenarios.glob("*.yaml"))
    if not files:
        end(f"there are no scenario files (*.yaml) in {scenarios}", USAGE)
    return files


def _show(ran: Ran, as_json: bool) -> None:
    """Print the verdicts and end with the exit code they call for."""
    history, verdicts, directory = ran
    outcome = overall(history, verdicts)
    if as_json:
        sys.stdout.write(as_text(ran) + "\n")
        raise typer.Exit(EXIT_CODES[outcome])
    out = results()
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
    for name, injected, bit in counts(history):
        out.print(f"fault {name}: injected {injected} times, bit {bit} times")
    for fault in history.faults:
        if fault.action == "death" and fault.detail != KILLED:
            out.print(f"[yellow]worker {fault.target} ended: {fault.detail}; see its log[/]")
    out.print(f"run: {directory}")
    if (directory / HTML).exists():
        out.print(f"report: {directory / HTML}")
    if outcome == "fail" and directory.is_dir():
        out.print(f"replay: chaos replay {directory}")
    reason = escape(why(history, verdicts))
    out.print(f"[bold {COLOURS[outcome]}]{outcome}[/]" + (f": {reason}" if reason else ""))
    raise typer.Exit(EXIT_CODES[outcome])


def _show_all(done: Sequence[tuple[Scenario, float, Ran | None]]) -> NoReturn:
    """Print one line a scenario, and end with the exit code that the worst calls for."""
    table = Table(box=None, padding=(0, 1))
    for heading in ("scenario", "verdict", "seconds", "what bit (of how often)"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    codes = set()
    for scenario, seconds, ran in done:
        if ran is None:
            codes.add(BROKEN)
            table.add_row(scenario.name, "[red]broken[/]", f"{seconds:.1f}", "")
            continue
        history, verdicts, directory = ran
        outcome = overall(history, verdicts)
        codes.add(EXIT_CODES[outcome])
        bites = ", ".join(f"{name} {bit}/{injected}" for name, injected, bit in counts(history))
        if outcome != "pass":
            bites = f"{bites}\n{why(history, verdicts)}: {directory}"
        table.add_row(
            scenario.name, f"[{COLOURS[outcome]}]{outcome}[/]", f"{seconds:.1f}", escape(bites)
        )
    results().print(table)
    raise typer.Exit(worst(codes))


def _show_soaked(soaked: Soaked, file: Path | None) -> NoReturn:
    """Print the sums, and end with the exit code that the worst run calls for."""
    lines = told(soaked)
    for line in lines:
        results().print(escape(line))
    if file is not None:
        try:
            write_page(file, "Runs in turn", [f"- {line}" for line in lines])
        except OSError as error:
            end(f"cannot write {file}: {error}", USAGE)
    if soaked.interrupted:
        interrupted()
    raise typer.Exit(worst([EXIT_CODES[outcome] for outcome in soaked.outcomes]))
