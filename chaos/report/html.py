"""Small pieces of HTML. Every text that goes in is escaped here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from chaos.report.text import plain


class Cell(NamedTuple):
    """A cell of a table: its text, and the class it has if any."""

    text: str
    style: str = ""


Row = tuple[Sequence[Cell | str], str]  # its cells, and the class it has


def text(value: object, most: int = 2_000) -> str:
    """A value as text of a page, never as markup."""
    return escape(plain(value, most))


def number(value: float) -> Cell:
    """A cell with a number."""
    return Cell(f"{value:,}", "number")


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Row],
    *,
    style: str = "cards",
) -> str:
    """A table. Each row is its cells and its class; the first cell is the row's heading on paper.

    With the style `cards`, a narrow page shows each row as a card, its cells named by their heads.
    """
    body = []
    for cells, row_style in rows:
        shown = "".join(
            _cell(Cell(cell) if isinstance(cell, str) else cell, head)
            for cell, head in zip(cells, heads, strict=True)
        )
        body.append(f'<tr class="{escape(row_style)}">{shown}</tr>')
    top = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    told = f"<caption>{text(caption)}</caption>" if caption else ""
    lines = "\n".join(body)
    return (
        f'<div class="wide"><table class="{escape(style)}">{told}<thead><tr>{top}</tr></thead>'
        f"<tbody>\n{lines}\n</tbody></table></div>\n"
    )


def _cell(cell: Cell, head: str) -> str:
    return f'<td class="{escape(cell.style)}" data-name="{text(head)}">{text(cell.text)}</td>'


def details(summary: str, inside: str) -> str:
    """Something to be opened."""
    return f"<details><summary>{text(summary)}</summary>{inside}</details>\n"


def plot(name: str, label: str, caption: str = "") -> str:
    """The place of a figure, what it is for those who do not see it, and a caption (HTML)."""
    told = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><div class="plot" id="{escape(name)}" role="img" aria-label="{text(label)}">'
        f"</div>{told}</figure>\n"
    )
