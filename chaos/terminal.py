"""Where the commands of `chaos` write, what they say beside their results, and how they end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.invariants.verdict import Outcome

# Exit codes. README lists them all.
WRONG, USAGE, BROKEN, CANNOT_LOWER, INTERRUPTED = 1, 2, 4, 5, 130
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": WRONG, "inconclusive": 3}
_WORST_FIRST = (BROKEN, *(EXIT_CODES[outcome] for outcome in ("fail", "inconclusive", "pass")))

messages = Console(stderr=True)  # what is said beside the results
copied = Console(highlight=False, soft_wrap=True)  # results to be copied: no line is folded


def results(wide: int = 120) -> Console:
    """Stdout; where nobody looks, so wide that a path, a sentence or a row is seldom folded."""
    return Console(width=None if sys.stdout.isatty() else wide, highlight=False)


def end(message: str, code: int) -> NoReturn:
    """End the command with one sentence."""
    messages.print(f"error: {message}", style="red", markup=False, highlight=False)
    raise typer.Exit(code)


def interrupted() -> NoReturn:
    """End the command after Ctrl-C, once what it started has been ended."""
    end("interrupted; the workers and servers are gone", INTERRUPTED)


def worst(codes: Collection[int]) -> int:
    """The exit code for several results that have these; nothing to judge is no pass."""
    return next((code for code in _WORST_FIRST if code in codes), BROKEN)


def silence_psycopg() -> None:
    """Hear no warnings of sessions that cannot roll back: the explorer cuts them on purpose."""
    logging.getLogger("psycopg").setLevel(logging.ERROR)


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
