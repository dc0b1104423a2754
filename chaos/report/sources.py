"""Attempts as the columns that a figure draws and explains when somebody hovers over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import BooleanFilter, CDSView, ColumnDataSource, HoverTool

from chaos.report.attempts import Attempt

_TIME = "{%H:%M:%S.%3N}"
# What is looked up in a table by the page: many attempts share each of these.
_CODED: dict[str, Callable[[Attempt], str]] = {
    "kind": lambda one: one.kind,
    "worker": lambda one: one.worker,
    "says": lambda one: f"{one.says}: {one.error}" if one.error else one.says,
}
_TIPS = [
    ("task", "@task, @kind"),
    ("attempt", "@number of @most, token @token"),
    ("holder", "@owner"),
    ("state", "@says"),
    ("claimed", f"@claimed{_TIME}"),
    ("lease until", f"@until{_TIME}, renewed @renewals times"),
]


def millis(micros: float | None) -> float:
    """A time as the axis has it; NaN, which is not drawn, for None."""
    return math.nan if micros is None else micros / 1000


def source(attempts: Sequence[Attempt], rows: Sequence[float], name: str) -> ColumnDataSource:
    """One row an attempt, at the height `rows` says.

    The columns named in `_CODED` hold numbers; the tables that they refer to are in the tags, and
    the page puts the words in their place. So no text is in the file more than a few times.
    """
    data: dict[str, Any] = {
        "row": _floats(rows),
        "claimed": _floats(millis(one.claimed) for one in attempts),
        "lease_end": _floats(millis(one.lease_end) for one in attempts),
        "until": _floats(millis(one.until) for one in attempts),
        "started": _floats(millis(one.started) for one in attempts),
        "run_end": _floats(millis(one.run_end) for one in attempts),
        "task": _floats(one.task for one in attempts),
        "token": _floats(one.token for one in attempts),
        "number": _floats(one.number for one in attempts),
        "most": _floats(one.most for one in attempts),
        "renewals": _floats(one.renewals for one in attempts),
        "owner": [one.owner for one in attempts],
    }
    tables: dict[str, list[str]] = {}
    for column, words in _CODED.items():
        codes: dict[str, int] = {}
        data[column] = np.array(
            [codes.setdefault(words(one), len(codes)) for one in attempts], dtype=np.int32
        )
        tables[column] = list(codes)
    return ColumnDataSource(data, name=name, tags=[tables])


def zombie_source(
    attempts: Sequence[Attempt], rows: Sequence[float], name: str
) -> ColumnDataSource:
    """Those of the attempts that ran on without a lease, with that time as columns."""
    found = [(one, row) for one, row in zip(attempts, rows, strict=True) if one.zombie is not None]
    built = source([one for one, _ in found], [row for _, row in found], name)
    stretches = [one.zombie for one, _ in found if one.zombie is not None]
    built.data["from"] = _floats(millis(begin) for begin, _ in stretches)
    built.data["to"] = _floats(millis(end) for _, end in stretches)
    built.data["for"] = _floats((end - begin) / 1e6 for begin, end in stretches)
    return built


def masked(source: ColumnDataSource) -> CDSView:
    """A view that the page's filter narrows; all glyphs of a source share it."""
    return CDSView(filter=BooleanFilter(name=f"mask-{source.name}"))


def hover(renderers: Iterable[Any], *more: tuple[str, str]) -> HoverTool:
    """Explains an attempt. Bokeh shows the values as text, never as markup."""
    return HoverTool(
        renderers=list(renderers),
        tooltips=[*_TIPS, *more],
        formatters={"@claimed": "datetime", "@until": "datetime"},
        point_policy="follow_mouse",
    )


def band_hover(renderers: Iterable[Any]) -> HoverTool:
    """Explains a fault."""
    return HoverTool(
        renderers=list(renderers),
        tooltips=[
            ("fault", "@name of @whom"),
            ("from", f"@left{_TIME} to @right{_TIME}"),
            ("it bit", "@bite"),
        ],
        formatters={"@left": "datetime", "@right": "datetime"},
        point_policy="follow_mouse",
    )


def grouped(
    attempts: Sequence[Attempt], rows: Sequence[float]
) -> Mapping[str, tuple[list[Attempt], list[float]]]:
    """Attempts and their rows by outcome: what has one colour is drawn at once."""
    found: dict[str, tuple[list[Attempt], list[float]]] = {}
    for one, row in zip(attempts, rows, strict=True):
        mine, places = found.setdefault(one.outcome, ([], []))
        mine.append(one)
        places.append(row)
    return found


def _floats(values: Iterable[float]) -> Any:
    return np.fromiter(values, dtype=np.float64)
