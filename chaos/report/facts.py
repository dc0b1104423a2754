"""A report as JSON: what the page says, for programs. Times are microseconds since the epoch."""

from __future__ import annotations

import json

from chaos.report.attempts import OUTCOMES
from chaos.report.text import quantile
from chaos.report.told import Told

_QUANTILES = {"p0": 0, "p50": 50, "p90": 90, "p99": 99, "p100": 100}


def as_json(told: Told) -> str:
    """The document, with a newline at its end."""
    history = told.history
    outcomes = [one.outcome for one in told.attempts]
    whole = {
        "outcome": told.outcome,
        "sentence": told.sentence,
        "about": history.about,
        "attempts": {one: outcomes.count(one) for one in OUTCOMES if one in outcomes},
        "zombies": sum(one.zombie is not None for one in told.attempts),
        "invariants": [
            {
                "name": verdict.invariant,
                "named": verdict.invariant in history.named,
                "outcome": verdict.outcome,
                "judged": verdict.judged,
                "sentence": verdict.sentence,
                "evidence": verdict.evidence,
                "failures": [
                    {"sentence": one.sentence, "task": one.task, "commit": one.seq}
                    for one in verdict.failures
                ],
            }
            for verdict in told.verdicts
        ],
        "counterexamples": [
            {
                "tasks": story.tasks,
                "breaks": dict(story.breaks),
                "events": [
                    {
                        "at": event.at,
                        "who": event.who,
                        "what": event.what,
                        "statement": event.by,
                        "commit": event.seq,
                        "guilty": event.guilty,
                    }
                    for event in story.events
                ],
            }
            for story in told.stories
        ],
        "distributions": {
            one.name: {
                "meaning": one.meaning,
                "count": len(one.values),
                "microseconds": {
                    name: quantile(one.values, percent) for name, percent in _QUANTILES.items()
                }
                if one.values
                else {},
            }
            for one in told.distributions
        },
        "faults": [band._asdict() for band in told.bands],
    }
    return json.dumps(whole, indent=1) + "\n"
