"""A result as one HTML file: plots, tables, the machine, and the data itself. It loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from importlib import import_module
from typing import Literal, NamedTuple

from chaos import bench
from chaos.bench import latency, peers
from chaos.bench.peers.said import BENCH as PEERS
from chaos.bench.plots import Line, plot
from chaos.bench.result import (
    FIGURES,
    LIMIT,
    LIMITS,
    ONE_COMMIT,
    Key,
    Result,
    as_json,
    headline,
    spreads,
    waits,
)
from chaos.bench.statistics import Spread
from chaos.bench.table import (
    BESIDE_OTHERS,
    limits_in,
    number,
    ordered,
    said_waits,
    sentences,
    share,
)

LATENCIES = (
    ("claim_p50", "claim_p99"),
    ("declare_first", "declare_again"),
    ("plan_all",),
    ("look_idle", "look_blocked"),
    ("claiming_first", "claiming_all"),
)


class _Look(NamedTuple):
    """How a limit is drawn in every plot, and what that is called."""

    colour: int
    style: Literal["--", ":"]
    name: str


_LOOKS = {LIMIT: _Look(1, "--", "Dashed"), ONE_COMMIT: _Look(7, ":", "Dotted")}
_OWN_COLOURS = (0, 2, 3, 4, 5, 6, 7)  # of all others; no plot with both limits has so many
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #24292f; --grid: #d8dee4; --dim: #57606a;
  --line-0: #0969da; --line-1: #bc4c00; --line-2: #1a7f37; --line-3: #8250df; --line-4: #bf3989;
  --line-5: #6e5a00; --line-6: #0f766e; --line-7: #82071e; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --grid: #30363d;
  --dim: #9198a1; --line-0: #4493f8; --line-1: #f0883e; --line-2: #3fb950; --line-3: #ab7df8;
  --line-4: #f778ba; --line-5: #d4b106; --line-6: #2dd4bf; --line-7: #ff8182; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 1200px; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
code { overflow-wrap: anywhere; }
.dim { color: var(--dim); }
.plots { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; }
svg { display: block; height: auto; width: 100%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--grid); padding: .25rem .6rem; text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 600; } .text { text-align: left; } tr.limit { color: var(--dim); }
pre { white-space: pre-wrap; }
"""


def page(result: Result) -> str:
    """The whole file."""
    title = f"chaos bench {result.bench}"
    # Inside a script element only a closing tag could end the data early.
    data = as_json(result).replace("</", "<\\/")
    beside_others = {PEERS: peers.__doc__, latency.BENCH: latency.__doc__}
    measured = beside_others.get(result.bench) or _measured(result.bench)
    looks = "".join(f" {_LOOKS[limit].name}: {limit}." for limit in limits_in(result))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="dim">{escape(result.began)}, {result.seconds:.0f} s, '
        f"<code>{escape(result.command)}</code></p>\n"
        f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in sentences(result))}</ul>\n"
        f'<div class="plots">{"".join(_plots(result))}</div>\n'
        '<p class="dim">Lines are medians, bands reach from the least to the greatest repeat.'
        f"{looks}</p>\n"
        f'<h2>All figures</h2>\n<div class="wide">{_table(result)}</div>\n'
        f'<h2>Machine</h2>\n<div class="wide">{_machine(result)}</div>\n'
        f"<h2>How it was measured</h2>\n<pre>{escape((measured or '').strip())}</pre>\n"
        f'<script type="application/json" id="result">{data}</script>\n</body>\n</html>\n'
    )


def _measured(name: str) -> str:
    """What all drains have in common, and then what is this bench's own."""
    own = import_module(f"chaos.bench.{name}").__doc__
    return f"{bench.__doc__}\n{own}"


