"""What the figures of a report have in common: frame, attempts as bars, faults as bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import (
    ColumnDataSource,
    DatetimeTickFormatter,
    FixedTicker,
    HBar,
    PlainText,
    Quad,
    Range1d,
    Scatter,
    Segment,
    VSpan,
    VStrip,
)
from bokeh.plotting import figure

from chaos.report.attempts import OUTCOMES, Attempt
from chaos.report.bands import Band
from chaos.report.palette import BAND, COLOURS, INK
from chaos.report.sources import grouped, hover, masked, millis, source, zombie_source
from chaos.report.text import plain

INKED = "ink"  # tag of what the page paints in the colour of its text


def frame(name: str, height: int, x_range: Range1d, **more: Any) -> Any:
    """An empty figure over time, as wide as the page."""
    drawn = figure(
        name=name,
        height=height,
        x_range=x_range,
        x_axis_type="datetime",
        sizing_mode="stretch_width",
        tools="xpan,xbox_zoom,xwheel_zoom,reset,save",
        active_drag="xbox_zoom",
        active_scroll=None,
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=76,
        min_border_right=12,
        output_backend="canvas",
        **more,
    )
    drawn.toolbar.logo = None
    drawn.xaxis.formatter = DatetimeTickFormatter(  # of this figure alone: no model has two owners
        microseconds="%H:%M:%S.%6N",
        milliseconds="%H:%M:%S.%3N",
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M:%S",
        hourmin="%H:%M:%S",
        hours="%H:%M",
    )
    drawn.ygrid.visible = False
    return drawn


def label_rows(drawn: Any, labels: Mapping[float, str]) -> None:
    """Write names beside rows, as they are: Bokeh would take `$$` in a plain string for TeX."""
    drawn.yaxis.ticker = FixedTicker(ticks=list(labels))
    drawn.yaxis.major_label_overrides = {
        place: PlainText(text=plain(text, 24)) for place, text in labels.items()
    }
    drawn.yaxis.minor_tick_line_color = None
    drawn.yaxis.major_tick_line_color = None
    drawn.yaxis.axis_line_color = None


def bars(drawn: Any, attempts: Sequence[Attempt], rows: Sequence[float], name: str) -> None:
    """Each attempt's lease, pale; its handler's run in it, solid; what ran on after it, hatched."""
    leases = []
    groups = grouped(attempts, rows)
    for outcome in OUTCOMES:
        if outcome not in groups:
            continue
        colour = COLOURS[outcome]
        columns = source(*groups[outcome], f"{name}-{outcome}")
        view = masked(columns)
        lease = HBar(left="claimed", right="lease_end", y="row", height=0.86)
        lease.update(fill_color=colour, fill_alpha=0.28, line_color=colour, line_alpha=0.45)
        run = HBar(left="started", right="run_end", y="row", height=0.5)
        run.update(fill_color=colour, line_color=colour)
        same: dict[str, Any] = {"view": view, "name": f"outcome-{outcome}"}
        leases.append(drawn.add_glyph(columns, lease, **same))
        drawn.add_glyph(columns, run, **same)
    drawn.add_tools(hover(leases))
    zombies = zombie_source(attempts, rows, f"{name}-zombies")
    if len(zombies.data["row"]):
        hatched = HBar(
            left="from",
            right="to",
            y="row",
            height=0.62,
            fill_color=BAND,
            fill_alpha=0.25,
            line_color=INK,
            hatch_pattern="right_diagonal_line",
            hatch_color=INK,
            hatch_scale=9,
            hatch_weight=1,
        )
        ran_on = drawn.add_glyph(
            zombies, hatched, view=masked(zombies), name="zombies", tags=[INKED]
        )
        drawn.add_tools(hover([ran_on], ("zombie", "its handler ran on for @for{0.000} s")))


def band_source(placed: Sequence[tuple[Band, float, float]]) -> ColumnDataSource:
    """Bands with the rows between which they lie."""
    return ColumnDataSource(
        {
            "left": [millis(band.begin) for band, _, _ in placed],
            "right": [millis(band.end) for band, _, _ in placed],
            "top": [top for _, top, _ in placed],
            "bottom": [bottom for _, _, bottom in placed],
            "name": [band.name for band, _, _ in placed],
            "whom": [band.whom for band, _, _ in placed],
            "bite": [band.bite or "not at all" for band, _, _ in placed],
        }
    )


def strike(drawn: Any, placed: Sequence[tuple[Band, float, float]]) -> list[Any]:
    """Draw bands over rows: a stretch as a shade, a moment as a line with a head."""
    lasting = [one for one in placed if not one[0].at_once]
    moments = [one for one in placed if one[0].at_once]
    found = []
    if lasting:
        shade = Quad(fill_color=BAND, fill_alpha=0.3, line_color=BAND)
        found.append(drawn.add_glyph(band_source(lasting), shade, name="faults"))
    if moments:
        columns = band_source(moments)
        line = Segment(x0="left", x1="left", y0="top", y1="bottom", line_color=INK, line_width=1.5)
        head = Scatter(x="left", y="top", marker="inverted_triangle", size=9, line_color=INK)
        head.fill_color = INK
        drawn.add_glyph(columns, line, name="faults", tags=[INKED])
        found.append(drawn.add_glyph(columns, head, name="faults", tags=[INKED]))
    return found


def across(drawn: Any, bands: Sequence[Band]) -> None:
    """Draw faults from the top of a figure to its bottom."""
    lasting = [band for band in bands if not band.at_once]
    if lasting:
        columns = {
            "x0": [millis(band.begin) for band in lasting],
            "x1": [millis(band.end) for band in lasting],
        }
        shade = VStrip(fill_color=BAND, fill_alpha=0.16, line_color=None)
        drawn.add_glyph(ColumnDataSource(columns), shade)
    moments = [millis(band.begin) for band in bands if band.at_once]
    if moments:
        columns = {"x": moments}
        drawn.add_glyph(ColumnDataSource(columns), VSpan(line_color=BAND, line_alpha=0.6))
