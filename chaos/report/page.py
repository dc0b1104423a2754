"""A run as one HTML file that needs nothing but a browser: no network, no other file.

Nothing that a history holds can become markup or script: text is escaped where it enters the page,
and the page's policy lets the browser run the two scripts written here, by their digests, and load
nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from chaos.invariants.verdict import Verdict
from chaos.invariants.words import many
from chaos.report.attempts import OUTCOMES
from chaos.report.embed import data, library
from chaos.report.figures import (
    histogram,
    lanes_figure,
    story_figure,
    throughput_figure,
    time_range,
    waits_figure,
)
from chaos.report.html import Cell, Row, details, number, plot, table, text
from chaos.report.measures import Bin, Distribution, bins
from chaos.report.palette import COLOURS, MEANINGS
from chaos.report.story import Story
from chaos.report.text import lasting, quantile, when
from chaos.report.told import Told

MOST_ROWS = 200  # of a table that could be as long as the run


def page(told: Told, name: str) -> str:
    """The whole file of a run that is kept in the directory of this name."""
    width, found = bins(told.attempts, told.history.phases)
    style = _file("page.css")
    scripts = (library(), _file("page.js"))
    title = f"{told.history.about.get('scenario', name)}: {told.outcome}"
    figures = _figures(told, width, found)
    body = "".join(
        (
            _head(told, name),
            *(_story(story, number) for number, story in enumerate(told.stories)),
            _run(told),
            _over_time(width, found),
            _distributions(told.distributions),
            _invariants(told),
            _faults(told),
            _again(told, name),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}"
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>\n"
        f'<script type="application/json" id="figures">{data(figures)}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return files("chaos.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Bokeh makes style elements, and has its icons in data URLs.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _figures(told: Told, width: int, found: list[Bin]) -> dict[str, Any]:
    history = told.history
    shared = time_range(told.attempts, history.phases)
    figures = {
        f"story-{index}": story_figure(story, f"story-{index}")
        for index, story in enumerate(told.stories)
        if story.attempts
    }
    if told.attempts:
        figures["lanes"] = lanes_figure(
            told.attempts, told.lanes, told.bands, history.phases, shared
        )
        figures["waits"] = waits_figure(width, found, told.bands, history.phases, shared)
        figures["throughput"] = throughput_figure(width, found, told.bands, history.phases, shared)
    for index, distribution in enumerate(told.distributions):
        if distribution.values:
            figures[f"spread-{index}"] = histogram(distribution, f"spread-{index}")
    return figures


def _head(told: Told, name: str) -> str:
    about = told.history.about
    counted = {
        "tasks": len(told.history.finals),
        "attempts": len(told.attempts),
        "leases taken back": sum(one.outcome == "reclaimed" for one in told.attempts),
        "zombies": sum(one.zombie is not None for one in told.attempts),
        "faults": len(told.bands),
        "commits": len(told.history.commits),
    }
    tiles = "".join(f"<li><b>{value:,}</b> {label}</li>" for label, value in counted.items())
    return (
        f"<h1>{text(about.get('scenario', name))}</h1>\n"
        f'<p class="dim">{text(about.get("system", "a system"))}, seed'
        f" {text(about.get('seed', 'unknown'))}, {text(about.get('began', ''))},"
        f" {lasting(told.history.phases.ended - told.history.phases.began)}</p>\n"
        f'<p class="verdict {told.outcome}"><b>{told.outcome}</b>'
        f"<span>: {text(told.sentence)}</span></p>\n"
        f'<ul class="tiles">{tiles}</ul>\n'
    )


def _story(story: Story, index: int) -> str:
    lead = "What went wrong" if index == 0 else "What else went wrong"
    breaks = "".join(
        f'<li><b class="fail">{text(name)}</b>: {text(sentence)}</li>'
        for name, sentence in story.breaks
    )
    picture = ""
    if story.attempts:
        link = (
            f' <a href="#task={story.tasks[0]}">Show it among all attempts.</a>'
            if len(story.tasks) == 1
            else ""
        )
        picture = plot(
            f"story-{index}",
            f"{story.title}: its attempts over time; the table below says the same in words",
            "Pale: the lease. Solid: its handler runs. Hatched: it runs on without a lease. Dotted:"
            " until when the lease would have lasted. Squares: writes; diamonds: effects; crosses:"
            f" refused writes. Dashed: the commit that shows the failure.{link}",
        )
    rows = [
        (
            (
                Cell(when(event.at), "time"),
                event.who,
                event.what,
                event.by,
                Cell("" if event.seq is None else str(event.seq), "number"),
            ),
            "guilty" if event.guilty else "",
        )
        for event in story.events
    ]
    left_out = (
        f'<p class="dim">{many(story.left_out, "event")} farther from the failure left out.</p>\n'
        if story.left_out
        else ""
    )
    steps = (
        table("Step by step", ("time (UTC)", "who", "what", "statement", "commit"), rows)
        if rows
        else ""
    )
    return f"<h2>{lead}: {text(story.title)}</h2>\n<ul>{breaks}</ul>\n{picture}{steps}{left_out}"


def _run(told: Told) -> str:
    if not told.attempts:
        return '<h2 id="lanes-heading">Attempts</h2>\n<p>No task was claimed.</p>\n'
    present = {one.outcome for one in told.attempts}
    boxes = "".join(
        f'<label><input type="checkbox" checked data-hides="outcome-{outcome}">'
        f'<i class="swatch" style="background:{COLOURS[outcome]}"></i>{MEANINGS[outcome]}</label>'
        for outcome in OUTCOMES
        if outcome in present
    )
    boxes += (
        '<label><input type="checkbox" checked data-hides="zombies"><i class="swatch zombie"></i>'
        "ran on without a lease</label>"
        '<label><input type="checkbox" checked data-hides="faults"><i class="swatch band"></i>'
        "faults</label>"
    )
    workers = sorted({one.worker for one in told.attempts} | set(told.lanes.names))
    options = "".join(f"<option>{text(worker, 80)}</option>" for worker in workers)
    zooms = "".join(
        f'<button type="button" data-zoom="{action}">{label}</button>'
        for action, label in (
            ("in", "Zoom in"),
            ("out", "Zoom out"),
            ("left", "Earlier"),
            ("right", "Later"),
            ("these", "Zoom to these"),
            ("whole", "Whole run"),
        )
    )
    crowded = (
        " A worker had more attempts at once than rows are drawn: some lie over others."
        if told.lanes.crowded
        else ""
    )
    rows: list[Row] = [
        (
            (
                one.worker,
                number(one.processes),
                *(number(one.outcomes[outcome]) for outcome in OUTCOMES if outcome in present),
                number(one.zombies),
            ),
            "",
        )
        for one in told.doings
    ]
    heads = ("worker", "processes", *(one for one in OUTCOMES if one in present), "zombies")
    return (
        '<h2 id="lanes-heading">Attempts by worker</h2>\n'
        '<div class="controls"><span><label for="task">Task</label>'
        ' <input id="task" type="number" min="0"></span>'
        '<span><label for="worker">Worker</label>'
        f' <select id="worker"><option value="">all</option>{options}</select></span>'
        f'{zooms}<output id="shown" data-all="{len(told.attempts):,}"></output></div>\n'
        f'<div class="controls"><fieldset><legend>Show</legend>{boxes}</fieldset></div>\n'
        + plot(
            "lanes",
            "a lane for each worker with its attempts over time; the table below sums them up",
            "Pale: the lease. Solid: its handler runs. Hatched: it runs on without a lease. Grey:"
            " a fault of this worker or of all; a line with a head: a moment, like a kill. Dashed"
            f" green: everything is healed. Drag to zoom, hover to have it explained.{crowded}",
        )
        + details("The same in numbers", table("Attempts by how they ended", heads, rows))
    )


def _over_time(width: int, found: list[Bin]) -> str:
    if not any(one.claims for one in found):
        return ""
    step = max(1, len(found) // 20)
    rows = []
    for at in range(0, len(found), step):
        some = found[at : at + step]
        waits = [one.wait_p99 for one in some if one.wait_p99 is not None]
        seconds = width * len(some) / 1e6
        rows.append(
            (
                (
                    Cell(when(some[0].begin), "time"),
                    number(round(sum(one.claims for one in some) / seconds, 1)),
                    number(round(sum(one.completions for one in some) / seconds, 1)),
                    Cell(lasting(max(waits)) if waits else "", "number"),
                ),
                "",
            )
        )
    heads = ("from (UTC)", "claims a second", "completions a second", "longest p99 of a stretch")
    return (
        "<h2>Over time</h2>\n"
        f"<p>In stretches of {lasting(width)}; grey: faults, of whichever worker.</p>\n"
        + plot(
            "waits",
            "how long due tasks waited for their claim, over time",
            "How long due tasks waited until they were claimed, by the database's clock.",
        )
        + plot("throughput", "claims and completions a second, over time", "Throughput.")
        + details("The same in numbers", table("", heads, rows))
    )


def _distributions(distributions: Iterable[Distribution]) -> str:
    pictures: list[str] = []
    rows: list[Row] = []
    for index, one in enumerate(distributions):
        ranked = one.values
        quantiles = [
            lasting(quantile(ranked, percent)) for percent in (0, 50, 90, 99, 100) if ranked
        ]
        cells = [Cell(value, "number") for value in quantiles] or [Cell("", "number")] * 5
        rows.append(((one.name, number(len(ranked)), *cells), ""))
        about = f"<b>{text(one.name)}</b>: {text(one.meaning)}."
        if ranked:
            pictures.append(plot(f"spread-{index}", one.name, about))
        else:
            pictures.append(f"<p>{about} There was none.</p>")
    heads = ("", "attempts", "least", "median", "p90", "p99", "most")
    return f'<h2>Distributions</h2>\n<div class="three">{"".join(pictures)}</div>\n' + table(
        "", heads, rows
    )


def _invariants(told: Told) -> str:
    rows = [
        (
            (
                verdict.invariant
                + ("" if verdict.invariant in told.history.named else " (not named)"),
                Cell(verdict.outcome, verdict.outcome),
                number(verdict.judged),
                verdict.sentence,
                _facts(verdict),
            ),
            "",
        )
        for verdict in told.verdicts
    ]
    more = "".join(
        details(
            f"{verdict.invariant}: {_failures(verdict)}",
            "<ol>"
            + "".join(f"<li>{text(one.sentence)}</li>" for one in verdict.failures)
            + "</ol>",
        )
        for verdict in told.verdicts
        if verdict.failures
    )
    return (
        "<h2>Invariants</h2>\n<p>Only those that the scenario names need evidence; the others are"
        " judged as well, and a failure of any fails the run.</p>\n"
        + table("", ("invariant", "verdict", "judged", "evidence", "in numbers"), rows)
        + more
    )


def _failures(verdict: Verdict) -> str:
    every = int(verdict.evidence.get("failures", len(verdict.failures)))
    told = len(verdict.failures)
    return many(every, "failure") + (f", the first {told} of them" if told < every else "")


def _facts(verdict: Verdict) -> Cell:
    facts = (
        f"{name.replace('_', ' ')} {value:g}"
        for name, value in verdict.evidence.items()
        if name != "failures"
    )
    return Cell(", ".join(facts), "dim")


def _faults(told: Told) -> str:
    counts: dict[str, list[int]] = {}
    for fault in told.history.faults:
        if fault.action in ("inject", "bite"):
            counts.setdefault(fault.name, [0, 0])[fault.action == "bite"] += 1
        elif fault.action == "plan":
            counts.setdefault(fault.name, [0, 0])
    sums = [
        ((name, number(injected), number(bit)), "")
        for name, (injected, bit) in sorted(counts.items())
    ]
    rows = [
        (
            (
                Cell(when(band.begin), "time"),
                band.name,
                band.whom,
                Cell("" if band.at_once else lasting(band.end - band.begin), "number"),
                band.bite or "(did not bite)",
            ),
            "",
        )
        for band in told.bands[:MOST_ROWS]
    ]
    beyond = len(told.bands) - len(rows)
    more = f'<p class="dim">{many(beyond, "more fault")}.</p>' if beyond else ""
    if not sums and not rows:
        return "<h2>Faults</h2>\n<p>None was planned.</p>\n"
    return (
        "<h2>Faults</h2>\n"
        + table("", ("fault", "injected", "bit"), sums)
        + details(
            "Each of them",
            table("", ("from (UTC)", "fault", "whom", "how long", "what it did"), rows) + more,
        )
    )


def _again(told: Told, name: str) -> str:
    about = told.history.about
    rows = [((str(key).replace("_", " "), str(value)), "") for key, value in about.items()]
    lag = told.history.phases.lag
    return (
        "<h2>Run it again</h2>\n"
        "<p>From the directory that holds this run's, with its faults at the same points:</p>\n"
        f"<pre>chaos replay {text(name)}</pre>\n"
        "<p>Or from the start, as its scenario file says:</p>\n"
        f"<pre>chaos run {text(name)}/scenario.yaml --seed {text(about.get('seed', '?'))}"
        f" --system {text(about.get('system', 'leaseproof'))}</pre>\n"
        f"<p>The machine was late by up to {lasting(lag)} when the harness wanted to act;"
        " bounds have that on top.</p>\n" + table("", ("what", "value"), rows)
    )
