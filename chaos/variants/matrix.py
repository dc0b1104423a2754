"""What became of the variants: as a table for people, as JSON for programs, as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from chaos.invariants.verdict import Outcome
from chaos.variants import Variant
from chaos.variants.tried import Tried

_OUTCOMES: tuple[Outcome, ...] = ("pass", "inconclusive", "fail")
_HEADINGS = ("programs", "schedules", *_OUTCOMES, "alarms", "seconds")


def table(tried: Sequence[Tried]) -> Table:
    """One line a variant."""
    shown = Table(box=None, padding=(0, 1))
    shown.add_column("variant")
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    for one in tried:
        colour = "green" if one.held else "red"
        shown.add_row(f"[{colour}]{escape(one.name)}[/]", *_figures(one))
    return shown


def as_text(tried: Sequence[Tried], variants: Sequence[Variant], seconds: float) -> str:
    """All of it as one JSON document."""
    return json.dumps(
        {
            "seconds": round(seconds, 1),
            "programs": sum(one.programs for one in tried),
            "schedules": sum(one.schedules for one in tried),
            "runs": _outcomes(tried),
            "alarms": sum(len(one.alarms) for one in tried),
            "variants": [
                {
                    "variant": variant.name,
                    "differs": variant.differs,
                    "right": variant.right,
                    "programs": one.programs,
                    "schedules": one.schedules,
                    "runs": one.outcomes,
                    "alarms": [alarm._asdict() for alarm in one.alarms],
                    "undecided": one.undecided,
                    "unmet": one.unmet,
                    "broke": one.broke,
                    "seconds": round(one.seconds, 1),
                }
                for variant, one in zip(variants, tried, strict=True)
            ],
        },
        indent=2,
    )


def page(tried: Sequence[Tried], variants: Sequence[Variant], seconds: float) -> list[str]:
    """All of it as lines of Markdown."""
    lines = [
        f"| variant | what differs | why it is right | {' | '.join(_HEADINGS)} |",
        f"|---|---|---|{'--:|' * len(_HEADINGS)}",
    ]
    for variant, one in zip(variants, tried, strict=True):
        cells = (f"`{variant.name}`", variant.differs, variant.right, *_figures(one))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *summary(tried, seconds)]


def summary(tried: Sequence[Tried], seconds: float) -> Iterator[str]:
    """What it comes to, and what needs a look."""
    outcomes = _outcomes(tried)
    yield (
        f"{len(tried)} variants in {seconds:.0f} s: {sum(one.programs for one in tried)} programs"
        f" searched in {sum(one.schedules for one in tried)} schedules, {outcomes.total()} scenario"
        f" runs: {', '.join(f'{outcomes[one]} {one}' for one in _OUTCOMES)}."
    )
    yield f"False alarms: {sum(len(one.alarms) for one in tried)}."
    for one in tried:
        for alarm in one.alarms:
            yield f"- alarm: {one.name}: {alarm.where}: {alarm.what}: {alarm.shown_by}"
        for what, sentences in (
            ("never ran", one.unmet),
            ("could not be tried", one.broke),
            ("no alarm, but inconclusive", one.undecided),
        ):
            for sentence in sentences:
                yield f"- {what}: {one.name}: {sentence}"


def _figures(one: Tried) -> tuple[str, ...]:
    counts = (one.programs, one.schedules, *(one.outcomes[outcome] for outcome in _OUTCOMES))
    return (*map(str, counts), str(len(one.alarms)), f"{one.seconds:.0f}")


def _outcomes(tried: Sequence[Tried]) -> Counter[Outcome]:
    outcomes: Counter[Outcome] = Counter()
    for one in tried:
        outcomes += one.outcomes
    return outcomes
