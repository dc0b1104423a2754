"""Line plots with bands as inline SVG, drawn by matplotlib, in the colours of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from chaos.bench.statistics import Spread

# Stand-ins that no other colour has. In the page they become CSS variables, so that one picture
# serves a light and a dark page.
INK, GRID = "#a1b2c0", "#a1b2c1"
COLOURS = tuple(f"#a1b2d{number}" for number in range(8))
_VARIABLES = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    **{colour: f"var(--line-{number})" for number, colour in enumerate(COLOURS)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and scales with the page
    "font.family": "sans-serif",
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}
_PROLOG = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NAMED = re.compile(r' id="[a-zA-Z0-9]+(?:\.[a-z]+)?_\d+"')  # alike in every picture, never used
_SIZE = re.compile(r'(<svg [^>]*?) width="[^"]*"| height="[0-9.]+pt"')


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its median as a line, and from its least to its greatest value as a band."""

    label: str
    colour: int
    style: Literal["-", "--", ":"]
    points: Sequence[tuple[int, Spread]]


def plot(title: str, x: str, y: str, lines: Sequence[Line], log_y: bool) -> str:
    """An SVG element. Both axes begin at what is there; a linear y axis at zero."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(5.4, 3.7), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            at = [position for position, _ in line.points]
            colour = COLOURS[line.colour % len(COLOURS)]
            axes.plot(
                at,
                [found.median for _, found in line.points],
                color=colour,
                linestyle=line.style,
                marker="o",
                markersize=4,
                label=line.label,
            )
            axes.fill_between(
                at,
                [found.low for _, found in line.points],
                [found.high for _, found in line.points],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
        axes.set_xscale("log", base=2)
        ticks = sorted({position for line in lines for position, _ in line.points})
        axes.set_xticks(ticks, [short(position) for position in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        for kind in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            kind(FuncFormatter(lambda value, _: short(value)))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=10)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _inline(drawn.getvalue(), title)


def short(value: float) -> str:
    """A number for an axis: 20k, 1M, 0.5."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _inline(svg: str, title: str) -> str:
    """The picture as part of an HTML page: without prolog, metadata, fixed size and shared ids."""
    svg = _METADATA.sub("", _PROLOG.sub("", svg))
    svg = _NAMED.sub("", svg)
    svg = _SIZE.sub(r"\1", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
