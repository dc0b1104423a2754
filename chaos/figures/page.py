"""A page of figures: what was found, with the command and the machine that found it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from chaos.terminal import results

Out = Annotated[Path | None, typer.Option(help="A Markdown file that gets it, with its command.")]


def text(title: str, lines: Sequence[str]) -> str:
    """The page. The load is what the machine had to do meanwhile, this included."""
    return "\n".join(
        [
            f"# {title}",
            "",
            f"    chaos {shlex.join(sys.argv[1:])}",
            "",
            f"{time.strftime('%Y-%m-%d', time.gmtime())}, Python {platform.python_version()},"
            f" {os.cpu_count()} cores with a load of {os.getloadavg()[2]:.0f} beside it.",
            "",
            *lines,
            "",
        ]
    )


def publish(
    file: Path,
    title: str,
    document: str,
    page: Sequence[str],
    shown: Table,
    sentences: Iterable[str],
    *,
    as_json: bool,
) -> None:
    """Keep a result as `file`.json and as a page `file`.md; print the document, or a table with
    what it comes to. Raises OSError."""
    write_page(file.with_suffix(".md"), title, page)
    file.with_suffix(".json").write_text(document + "\n")
    if as_json:
        sys.stdout.write(document + "\n")
        return
    out = results(wide=200)
    out.print(shown)
    for sentence in sentences:
        out.print(escape(sentence))
    out.print(f"kept as {file.with_suffix('.md')}")


def write_page(file: Path, title: str, lines: Sequence[str]) -> None:
    """Write the page to a file. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text(title, lines))
