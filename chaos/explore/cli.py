"""`chaos explore`: the built-in programs over the scheduler and its mutants, and the figures."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from chaos.cluster import ClusterError
from chaos.cluster.postgres import postgres
from chaos.explore import figures as measured
from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.explore import SERVER, Exploration, explore_program, replay
from chaos.explore.pytest_code import pytest_function
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.explore.search import Tally
from chaos.invariants.verdict import Outcome
from chaos.systems import UnknownSystemError, system
from chaos.systems.mutants import MUTANTS, planted

EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
USAGE, BROKEN = 2, 4

out = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True)


def explore_command(
    program: Annotated[
        str | None,
        typer.Argument(help=f"One of {', '.join(PROGRAMS)}; all of them if left out."),
    ] = None,
    system_name: Annotated[
        str, typer.Option("--system", help="leaseproof, or leaseproof:MUTANT.")
    ] = "leaseproof",
    preemptions: Annotated[
        int | None, typer.Option(min=0, help="Instead of the program's own bound.")
    ] = None,
    schedules: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many; what is cut is inconclusive.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--replay", help="Run this one schedule, such as 'a b! a +60s a'.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Measure the explorer's own speed instead.")
    ] = False,
) -> None:
    """Run every interleaving of the scheduler's statements that the bounds allow."""
    mutant = _checked(program, system_name, schedule)
    # Connections are cut on purpose; psycopg warns of each that it then cannot roll back.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    try:
        if figures:
            for line in measured.lines():
                out.print(line, markup=False)
        elif schedule is not None and program is not None:
            with planted(MUTANTS[mutant] if mutant else None):
                trace = replay(PROGRAMS[program].program, schedule)
            out.print(str(trace), markup=False)
            raise typer.Exit(EXIT_CODES["pass" if trace.violation is None else "fail"])
        else:
            names = [program] if program is not None else list(PROGRAMS)
            raise typer.Exit(_explore(names, mutant, preemptions, schedules))
    except ScheduleError as error:
        _end(str(error), USAGE)
    except (ClusterError, ExplorerError, OSError) as error:
        _end(f"the explorer could not do its work: {error}", BROKEN)


def _explore(
    names: list[str], mutant: str | None, preemptions: int | None, schedules: int | None
) -> int:
    """Explore programs one after the other until one fails; the exit code of the worst."""
    outcomes: list[Outcome] = []
    with postgres(settings=SERVER) as server, planted(MUTANTS[mutant] if mutant else None):
        for name in names:
            known = PROGRAMS[name]
            bounds = known.bounds
            if preemptions is not None:
                bounds = replace(bounds, preemptions=preemptions)
            if schedules is not None:
                bounds = replace(bounds, schedules=schedules)
            database = f"explore_{name}"
            server.create_database(database)
            out.print(f"{name}: {known.about}", markup=False)
            began = time.monotonic()
            with messages.status("") as status:

                def show(tally: Tally, name: str = name, began: float = began) -> None:
                    speed = tally.schedules / max(0.001, time.monotonic() - began)
                    status.update(
                        f"{name}: {tally.schedules} schedules, {speed:.0f}/s,"
                        f" {tally.deepest} preemptions"
                    )

                found = explore_program(known.program, bounds, server.dsn(database), show)
            out.print(str(found), markup=False)
            outcomes.append(found.outcome)
            if found.failure is not None:
                _show_test(found, mutant)
                break
    worst: Outcome = "fail" if "fail" in outcomes else "inconclusive"
    return EXIT_CODES[worst if worst in outcomes else "pass"]


def _show_test(found: Exploration, mutant: str | None) -> None:
    failure = found.failure
    assert failure is not None
    assert failure.violation is not None
    out.print("\n# As a test:\n", markup=False)
    source = pytest_function(found.program, failure.choices, failure.violation, mutant)
    out.print(source, markup=False)


def _checked(program: str | None, system_name: str, schedule: str | None) -> str | None:
    """The mutant's name, if the system has one; ends with a usage error for unknown names."""
    try:
        system(system_name)
    except UnknownSystemError as error:
        _end(str(error), USAGE)
    if program is not None and program not in PROGRAMS:
        _end(f"no program {program!r} is known; known programs: {', '.join(PROGRAMS)}", USAGE)
    if schedule is not None and program is None:
        _end("--replay needs the program that the schedule belongs to", USAGE)
    return system_name.partition(":")[2] or None


def _end(message: str, code: int) -> NoReturn:
    messages.print(f"error: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(code)
