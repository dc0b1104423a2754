"""`chaos hunt`: the kill matrix."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import Progress

from chaos.directories import new_directory
from chaos.figures.page import publish
from chaos.hunt import generated, matrix
from chaos.hunt.by_tests import PytestError, are_for, hunt_by_tests
from chaos.hunt.equivalent import EQUIVALENT
from chaos.hunt.explorer import HUNTERS
from chaos.hunt.found import Hunted
from chaos.hunt.pool import FalseAlarmError, pool
from chaos.hunt.scenarios import hunt_in_scenario, try_without_bugs
from chaos.keep import BREAKS
from chaos.mutants import MUTANTS, Mutant
from chaos.part import PartOption
from chaos.scenario import ScenarioError
from chaos.terminal import BROKEN, USAGE, WRONG, bar, end, interrupted


class Killers(StrEnum):
    """Who hunts."""

    explorer = "explorer"
    scenarios = "scenarios"
    tests = "tests"
    all = "all"


def hunt_command(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="This mutant; may be given more than once."),
    ] = None,
    part: PartOption = None,
    killers: Annotated[
        Killers,
        typer.Option(
            help="Who hunts. all: the explorer, then scenarios for what it did not catch; tests for"
            " generated mutants that no program of the explorer runs."
        ),
    ] = Killers.all,
    of_sql: Annotated[
        bool,
        typer.Option(
            "--generated", help="Hunt the mutants generated from the SQL instead of the listed."
        ),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="How many of the explorer's hunts at once.")
    ] = os.cpu_count() or 1,
    scenarios: Annotated[Path, typer.Option(help="A directory of scenarios.")] = Path("scenarios"),
    reports: Annotated[
        Path, typer.Option(help="Where the matrix and the scenarios' runs are kept.")
    ] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the matrix as JSON.")] = False,
) -> None:
    """Hunt planted bugs.

    Exit code 1: a bug survived, was caught by another invariant than its own, or
    not within a minute; one was caught though nothing can; or the unmodified
    scheduler fails, too.
    Else exit code 4: a hunter could not do its work.
    """
    if of_sql and killers is Killers.scenarios:
        end("no scenario shows a generated mutant: leave --killers out", USAGE)
    if killers is Killers.tests and not of_sql:
        end("tests hunt generated mutants: add --generated", USAGE)
    known = generated.generated() if of_sql else MUTANTS
    if unknown := sorted(set(only or ()) - known.keys()):
        end(
            f"no such mutant: {', '.join(unknown)}; `chaos hunt"
            f"{' --generated' if of_sql else ''}` lists them all",
            USAGE,
        )
    wanted = [mutant for name, mutant in known.items() if not only or name in only]
    if killers in (Killers.explorer, Killers.tests):
        wanted = [one for one in wanted if are_for(one) is (killers is Killers.tests)]
        if not wanted:
            end("other killers hunt what is meant: leave --killers out", USAGE)
    if part is not None:
        wanted = part.select(wanted)
    began = time.monotonic()
    try:
        hunted = [Hunted(mutant.name, mutant.stands_for, mutant.invariant) for mutant in wanted]
        if killers is not Killers.scenarios:
            hunted = _hunt(wanted, processes, minimal=not of_sql)
        if killers is not Killers.explorer and not of_sql:
            left = [one.mutant for one in hunted if not one.kill]
            try_without_bugs(left, scenarios, reports)
            hunted = [
                one if one.kill else hunt_in_scenario(one, scenarios, reports) for one in hunted
            ]
    except FalseAlarmError as error:
        end(str(error), WRONG)
    except ScenarioError as error:
        end(str(error), USAGE)
    except (*BREAKS, BrokenProcessPool, PytestError) as error:
        end(f"the harness could not do its work: {error}", BROKEN)
    except KeyboardInterrupt:
        interrupted()
    _tell(hunted, time.monotonic() - began, reports, as_json)


def _hunt(wanted: Sequence[Mutant], processes: int, *, minimal: bool) -> list[Hunted]:
    """Hunt with the explorer and with tests, each what is for it, in the order of `wanted`; with a
    line of progress."""
    tested = [one for one in wanted if are_for(one)]
    explored = [one for one in wanted if not are_for(one)]
    found: dict[str, Hunted] = {}
    with bar() as progress:
        line = progress.add_task("mutants", total=len(wanted), news="")
        for one in chain(
            _explore(explored, processes, progress, minimal=minimal) if explored else (),
            hunt_by_tests(tested) if tested else (),
        ):
            one = replace(one, reason=EQUIVALENT.get(one.mutant, ""))
            found[one.mutant] = one
            progress.update(line, advance=1, news=f"{one.mutant}: {one.result}")
            if not one.held:
                late = " late" if one.slow else ""
                progress.console.print(
                    f"{one.result}{late}: {one.mutant}", markup=False, highlight=False
                )
    return [found[mutant.name] for mutant in wanted]


def _explore(
    wanted: Sequence[Mutant], processes: int, progress: Progress, *, minimal: bool
) -> Iterator[Hunted]:
    """Hunt with the explorer."""
    with pool(processes, generated.find) as hunters:
        line = progress.add_task("the scheduler as it is", total=len(HUNTERS), news="")
        baselines = []
        for baseline in hunters.baselines():
            baselines.append(baseline)
            progress.update(line, advance=1, news=baseline.name)
        progress.remove_task(line)
        yield from hunters.hunts(wanted, baselines, minimal=minimal)


def _tell(hunted: Sequence[Hunted], seconds: float, reports: Path, as_json: bool) -> NoReturn:
    """Print the matrix, keep it, and end with what came of it."""
    try:
        publish(
            new_directory(reports, "hunt") / "matrix",
            "Kill matrix",
            matrix.as_text(hunted, seconds),
            matrix.page(hunted, seconds),
            matrix.table(hunted),
            matrix.summary(hunted, seconds),
            as_json=as_json,
        )
    except OSError as error:
        end(f"cannot write the matrix: {error}", USAGE)
    raise typer.Exit(_exit_code(hunted))


def _exit_code(hunted: Sequence[Hunted]) -> int:
    """What the hunt says of the harness weighs more than that it could not say all."""
    left = {one.result for one in hunted if not one.held}
    if left - {"broken"}:
        return WRONG
    return BROKEN if left else 0