def _plots(result: Result) -> list[str]:
    """The headline by the axis for each batch, then the latencies; systems beside each other with
    each of their settings."""
    main = headline(result)
    if result.bench in BESIDE_OTHERS:
        settings = dict.fromkeys(one.key.setting for one in result.measurements)
        figures = (main,) if result.bench == PEERS else tuple(latency.PERCENTILES)
        return [
            _figure(result, setting, partial(_has_setting, setting), (figure,), log_y=True)
            for setting in settings
            for figure in figures
        ]
    latencies = [pair for pair in LATENCIES if spreads(result, pair[0])]
    drawn = []
    batches = sorted({one.key.batch for one in result.measurements})
    if FIGURES[main].better == "more":
        drawn += [_of_batch(result, batch, (main,), log_y=False) for batch in batches]
    for pair in latencies:
        own = sorted({key.batch for key in spreads(result, pair[0])})
        drawn += [_of_batch(result, batch, pair, log_y=True) for batch in own]
    return drawn


def _has_setting(setting: str, key: Key) -> bool:
    return key.setting == setting


def _of_batch(result: Result, batch: int, figures: tuple[str, ...], log_y: bool) -> str:
    return _figure(result, f"batch {batch}", lambda key: key.batch == batch, figures, log_y)


def _figure(
    result: Result, of: str, drawn: Callable[[Key], bool], figures: tuple[str, ...], log_y: bool
) -> str:
    names = " and ".join(name.replace("_per_", "/").replace("_", " ") for name in figures)
    title = f"{names}, {of}"
    lines: list[Line] = []
    for figure in figures:
        series: dict[tuple[str, str], list[tuple[int, Spread]]] = {}
        for key, found in sorted(spreads(result, figure).items(), key=lambda item: item[0].at):
            if drawn(key):
                series.setdefault((key.system, key.setting), []).append((key.at, found))
        for (system, setting), points in series.items():
            look = _LOOKS.get(system)
            label = f"{system} {setting}" if look is None else system
            if len(figures) > 1:
                label = f"{label} {figure.rpartition('_')[2]}"
            if look is None:
                colour = _OWN_COLOURS[len(lines) % len(_OWN_COLOURS)]
                lines.append(Line(label, colour, "-", points))
            else:
                lines.append(Line(label, look.colour, look.style, points))
    picture = plot(title, result.axis, FIGURES[figures[0]].unit, lines, log_y)
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>\n"


def _table(result: Result) -> str:
    columns = {name: spreads(result, name) for name in FIGURES}
    columns = {name: cells for name, cells in columns.items() if cells}
    waited, limits = waits(result), limits_in(result)
    main = headline(result)
    heads = "".join(
        f"<th>{escape(name.replace('_', ' '))}<br>{escape(FIGURES[name].unit)}</th>"
        for name in columns
    )
    rows = "".join(
        f'<tr class="{"limit" if key.system in LIMITS else "ours"}">'
        f'<td class="text">{escape(key.system)}</td><td class="text">{escape(key.setting)}</td>'
        f"<td>{key.at:,}</td>"
        + "".join(f"<td>{share(columns[main], key, limit)}</td>" for limit in limits)
        + "".join(_cell(cells, key) for cells in columns.values())
        + (f'<td class="text">{escape(said_waits(waited.get(key, {})))}</td>' if waited else "")
        + "</tr>\n"
        for key in ordered(result)
    )
    return (
        '<table><thead><tr><th class="text">system</th><th class="text">setting</th>'
        f"<th>{escape(result.axis)}</th>"
        + "".join(f"<th>of {escape(limit)}</th>" for limit in limits)
        + heads
        + ('<th class="text">active sessions waited for</th>' if waited else "")
        + f"</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(cells: dict[Key, Spread], key: Key) -> str:
    found = cells.get(key)
    if found is None:
        return "<td></td>"
    if found.low == found.high:
        return f"<td>{number(found.median)}</td>"
    between = f"{number(found.low)} to {number(found.high)}"
    return f'<td>{number(found.median)}<br><span class="dim">{between}</span></td>'


def _machine(result: Result) -> str:
    rows = "".join(
        f'<tr><td class="text">{escape(name.replace("_", " "))}</td>'
        f'<td class="text">{escape(str(value))}</td></tr>'
        for name, value in result.machine.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"
