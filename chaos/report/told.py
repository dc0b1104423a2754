"""Everything that a report tells of a run, before it is drawn or written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.history.events import History
from chaos.history.lives import lives
from chaos.invariants.judge import overall, why
from chaos.invariants.verdict import Outcome, Verdict
from chaos.invariants.words import many
from chaos.report.attempts import Attempt, attempts
from chaos.report.bands import Band, bands
from chaos.report.lanes import Lanes, lanes
from chaos.report.measures import Distribution, Doings, distributions, doings
from chaos.report.story import Story, stories


@dataclass(frozen=True, slots=True)
class Told:
    """A run, ready to be reported."""

    history: History
    verdicts: tuple[Verdict, ...]
    outcome: Outcome
    sentence: str
    attempts: tuple[Attempt, ...]
    bands: tuple[Band, ...]
    lanes: Lanes
    doings: tuple[Doings, ...]
    distributions: tuple[Distribution, ...]
    stories: tuple[Story, ...]


def tell(history: History, verdicts: Sequence[Verdict]) -> Told:
    """Read a history and its verdicts."""
    told = lives(history)
    found, struck = attempts(history, told), bands(history)
    placed = lanes(found, (worker for band in struck for worker in band.workers))
    return Told(
        history=history,
        verdicts=tuple(verdicts),
        outcome=overall(history, verdicts),
        sentence=_sentence(history, verdicts),
        attempts=tuple(found),
        bands=tuple(struck),
        lanes=placed,
        doings=tuple(doings(found, placed.names)),
        distributions=tuple(distributions(found)),
        stories=tuple(stories(history, told, verdicts, found, struck)),
    )


def _sentence(history: History, verdicts: Sequence[Verdict]) -> str:
    """Why the verdict is what it is; of a failure also the first sentence that shows it."""
    reason = why(history, verdicts)
    failed = [one for one in verdicts if one.outcome == "fail"]
    if failed:
        named = [one for one in failed if one.invariant in history.named]
        first = (named or failed)[0].sentence
        return f"{reason}. {first[:1].upper()}{first[1:]}."
    if reason:
        return f"{reason}."
    bites = sum(fault.action == "bite" for fault in history.faults)
    return (
        f"all {many(len(history.named), 'invariant')} that the scenario names held, with evidence,"
        f" and its faults bit {many(bites, 'time')}."
    )
