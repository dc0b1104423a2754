"""A result, or the targets beside several, as one Markdown page, as reports/published has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from chaos.bench.result import Result
from chaos.bench.table import sentences, table

_MACHINE = ("processor", "cores", "load_before", "python", "psycopg", "postgres server_version")


def page(result: Result) -> str:
    """What a terminal shows of a result, with its command and its machine."""
    machine = ", ".join(
        f"{name.replace('_', ' ')} {result.machine[name]}"
        for name in _MACHINE
        if name in result.machine
    )
    repeats = max(one.repeat for one in result.measurements)
    return _text(
        f"chaos bench {result.bench}",
        result.command,
        f"{result.began[:10]}, {repeats} interleaved repeats; median (least to greatest)."
        f" {machine}.",
        table(result),
        [f"- {sentence}" for sentence in sentences(result)],
    )


def targets_page(command: str, shown: Table, results: Sequence[Result]) -> str:
    """The table of targets, and which results it rests on."""
    used = [f"- {one.bench}: `{one.command}`, {one.began}" for one in results]
    days = sorted({one.began[:10] for one in results})
    return _text("What the scheduler is to reach", command, ", ".join(days), shown, used)


def _text(title: str, command: str, about: str, shown: Table, last: Sequence[str]) -> str:
    lines = [f"# {title}", "", f"    {command}", "", about, "", *_rows(shown), "", *last, ""]
    return "\n".join(lines)


def _rows(shown: Table) -> Iterator[str]:
    headings = [_plain(str(column.header)) for column in shown.columns]
    ruled = ["--:" if column.justify == "right" else "---" for column in shown.columns]
    columns = [[_plain(str(cell)) for cell in column.cells] for column in shown.columns]
    for cells in (headings, ruled, *zip(*columns, strict=True)):
        yield f"| {' | '.join(cells)} |"


def _plain(markup: str) -> str:
    """A cell of the terminal's table without its styles, in one line."""
    return Text.from_markup(markup).plain.replace("\n", " ").replace("|", "\\|")
