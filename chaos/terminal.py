"""What the commands of `chaos` say beside their results, on standard error, and how they end."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Exit codes. README lists them all.
WRONG, USAGE, BROKEN = 1, 2, 4

messages = Console(stderr=True)


def end(message: str, code: int) -> NoReturn:
    """End the command with one sentence."""
    messages.print(f"error: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(code)


def bar() -> Progress:
    """A line of progress: of what, how many, since when, and the `news` of each step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=messages, transient=True)
