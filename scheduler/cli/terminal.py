"""Writes a command's answer, for people or as JSON, to stdout, and its messages to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.documents import json_text

ANY_WIDTH = 10_000  # columns when nobody looks: one line a row, for grep


class OutputError(Exception):
    """The answer cannot be written, and what was asked for is done."""


def show(document: object, as_json: bool, *human: Table | str) -> None:
    """Write the document as JSON, or else its parts for people."""
    if as_json:
        write(json_text(document, indent=2))
        return
    with _writing():
        watched = sys.stdout.isatty()
    for part in human:
        if isinstance(part, Table):
            # As text, since a Console fails at characters that the terminal's encoding lacks.
            drawn = StringIO()
            width = None if watched else ANY_WIDTH
            Console(file=drawn, width=width, force_terminal=watched).print(part)
            write(drawn.getvalue().removesuffix("\n"))
        else:
            write(part)


def write(text: str) -> None:
    """Write data, and the end of a line. Raises OutputError if it cannot be written; a reader that
    has enough is no error, and typer ends the command."""
    with _writing():
        encoding = sys.stdout.encoding or "utf-8"
        typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


@contextmanager
def _writing() -> Iterator[None]:
    if sys.stdout is None:
        raise OutputError("cannot write the answer: standard output is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Or Python would try again at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot write the answer: {error.strerror}") from error


def say(message: str) -> None:
    """Write a message, which is not data."""
    typer.echo(message, err=True)


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows under names; nothing is cut off."""
    made = Table(box=None, pad_edge=False)
    for name in names:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(Text(_printable(value)) for value in row))
    return made


def age(seconds: float | None) -> str:
    """A duration as h:mm:ss, nothing for none."""
    return "" if seconds is None else str(timedelta(seconds=int(seconds)))


def _printable(value: object) -> str:
    """As text that cannot steer the terminal: kinds and errors may hold anything."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
