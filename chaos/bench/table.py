"""A result on a terminal: one row a cell, and the sentences that the table adds up to."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from chaos.bench import latency, schedules, startup, sustained
from chaos.bench.peers import said as peers
from chaos.bench.result import (
    FIGURES,
    LIMITS,
    OURS,
    Key,
    Result,
    headline,
    limit_of,
    spreads,
    waits,
)
from chaos.bench.setting import DEFAULT
from chaos.bench.statistics import Spread

# What a terminal has room for; the page has all.
COLUMNS = (
    *("tasks_per_s", "start_p50", "start_p99", "claim_p50", "claim_p99"),
    *("declare_first", "declare_again", "plan_all", "look_idle", "look_blocked"),
    *("claiming_all", "claiming_first"),
    *("empty_claims", "worker_cpu", "server_cpu", "dead_tuples"),
)
RATES = ("enqueued_per_s", "single_enqueues_per_s")
BESIDE_OTHERS = (peers.BENCH, latency.BENCH)
RANGED = (
    "tasks_per_s",
    "start_p50",
    "start_p99",
    "claim_p50",
    "claiming_all",
)  # with least and greatest
MOST_WAITS = 3


def table(result: Result) -> Table:
    """Medians (least to greatest), the shares of the limits, and what sessions waited for."""
    main = headline(result)
    # Elsewhere each drain has the same number of tasks, or what its batch says.
    names = (*COLUMNS, "tasks", *RATES) if result.bench in BESIDE_OTHERS else COLUMNS
    columns = {name: found for name in names if (found := spreads(result, name))}
    waited = waits(result)
    limits = limits_in(result)
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    rows.add_column("system")
    rows.add_column("setting")
    rows.add_column(result.axis, justify="right")
    for limit in limits:
        rows.add_column(f"of {limit}".replace("-", "\n", 1), justify="right")
    for name in columns:
        rows.add_column(f"{name.replace('_', ' ')}\n[dim]{FIGURES[name].unit}[/]", justify="right")
    if waited:
        rows.add_column("active sessions waited for")
    for key in ordered(result):
        cells = [text(columns[name].get(key), ranged=name in RANGED) for name in columns]
        if waited:
            cells.append(said_waits(waited.get(key, {})))
        style = "dim" if key.system in LIMITS else None
        shares = [share(columns[main], key, limit) for limit in limits]
        rows.add_row(key.system, key.setting, str(key.at), *shares, *cells, style=style)
    return rows


def limits_in(result: Result) -> list[str]:
    """Which cycles of pgbench were measured, too."""
    systems = {one.key.system for one in result.measurements}
    return [limit for limit in LIMITS if limit in systems]


def ordered(result: Result) -> list[Key]:
    """The cells as people compare them: by batch, then by the axis, the limits below ours; systems
    with each other by the figure that the bench is about, the best first."""
    keys = dict.fromkeys(one.key for one in result.measurements)
    if result.bench in BESIDE_OTHERS:
        main = headline(result)
        found, sign = spreads(result, main), -1 if FIGURES[main].better == "more" else 1
        return sorted(keys, key=lambda key: (key.at, sign * found[key].median))
    return sorted(keys, key=lambda key: (key.batch, key.at, key.system in LIMITS, key.setting))


def share(cells: dict[Key, Spread], key: Key, limit: str) -> str:
    """The median as a share of this limit's."""
    found = cells.get(limit_of(key, limit))
    if key.system in LIMITS or found is None:
        return ""
    return f"{cells[key].median / found.median:.2f}"


def text(found: Spread | None, ranged: bool) -> str:
    """A figure for people."""
    if found is None:
        return ""
    if not ranged or found.repeats == 1:
        return number(found.median)
    return f"{number(found.median)} [dim]({number(found.low)} to {number(found.high)})[/]"


def number(value: float) -> str:
    """Three figures that matter, and no more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def said_waits(shares: dict[str, float]) -> str:
    """The most frequent wait events."""
    top = list(shares.items())[:MOST_WAITS]
    return ", ".join(f"{event} {portion:.0%}" for event, portion in top)


def sentences(result: Result) -> Iterator[str]:
    """What the cells add up to: the best, the defaults beside it, and how it holds with more."""
    main = headline(result)
    unit = FIGURES[main].unit
    if result.bench == peers.BENCH:
        medians = {key: found.median for key, found in spreads(result, main).items()}
        yield from peers.sentences(medians, unit)
    elif result.bench == sustained.BENCH:
        medians = {key: found.median for key, found in spreads(result, main).items()}
        yield from sustained.sentences(medians, unit)
    elif result.bench == latency.BENCH:
        yield from latency.sentences(result)
    elif result.bench == schedules.BENCH:
        yield from schedules.sentences(result)
    elif result.bench == startup.BENCH:
        yield from startup.sentences(result)
    elif FIGURES[main].better == "more":
        medians = {key: found.median for key, found in spreads(result, main).items()}
        best = _greatest({key: value for key, value in medians.items() if key.system == OURS})
        default = _greatest(
            {key: value for key, value in medians.items() if key.setting == DEFAULT}
        )
        if best is not None:
            key, value = best
            yield f"best: {number(value)} {unit} with {key.setting} at {key.at} {result.axis}"
        if best is not None and default is not None:
            key, value = default
            yield (
                f"default settings: {number(value)} {unit} at {key.at} {result.axis},"
                f" {value / best[1]:.2f} of the best"
            )
        yield from _holding(medians, result.axis)
    else:
        yield from _growing(result, main)
    before, after = (result.machine[f"commit_p50_ms_{when}"] for when in ("before", "after"))
    yield f"a durable commit of one row took {before} ms before and {after} ms after (p50)"
    yield from result.notes


def _growing(result: Result, main: str) -> Iterator[str]:
    """For a figure of which less is better: what each cell is as a multiple of the smallest."""
    medians = {key: found.median for key, found in spreads(result, main).items()}
    first = min(medians, key=lambda key: (key.at, list(medians).index(key)))
    for key, value in medians.items():
        if key != first:
            yield (
                f"{main.replace('_', ' ')} with {key.at:,} {result.axis} ({key.setting}):"
                f" {value / medians[first]:.2f} of that with {first.at:,} ({first.setting})"
            )


def _holding(medians: dict[Key, float], axis: str) -> Iterator[str]:
    """For each series: what is left at the greatest number of workers, ours beside the limits'."""
    most = max(key.at for key in medians)
    series = dict.fromkeys(key[:3] for key in medians if key.system == OURS and key.at == most)
    if len({key.at for key in medians}) < 2:
        return
    for system, setting, batch in series:
        kept = _kept(medians, (system, setting, batch), most)
        beside = "".join(
            f", {limit}'s {found:.2f}"
            for limit in LIMITS
            if (found := _kept(medians, (limit, str(batch), batch), most)) is not None
        )
        yield f"{setting}: at {most} {axis} {kept:.2f} of its own best{beside}"


def _kept(medians: dict[Key, float], series: tuple[str, str, int], at: int) -> float | None:
    mine = {key.at: value for key, value in medians.items() if key[:3] == series}
    return mine[at] / max(mine.values()) if at in mine else None


def _greatest(medians: dict[Key, float]) -> tuple[Key, float] | None:
    return max(medians.items(), key=lambda item: item[1]) if medians else None
