"""`chaos figures`: measure what the harness promises of itself, and keep it beside its command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from chaos.explore.errors import ExplorerError
from chaos.figures import exploring, judging, lowering, replaying
from chaos.figures.page import Out, text, write_page
from chaos.keep import BREAKS
from chaos.mutants import MUTANTS
from chaos.replay import ReplayError
from chaos.scenario import ScenarioError
from chaos.terminal import BROKEN, USAGE, WRONG, end, interrupted, messages, silence_psycopg

LEAST = 1_000  # events of a history in which everything happens that is judged

app = typer.Typer(
    no_args_is_help=True,
    help="Measures what the harness promises of itself. Exit code 1: it does not hold here.",
)


@app.command("judging")
def judging_command(
    sizes: Annotated[
        str, typer.Option(help="Numbers of events, with commas.")
    ] = "100000,300000,1000000",
    out: Out = None,
) -> None:
    """How long loading and judging a history takes, how much memory, and whether it is linear."""
    judged = judging.measure(_sizes(sizes), lambda line: messages.print(line, style="dim"))
    _tell("Judging a history", judging.page(judged), judging.held(judged), out)


Bugs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BUG...]", help="Planted bugs; by default those of the figure."),
]
Scenarios = Annotated[Path, typer.Option(help="A directory of scenarios.")]
Reports = Annotated[Path, typer.Option(help="Where the runs' directories are made.")]


@app.command("replay")
def replay_command(
    bugs: Bugs = None,
    scenarios: Scenarios = Path("scenarios"),
    reports: Reports = Path("reports"),
    out: Out = None,
) -> None:
    """How many failures of planted bugs, once recorded, fail again when they are replayed."""
    names = _known(bugs or replaying.BUGS)
    with _working():
        replayed = replaying.measure(names, scenarios, reports, _news)
    _tell("Replaying recorded failures", replaying.page(replayed), replaying.held(replayed), out)


@app.command("lowering")
def lowering_command(
    bugs: Bugs = None,
    scenarios: Scenarios = Path("scenarios"),
    reports: Reports = Path("reports"),
    out: Out = None,
) -> None:
    """How many failures of planted bugs, once recorded, are found again by the explorer."""
    names = _known(bugs or lowering.BUGS)
    silence_psycopg()
    with _working():
        lowered = lowering.measure(names, scenarios, reports, _news)
    _tell("Lowering recorded failures", lowering.page(lowered), lowering.held(lowered), out)


@app.command("explorer")
def explorer_command(out: Out = None) -> None:
    """How fast the explorer is here, and the state machine of a task's life."""
    silence_psycopg()
    with _working():
        measured = exploring.measure(_news)
    _tell("The explorer", exploring.page(measured), exploring.held(measured), out)


def _known(bugs: Sequence[str]) -> Sequence[str]:
    if unknown := sorted(set(bugs) - MUTANTS.keys()):
        end(f"no planted bug is called {', '.join(unknown)}; known: {', '.join(MUTANTS)}", USAGE)
    return bugs


@contextmanager
def _working() -> Iterator[None]:
    """End with the exit code that it calls for if the measurement cannot be made."""
    try:
        yield
    except ScenarioError as error:
        end(str(error), USAGE)
    except (*BREAKS, ExplorerError, ReplayError) as error:
        end(f"the harness could not do its work: {error}", BROKEN)
    except KeyboardInterrupt:
        interrupted()


def _news(line: str) -> None:
    messages.print(line, style="bold", markup=False)


def _sizes(given: str) -> list[int]:
    try:
        sizes = [int(part) for part in given.split(",")]
    except ValueError:
        end(f"--sizes must be whole numbers with commas between, not {given!r}", USAGE)
    if min(sizes) < LEAST:
        end(f"--sizes must be at least {LEAST}", USAGE)
    return sizes


def _tell(title: str, lines: Sequence[str], held: bool, out: Path | None) -> NoReturn:
    """Print the figure, keep it if asked to, and end with what came of it."""
    sys.stdout.write(text(title, lines))
    if out is not None:
        try:
            write_page(out, title, lines)
        except OSError as error:
            end(f"cannot write {out}: {error}", USAGE)
    raise typer.Exit(0 if held else WRONG)
