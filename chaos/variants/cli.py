"""`chaos variants`: correct schedulers, at which the harness must not cry."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from chaos.directories import new_directory
from chaos.figures.page import publish
from chaos.hunt.explorer import HUNTERS, baseline
from chaos.hunt.generated import find
from chaos.hunt.pool import FalseAlarmError, pool
from chaos.keep import BREAKS
from chaos.part import PartOption
from chaos.scenario import ScenarioError
from chaos.terminal import BROKEN, USAGE, WRONG, bar, end, interrupted
from chaos.variants import UNMODIFIED, VARIANTS, Variant, matrix, scenarios
from chaos.variants.explorer import as_it_is, asked, search
from chaos.variants.tried import Tried


def variants_command(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="This variant; may be given more than once."),
    ] = None,
    part: PartOption = None,
    programs: Annotated[
        int | None,
        typer.Option(
            min=0, help="So many of the explorer's programs for each at most; by default all."
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=0, help="So many runs of scenarios for each.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; each next has one more.")] = 1,
    processes: Annotated[
        int, typer.Option(min=1, help="How many of the explorer's searches at once.")
    ] = os.cpu_count() or 1,
    directory: Annotated[
        Path, typer.Option("--scenarios", help="A directory of scenarios.")
    ] = Path("scenarios"),
    reports: Annotated[
        Path, typer.Option(help="Where the figures, and runs that did not pass, are kept.")
    ] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Try the scheduler as it is, and correct variants of it.

    Exit code 1: the harness cried, be it at the unmodified scheduler.
    Else exit code 4: something did not run, or could not.
    """
    if unknown := sorted(set(only or ()) - VARIANTS.keys()):
        end(f"no such variant: {', '.join(unknown)}; known: {', '.join(VARIANTS)}", USAGE)
    wanted = [variant for name, variant in VARIANTS.items() if not only or name in only]
    if part is not None:
        wanted = part.select(wanted)
    began = time.monotonic()
    try:
        # Looked at before anything runs: it may be half an hour until they are.
        played = {one.name: scenarios.loaded(one, directory) for one in wanted} if runs else {}
        tried = [Tried(one.name) for one in wanted]
        if programs != 0:
            tried = _explore(wanted, programs, processes)
        for number, variant in enumerate(wanted if runs else ()):
            news = f"variant {number + 1} of {len(wanted)}, {variant.name}"
            first = seed + number * runs
            ran = scenarios.run(variant, played[variant.name], runs, first, reports, news)
            tried[number] = tried[number].besides(ran)
    except FalseAlarmError as error:
        end(str(error), WRONG)
    except ScenarioError as error:
        end(str(error), USAGE)
    except (*BREAKS, BrokenProcessPool) as error:
        end(f"the harness could not do its work: {error}", BROKEN)
    except KeyboardInterrupt:
        interrupted()
    _tell(tried, wanted, time.monotonic() - began, reports, as_json)


def _explore(wanted: Sequence[Variant], most: int | None, processes: int) -> list[Tried]:
    """Search with the explorer, in the order of `wanted`; with a line of progress."""
    found: dict[str, Tried] = {}
    with (
        pool(processes, find) as searchers,
        bar() as progress,
    ):
        line = progress.add_task("the scheduler as it is", total=len(HUNTERS), news="")
        baselines = []
        for one in searchers.each(baseline, HUNTERS):
            baselines.append(one)
            progress.update(line, advance=1, news=one.name)
        found[UNMODIFIED.name] = unmodified = as_it_is(baselines)
        if unmodified.alarms and UNMODIFIED not in wanted:
            where, what, shown_by = unmodified.alarms[0]
            raise FalseAlarmError(f"the scheduler as it is fails, too: {where}: {what}: {shown_by}")
        others = [asked(variant, baselines, most) for variant in wanted if variant != UNMODIFIED]
        progress.reset(line, description="variants", total=len(others), news="")
        for tried in searchers.each(search, others):
            found[tried.name] = tried
            progress.update(line, advance=1, news=tried.name)
            for alarm in tried.alarms:
                progress.console.print(
                    f"alarm: {tried.name}: {alarm.what}", markup=False, highlight=False
                )
    return [found[variant.name] for variant in wanted]


def _tell(
    tried: Sequence[Tried],
    variants: Sequence[Variant],
    seconds: float,
    reports: Path,
    as_json: bool,
) -> NoReturn:
    """Print the figures, keep them, and end with what came of it."""
    try:
        publish(
            new_directory(reports, "variants") / "variants",
            "False alarms",
            matrix.as_text(tried, variants, seconds),
            matrix.page(tried, variants, seconds),
            matrix.table(tried),
            matrix.summary(tried, seconds),
            as_json=as_json,
        )
    except OSError as error:
        end(f"cannot write the figures: {error}", USAGE)
    if any(one.alarms for one in tried):
        raise typer.Exit(WRONG)
    raise typer.Exit(0 if all(one.held for one in tried) else BROKEN)
