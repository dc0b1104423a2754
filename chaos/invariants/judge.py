"""All invariants over one history, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from chaos.history.collector import uncollected
from chaos.history.events import History
from chaos.history.lives import Life, lives
from chaos.invariants.attempts import attempts_bounded, backs_off
from chaos.invariants.claiming import claim_bounded, not_early
from chaos.invariants.effects import effect_once, explained_duplicate
from chaos.invariants.fencing import fenced
from chaos.invariants.keys import key_once
from chaos.invariants.leases import no_overlap, reclaimed_in_time
from chaos.invariants.lifecycle import conserved, legal_steps, no_lost_task
from chaos.invariants.limits import limit_held
from chaos.invariants.progress import progress
from chaos.invariants.recurring import occurrence_once
from chaos.invariants.turns import in_turn
from chaos.invariants.verdict import Outcome, Verdict
from chaos.invariants.words import many

Invariant = Callable[[History, Mapping[int, Life]], Verdict]

INVARIANTS: dict[str, Invariant] = {
    "no-lost-task": no_lost_task,
    "legal-steps": legal_steps,
    "no-overlap": no_overlap,
    "fenced": fenced,
    "effect-once": effect_once,
    "explained-duplicate": explained_duplicate,
    "not-early": not_early,
    "reclaimed-in-time": reclaimed_in_time,
    "attempts-bounded": attempts_bounded,
    "backs-off": backs_off,
    "occurrence-once": occurrence_once,
    "key-once": key_once,
    "limit-held": limit_held,
    "claim-bounded": claim_bounded,
    "in-turn": in_turn,
    "progress": progress,
    "conserved": conserved,
}


def judge(history: History) -> tuple[Verdict, ...]:
    """Run every invariant on the history, in the order of `INVARIANTS`."""
    with uncollected():
        told = lives(history)
        return tuple([invariant(history, told) for invariant in INVARIANTS.values()])


def overall(history: History, verdicts: Iterable[Verdict]) -> Outcome:
    """What the run as a whole shows.

    Any failure fails it. It passes only with evidence: each invariant that the scenario named has
    passed, and each fault that was planned or injected had its effect at least once. Of two of one
    name each must have had it.
    """
    outcomes = {verdict.invariant: verdict.outcome for verdict in verdicts}
    if "fail" in outcomes.values():
        return "fail"
    if any(outcomes.get(name) != "pass" for name in history.named):
        return "inconclusive"
    return "inconclusive" if toothless(history) else "pass"


def toothless(history: History) -> frozenset[str]:
    """The names of the faults that were planned or injected and never bit. One that did does not
    stand for another of its name."""
    return frozenset(name for name, _ in _never_bit(history))


def _never_bit(history: History) -> set[tuple[str, int]]:
    """By name and by which of the scenario's faults it is."""

    def those(*actions: str) -> set[tuple[str, int]]:
        faults = (fault for fault in history.faults if fault.action in actions)
        return {(fault.name, fault.which) for fault in faults}

    return those("plan", "inject") - those("bite")


def why(history: History, verdicts: Iterable[Verdict]) -> str:
    """Why the run as a whole did not pass, in one sentence for people; empty if it did."""
    found = {verdict.invariant: verdict for verdict in verdicts}
    failed = [verdict.invariant for verdict in found.values() if verdict.outcome == "fail"]
    if failed:
        *others, last = failed
        return f"{', '.join(others)} and {last} failed" if others else f"{last} failed"
    reasons = []
    for name in sorted(history.named):
        verdict = found.get(name)
        if verdict is None:
            reasons.append(f"{name} is named, and no invariant has that name")
        elif verdict.outcome != "pass":
            what = "is inconclusive" if verdict.judged else "judged nothing"
            reasons.append(f"{name} is named and {what}: {verdict.sentence}")
    reasons += [_bitless(history, *one) for one in sorted(_never_bit(history))]
    return "; ".join(reasons)


def _bitless(history: History, name: str, index: int) -> str:
    """How far a fault came that never bit."""
    alike = sorted({fault.which for fault in history.faults if fault.name == name})
    which = f", number {alike.index(index) + 1} of {len(alike)} of its kind," * (len(alike) > 1)
    events = [fault for fault in history.faults if (fault.name, fault.which) == (name, index)]
    injected = sum(fault.action == "inject" for fault in events)
    if injected:
        return f"fault {name}{which} was injected {many(injected, 'time')} and never bit"
    planned = sum(int(fault.detail) for fault in events if fault.action == "plan")
    return f"fault {name}{which} was planned {many(planned, 'time')} and never injected"
