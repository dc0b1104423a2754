"""The figures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    HBar,
    HoverTool,
    HStrip,
    NumeralTickFormatter,
    Range1d,
    Scatter,
)
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from chaos.history.events import Phases
from chaos.report.attempts import Attempt
from chaos.report.bands import Band
from chaos.report.drawing import INKED, across, bars, frame, label_rows, strike
from chaos.report.lanes import Lanes
from chaos.report.measures import Bin, Distribution
from chaos.report.palette import BAND, CLAIMS, DONE, GUILTY, INK, P50, P99
from chaos.report.sources import band_hover, millis
from chaos.report.story import Story

_MARKERS = {"effect": "diamond", "refused": "x", "lost": "inverted_triangle", "write": "square"}


def time_range(attempts: Sequence[Attempt], phases: Phases) -> Range1d:
    """The whole run; figures that share it are zoomed together."""
    begin = min([phases.began, *(one.claimed for one in attempts)])
    end = max([phases.ended, *(one.end for one in attempts if one.end < phases.ended + 10_000_000)])
    margin = max(1.0, (end - begin) / 100)
    start, stop = millis(begin - margin), millis(end + margin)
    return Range1d(start=start, end=stop, bounds=(start, stop), name="time")


def lanes_figure(
    attempts: Sequence[Attempt],
    lanes: Lanes,
    bands: Sequence[Band],
    phases: Phases,
    x_range: Range1d,
) -> Any:
    """A lane a worker with its attempts, and the faults across those whom they struck."""
    rows = lanes.tops[-1]
    height = round(min(1000, max(220, rows * 12)) + 70)
    drawn = frame("lanes", height, x_range, y_range=Range1d(start=rows, end=0))
    edges = list(zip(lanes.tops, lanes.tops[1:], strict=False))
    every_other = {"y0": [top for top, _ in edges[1::2]], "y1": [end for _, end in edges[1::2]]}
    shade = HStrip(fill_color=BAND, fill_alpha=0.07, line_color=None)
    drawn.add_glyph(ColumnDataSource(every_other), shade)
    placed: list[tuple[Band, float, float]] = []
    for band in bands:
        stretches = {lanes.stretch(worker) for worker in band.workers}
        if not band.workers:
            placed.append((band, 0, rows))
        placed += [(band, *stretch) for stretch in sorted(filter(None, stretches))]
    struck = strike(drawn, placed)
    bars(drawn, attempts, [row + 0.5 for row in lanes.rows], "lanes")
    if struck:
        drawn.add_tools(band_hover(struck))
    drawn.add_layout(_heal_line(phases))
    label_rows(
        drawn,
        {(top + bottom) / 2: name for name, (top, bottom) in zip(lanes.names, edges, strict=True)},
    )
    drawn.yaxis.axis_label = "worker"
    return drawn


def waits_figure(
    width: int, bins: Sequence[Bin], bands: Sequence[Band], phases: Phases, x_range: Range1d
) -> Any:
    """How long due tasks waited for their claim."""
    drawn = frame("waits", 230, x_range, y_axis_type="log")
    across(drawn, bands)
    claimed = [one for one in bins if one.claims]
    at = [millis(one.begin + width / 2) for one in claimed]
    columns: dict[str, Any] = {
        "at": at,
        # Nothing is zero on a logarithmic axis: a tenth of a millisecond is drawn for less.
        "p50": [max(0.1, millis(one.wait_p50)) for one in claimed],
        "p99": [max(0.1, millis(one.wait_p99)) for one in claimed],
        "claims": [one.claims for one in claimed],
    }
    drawn.line("at", "p99", source=columns, color=P99, line_width=1.5, legend_label="p99")
    line = drawn.line("at", "p50", source=columns, color=P50, line_width=1.5, legend_label="p50")
    drawn.scatter("at", "p99", source=columns, color=P99, size=4)
    drawn.scatter("at", "p50", source=columns, color=P50, size=4)
    tips = [("median", "@p50{0.0} ms"), ("p99", "@p99{0.0} ms"), ("of claims", "@claims")]
    drawn.add_tools(HoverTool(renderers=[line], tooltips=tips, mode="vline"))
    drawn.add_layout(_heal_line(phases))
    drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
    return _with_legend(drawn, "wait, ms", "bottom_left")


def throughput_figure(
    width: int, bins: Sequence[Bin], bands: Sequence[Band], phases: Phases, x_range: Range1d
) -> Any:
    """Claims and completions a second."""
    drawn = frame("throughput", 230, x_range)
    across(drawn, bands)
    seconds = width / 1e6
    columns: dict[str, Any] = {
        "at": [millis(one.begin + width / 2) for one in bins],
        "claims": [one.claims / seconds for one in bins],
        "completions": [one.completions / seconds for one in bins],
    }
    step = {"source": columns, "mode": "center", "line_width": 1.5}
    drawn.step("at", "claims", color=CLAIMS, legend_label="claims", **step)
    line = drawn.step("at", "completions", color=DONE, legend_label="completions", **step)
    tips = [("claims a second", "@claims{0.0}"), ("completions a second", "@completions{0.0}")]
    drawn.add_tools(HoverTool(renderers=[line], tooltips=tips, mode="vline"))
    drawn.y_range.start = 0
    drawn.add_layout(_heal_line(phases))
    return _with_legend(drawn, "a second", "top_left")


def histogram(distribution: Distribution, name: str) -> Any:
    """How often each length of time occurred."""
    values = np.array(distribution.values, dtype=np.float64) / 1e6
    # Half of a second and 100 are told by the same picture: the axis is the data's own.
    counts, edges = np.histogram(values, bins=min(40, max(5, len(values))))
    drawn = figure(
        name=name,
        height=220,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        x_axis_label="seconds",
    )
    columns: dict[str, Any] = {"top": counts, "left": edges[:-1], "right": edges[1:]}
    quads = drawn.quad(
        *("left", "right", "top"), bottom=0, source=columns, color=P50, line_color=None
    )
    tips = [("seconds", "@left{0.000} to @right{0.000}"), ("attempts", "@top")]
    drawn.add_tools(HoverTool(renderers=[quads], tooltips=tips))
    drawn.xgrid.visible = False
    drawn.y_range = DataRange1d(start=0)
    drawn.yaxis.minor_tick_line_color = None
    return drawn


def story_figure(story: Story, name: str) -> Any:
    """A counterexample: a row for each attempt, what it did, and where the failure shows."""
    shown = sorted(story.attempts, key=lambda one: (one.task, one.claimed))
    points = [event.at for event in story.events if event.task is not None or event.mark]
    times = [*points, *(one.claimed for one in shown), *(one.end for one in shown)]
    begin, end = min(times), max(times)
    margin = max(1_000.0, (end - begin) / 30)
    x_range = Range1d(start=millis(begin - margin), end=millis(end + margin))
    drawn = frame(name, 80 + 34 * len(shown), x_range, y_range=Range1d(start=len(shown), end=0))
    places = {(one.task, one.owner): row for row, one in enumerate(shown)}
    struck = strike(
        drawn,
        [
            (band, row, row + 1)
            for band in story.bands
            for row, one in enumerate(shown)
            if not band.workers or one.worker in band.workers
        ],
    )
    # Where its lease would have ended, had nobody ended it: an outline around what it was.
    outlines = {
        "y": [row + 0.5 for row in range(len(shown))],
        "left": [millis(one.claimed) for one in shown],
        "right": [millis(one.until) for one in shown],
    }
    outline = HBar(left="left", height=0.86, fill_color=None, line_color=INK, line_dash="dotted")
    drawn.add_glyph(ColumnDataSource(outlines), outline, tags=[INKED])
    bars(drawn, shown, [row + 0.5 for row in range(len(shown))], name)
    if struck:
        drawn.add_tools(band_hover(struck))
    for mark, marker in _MARKERS.items():
        found = [
            event
            for event in story.events
            if event.mark == mark and (event.task, event.who) in places
        ]
        if not found:
            continue
        columns: dict[str, Any] = {
            "at": [millis(event.at) for event in found],
            "row": [places[event.task or 0, event.who] + 0.5 for event in found],
            "what": [event.what for event in found],
            "who": [event.who for event in found],
        }
        glyph = Scatter(x="at", y="row", marker=marker, size=10, line_color=INK, line_width=1.6)
        renderer = drawn.add_glyph(ColumnDataSource(columns), glyph, name="mark", tags=[INKED])
        drawn.add_tools(HoverTool(renderers=[renderer], tooltips=[("@who", "@what")]))
    if story.guilty is not None:
        at = millis(story.guilty)
        drawn.add_layout(
            Span(location=at, dimension="height", line_color=GUILTY, line_width=2, line_dash="6 4")
        )
    several = len(story.tasks) > 1
    label_rows(
        drawn,
        {
            row + 0.5: (f"{one.task}: " if several else "") + f"{one.worker}, token {one.token}"
            for row, one in enumerate(shown)
        },
    )
    drawn.min_border_left = 120
    return drawn


def _heal_line(phases: Phases) -> Span:
    return Span(
        location=millis(phases.healed),
        dimension="height",
        line_color=DONE,
        line_dash="dashed",
        line_width=1.5,
    )


def _with_legend(drawn: Any, y: str, place: str) -> Any:
    drawn.yaxis.axis_label = y
    drawn.legend.location = place
    drawn.legend.orientation = "horizontal"
    drawn.legend.background_fill_alpha = 0
    drawn.legend.border_line_color = None
    drawn.legend.padding = 0
    return drawn
