"""Writes a command's answer, for people or as JSON, to stdout, and its messages to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ANY_WIDTH = 10_000  # columns when nobody looks: one line a row, for grep


class RawJson:
    """JSON text that stands in a document as it is: reading it would round its numbers.

    No dataclass, since pydantic would write one as its fields.
    """

    def __init__(self, text: str) -> None:
        self.text = text


def json_text(document: object, indent: int | None = None) -> str:
    """The document as JSON, its `RawJson` parts unread."""
    parts: list[str] = []

    def mark(value: object) -> str:
        if not isinstance(value, RawJson):
            raise TypeError(f"{type(value).__name__} has no JSON")
        parts.append(value.text)
        return f"\0{len(parts) - 1}\0"  # no text of PostgreSQL's has a NUL in it

    marked = json.dumps(to_jsonable_python(document, fallback=mark), indent=indent)
    return re.sub(r'"\\u0000(\d+)\\u0000"', lambda found: parts[int(found[1])], marked)


def raw_payload(record: DataclassInstance) -> dict[str, object]:
    """A record's fields, its payload as raw JSON."""
    fields = asdict(record)
    return {**fields, "payload": RawJson(fields["payload"])}


def show(document: object, as_json: bool, *human: Table | str) -> None:
    """Write the document as JSON, or else its parts for people."""
    if as_json:
        typer.echo(json_text(document, indent=2))
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
