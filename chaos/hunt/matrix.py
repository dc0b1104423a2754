"""The kill matrix: as a table for people, as JSON for programs, and as a page to publish."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from chaos.hunt.found import MEANS, SOON, Hunted, Kill, Result

COLOURS: dict[Result, str] = {
    "killed": "green",
    "equivalent": "dim",
    "by another": "yellow",
    "survived": "red",
    "stale": "red",
    "broken": "red",
    "unmet": "dim",
}


def table(hunted: Sequence[Hunted]) -> Table:
    """One line a mutant."""
    shown = Table(box=None, padding=(0, 1))
    for heading in ("mutant", "result", "invariant", "hunter", "seconds", "schedule"):
        shown.add_column(heading, justify="right" if heading == "seconds" else "left")
    for one in hunted:
        kill = _told(one)
        shown.add_row(
            escape(one.mutant),
            f"[{COLOURS[one.result]}]{one.result}[/]",
            escape((kill.invariant or "") if kill else one.named),
            escape(kill.hunter if kill else one.broke),
            f"{kill.seconds if kill else one.seconds:.1f}",
            escape(_brief(kill) if kill else ""),
        )
    return shown


def as_text(hunted: Sequence[Hunted], seconds: float) -> str:
    """The matrix as one JSON document."""
    return json.dumps(
        {
            "seconds": round(seconds, 1),
            "results": Counter(one.result for one in hunted),
            "mutants": [
                {
                    "mutant": one.mutant,
                    "stands_for": one.stands_for,
                    "named": one.named,
                    "result": one.result,
                    "kill": one.kill and one.kill._asdict(),
                    "others": [kill._asdict() for kill in one.others],
                    "schedules": one.schedules,
                    "runs": one.runs,
                    "examples": one.examples,
                    "tests": one.tests,
                    "seconds": round(one.seconds, 3),
                    "reason": one.reason,
                    "broke": one.broke,
                }
                for one in hunted
            ],
        },
        indent=2,
    )


def page(hunted: Sequence[Hunted], seconds: float) -> list[str]:
    """The matrix as lines of Markdown."""
    lines = [
        "| mutant | result | invariant | hunter | seconds | schedule or replay |",
        "|---|---|---|---|--:|---|",
    ]
    for one in hunted:
        kill = _told(one)
        cells = (
            f"`{_cell(one.mutant)}`",
            one.result,
            f"`{kill.invariant}`" if kill and kill.invariant else "-",
            kill.hunter if kill else "-",
            f"{kill.seconds if kill else one.seconds:.1f}",
            f"`{_cell(_brief(kill))}`" if kill else _cell(one.reason or one.broke or "-"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    where = "The command that shows a failure again stands in the JSON beside this page."
    return [*lines, "", *summary(hunted, seconds), "", where]


def summary(hunted: Sequence[Hunted], seconds: float) -> Iterator[str]:
    """What it comes to, and what needs a look."""
    results = Counter(one.result for one in hunted)
    counts = ", ".join(f"{results[result]} {result}" for result in MEANS if results[result])
    slower = sum(one.slow for one in hunted)
    rest = f" Killed later than after {SOON:.0f} s: {slower}." if results["killed"] else ""
    yield f"{len(hunted)} mutants in {seconds:.0f} s: {counts}.{rest}"
    for one in hunted:
        if not one.held:
            kill = _told(one)
            what = f": {kill.invariant or kill.hunter}: {kill.sentence}" if kill else ""
            late = f", after {kill.seconds:.0f} s" if one.slow and kill else ""
            yield f"- {one.mutant}: {one.broke or MEANS[one.result]}{late}{what}"


def _told(one: Hunted) -> Kill | None:
    return one.kill or (one.others[0] if one.others else None)


def _brief(kill: Kill) -> str:
    """The schedule where there is one, which is shorter than the command; JSON has both.

    One in which one actor does all is as long as what it does.
    """
    steps = kill.schedule.split()
    alone = len(steps) > 20 and len(set(steps)) == 1
    return f"{steps[0]}, {len(steps)} times" if alone else kill.schedule or kill.replay


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
