"""Writes a command's answer, for people or as JSON, to stdout, and its messages to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

ANY_WIDTH = 10_000  # columns when nobody looks: one line a row, for grep


def show(document: object, as_json: bool, *human: Table | str) -> None:
    """Write the document as JSON, or else its parts for people."""
    if as_json:
        typer.echo(json.dumps(to_jsonable_python(document), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else ANY_WIDTH)
    for part in human:
        if isinstance(part, Table):
            console.print(part)
        else:
            typer.echo(part)


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
