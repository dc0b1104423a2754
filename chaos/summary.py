"""The verdicts of scenarios as Markdown: what a CI job shows on its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chaos.invariants.judge import overall, why
from chaos.keep import Ran, counts
from chaos.scenario import Scenario

BROKEN = "broken"
SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️", BROKEN: "💥"}


def markdown(told: Sequence[tuple[Scenario, float, Ran | None]]) -> str:
    """A table with a row a scenario (its seconds, and its run if the harness could run it), and
    below it what there is to say of those that did not pass.
    """
    outcomes = [BROKEN if ran is None else overall(ran.history, ran.verdicts) for _, _, ran in told]
    tally = Counter(outcomes)
    lines = [
        f"### chaos: {', '.join(f'{tally[one]} {one}' for one in SIGNS if one in tally)}",
        "",
        "| scenario | verdict | seconds | tasks | what bit (of how often) |",
        "|---|---|---:|---:|---|",
    ]
    details: list[str] = []
    for (scenario, seconds, ran), outcome in zip(told, outcomes, strict=True):
        bites = counts(ran.history) if ran is not None else []
        bit = ", ".join(f"{name} {bit}/{injected}" for name, injected, bit in bites)
        lines.append(
            f"| {scenario.name} | {SIGNS[outcome]} {outcome} | {seconds:.1f} | {scenario.total} |"
            f" {_plain(bit)} |"
        )
        if ran is not None and outcome != "pass":
            details += _details(scenario, outcome, ran)
    return "\n".join([*lines, *details, ""])


def _details(scenario: Scenario, outcome: str, ran: Ran) -> list[str]:
    history, verdicts, directory = ran
    return [
        "",
        f"**{scenario.name}: {outcome}**: {_plain(why(history, verdicts))}",
        "",
        *(
            f"- `{one.invariant}`: {_plain(one.sentence)}"
            for one in verdicts
            if one.outcome == "fail"
        ),
        f"- again: `chaos replay {directory}`",
    ]


def _plain(text: str) -> str:
    """Text that comes from a run, in one line and without a meaning in Markdown or HTML."""
    escaped = "".join(f"\\{one}" if one in "\\`*_[]|~#" else one for one in " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
