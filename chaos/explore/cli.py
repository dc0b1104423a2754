"""`chaos explore`: the programs over the scheduler, its mutants, the crash points."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from chaos.cluster import ClusterError
from chaos.cluster.postgres import postgres
from chaos.explore.clauses.programs import CLAUSES
from chaos.explore.crash_lives import LIVES, NAMES
from chaos.explore.crashpoints import crash_points
from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.explore import SERVER, explore_program, replay
from chaos.explore.program import Program
from chaos.explore.pytest_code import pytest_function
from chaos.explore.run import Trace
from chaos.explore.scheduler_programs import PROGRAMS
from chaos.explore.search import Tally
from chaos.invariants.verdict import Outcome
from chaos.mutants import MUTANTS, planted
from chaos.terminal import BROKEN, EXIT_CODES, USAGE, copied, end, messages, silence_psycopg, worst
from chaos.variants import VARIANTS

KNOWN = {**PROGRAMS, **CLAUSES}
ALL = {name: known.program for name, known in KNOWN.items()}


def explore_command(
    program: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(PROGRAMS)}, or of those for single clauses that `chaos hunt`"
            f" uses; with --crash-points one of {', '.join(LIVES)}. If left out, all but those for"
            " single clauses."
        ),
    ] = None,
    system_name: Annotated[
        str, typer.Option("--system", help="leaseproof, or leaseproof:BUG.")
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
    crash: Annotated[
        bool,
        typer.Option(
            "--crash-points", help="Break a life at each of its statements and commits instead."
        ),
    ] = False,
) -> None:
    """Run every interleaving of the scheduler's statements that the bounds allow."""
    bounds = {"--preemptions": preemptions is not None, "--schedules": schedules is not None}
    if schedule is not None:
        _refuse(bounds, "--replay runs the one schedule that it is given")
    if crash:
        _refuse(bounds, "--crash-points breaks a life once at each point in each way")
    programs = {name: life.program for name, life in LIVES.items()} if crash else ALL
    mutant = _mutant(system_name)
    _check(program, list(programs), schedule)
    silence_psycopg()
    try:
        if schedule is not None and program is not None:
            with planted(MUTANTS[mutant] if mutant else None):
                trace = replay(programs[program], schedule)
            copied.print(str(trace), markup=False)
            raise typer.Exit(EXIT_CODES["pass" if trace.violation is None else "fail"])
        names = [program] if program is not None else list(LIVES if crash else PROGRAMS)
        if crash:
            raise typer.Exit(_crash(names, mutant))
        raise typer.Exit(_explore(names, mutant, preemptions, schedules))
    except ScheduleError as error:
        end(str(error), USAGE)
    except (ClusterError, ExplorerError, OSError) as error:
        end(f"the explorer could not do its work: {error}", BROKEN)


def _explore(
    names: list[str], mutant: str | None, preemptions: int | None, schedules: int | None
) -> int:
    """Explore programs one after the other until one fails; the exit code of the worst."""
    outcomes: list[Outcome] = []
    with postgres(settings=SERVER) as server, planted(MUTANTS[mutant] if mutant else None):
        for name in names:
            known = KNOWN[name]
            bounds = known.bounds
            if preemptions is not None:
                bounds = replace(bounds, preemptions=preemptions)
            if schedules is not None:
                bounds = replace(bounds, schedules=schedules)
            database = f"explore_{name}"
            server.create_database(database)
            copied.print(f"{name}: {known.about}", markup=False)
            began = time.monotonic()
            with messages.status("") as status:

                def show(tally: Tally, name: str = name, began: float = began) -> None:
                    speed = tally.schedules / max(0.001, time.monotonic() - began)
                    status.update(
                        f"{name}: {tally.schedules} schedules, {speed:.0f}/s,"
                        f" {tally.deepest} preemptions"
                    )

                found = explore_program(known.program, bounds, server.dsn(database), show)
            copied.print(str(found), markup=False)
            outcomes.append(found.outcome)
            if found.failure is not None:
                _show_test(found.program, found.failure, mutant)
                break
    return worst([EXIT_CODES[outcome] for outcome in outcomes])


def _crash(names: list[str], mutant: str | None) -> int:
    """Break lives one after the other until one fails; the exit code of the worst."""
    outcomes: list[Outcome] = []
    points = enumerated = exercised = 0
    with postgres(settings=SERVER) as server, planted(MUTANTS[mutant] if mutant else None):
        server.create_database("crash_points")
        for name in names:
            life = LIVES[name]
            copied.print(f"{name}: {life.about}", markup=False)
            with messages.status("") as status:

                def show(at: str, name: str = name) -> None:
                    status.update(f"{name}: {at}")

                found = crash_points(life.program, server.dsn("crash_points"), NAMES, show)
            copied.print(str(found), markup=False)
            outcomes.append(found.outcome)
            points += len(found.points)
            enumerated += found.enumerated
            exercised += found.exercised
            if found.failures:
                _show_test(life.program, found.failures[0].trace, mutant)
                break
    copied.print(
        f"{len(outcomes)} lives: {points} points, {enumerated} crashes enumerated,"
        f" {exercised} exercised",
        markup=False,
    )
    return worst([EXIT_CODES[outcome] for outcome in outcomes])


def _show_test(program: Program, failure: Trace, mutant: str | None) -> None:
    assert failure.violation is not None
    copied.print("\n# As a test:\n", markup=False)
    copied.print(pytest_function(program, failure.choices, failure.violation, mutant), markup=False)


def _refuse(given: Mapping[str, bool], why: str) -> None:
    """End with a usage error for what was given and would be ignored."""
    if named := [what for what, is_given in given.items() if is_given]:
        end(f"{why}: leave {' and '.join(named)} out", USAGE)


def _mutant(system_name: str) -> str | None:
    """The planted bug's name, if the system has one; ends with a usage error for other systems."""
    if system_name == "leaseproof":
        return None
    base, _, name = system_name.partition(":")
    if base == "leaseproof" and name in VARIANTS:
        end(
            f"{name} is a correct variant: `chaos variants --only {name} --runs 0` explores it",
            USAGE,
        )
    if base != "leaseproof" or name not in MUTANTS:
        known = ", ".join(["leaseproof", *(f"leaseproof:{known}" for known in MUTANTS)])
        end(
            f"{system_name!r} cannot be explored here, since the programs call leaseproof's own"
            f" functions; known systems: {known}; for your own code there is"
            " chaos.explore.explore",
            USAGE,
        )
    return name


def _check(program: str | None, known: list[str], schedule: str | None) -> None:
    """End with a usage error for an unknown program, and for a schedule of none."""
    if program is not None and program not in known:
        end(f"no program {program!r} is known; known programs: {', '.join(known)}", USAGE)
    if schedule is not None and program is None:
        end("--replay needs the program that the schedule belongs to", USAGE)
