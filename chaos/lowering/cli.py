"""`chaos lower`: a recorded failure of real processes as a minimal deterministic test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import psycopg
import typer
from rich.markup import escape

from chaos.cluster import ClusterError
from chaos.cluster.postgres import postgres
from chaos.explore.errors import ExplorerError
from chaos.explore.explore import SERVER
from chaos.history.store import HistoryError
from chaos.invariants.judge import INVARIANTS
from chaos.lowering.projection import CannotLowerError
from chaos.lowering.recorded import LoweredRun, lower_run, mutant_of
from chaos.saved import RunOrFile, history_of
from chaos.terminal import BROKEN, CANNOT_LOWER, USAGE, copied, end, messages, silence_psycopg


def lower_command(
    run: RunOrFile,
    invariant: Annotated[
        str | None,
        typer.Option(help="Lower the first failure of this one, not of the first that can be."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the test there, too.")
    ] = None,
) -> None:
    """Find a run's failure again as a minimal schedule of statements, and print it as a test.

    Exit code 5: this failure cannot be lowered.
    """
    if invariant is not None and invariant not in INVARIANTS:
        end(f"no invariant is called {invariant!r}; known: {', '.join(INVARIANTS)}", USAGE)
    try:
        history = history_of(run)
        if file is not None:
            _check_writable(file)  # or the search would be for nothing
    except (HistoryError, OSError) as error:
        end(str(error), USAGE)
    silence_psycopg()
    try:
        mutant_of(history)  # before a server is started for nothing
        with postgres(settings=SERVER) as server, messages.status("") as status:

            def tell(text: str) -> None:
                status.update(escape(text))

            found = lower_run(history, server, "lower", invariant, tell)
    except CannotLowerError as error:
        end(f"{run} cannot be lowered: {error}", CANNOT_LOWER)
    except (ClusterError, ExplorerError, OSError, psycopg.Error) as error:
        end(f"the explorer could not do its work: {error}", BROKEN)
    _show(found)
    if file is not None:
        try:
            file.write_text(found.test())
        except OSError as error:
            end(f"cannot write {file}: {error}", USAGE)


def _check_writable(file: Path) -> None:
    """Raises OSError if it is not; it stays as it is, and where it is not there it is not made."""
    new = not file.exists()
    file.open("a").close()
    if new:
        file.resolve().unlink()


def _show(found: LoweredRun) -> None:
    lowered = found.lowered
    lines = [f"recorded: {lowered.recorded}"]
    lines += [
        f"  {name} was {who}: {lowered.script.actors[name]}" for name, who in lowered.cast.items()
    ]
    if lowered.searched:
        lines.append(f"found after {lowered.searched} schedules around the order of the run")
    else:
        lines.append("found in the order of the run")
    lines += [str(lowered.trace)]
    if found.stands is not None:
        lines.append(
            "without the planted bug it is right"
            if found.stands
            else "without the planted bug it is wrong, too"
        )
    for line in [*lines, "\n# As a test:\n", found.test()]:
        copied.print(line, markup=False)
