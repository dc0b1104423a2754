"""What an invariant answers. A verdict is evidence: a pass that judged nothing is inconclusive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One violation: a sentence a person understands, and where in the history it stands."""

    sentence: str
    task: int | None
    seq: int | None  # the commit that shows it, when one does


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one invariant on one history."""

    invariant: str
    outcome: Outcome
    judged: int  # how many events of this invariant's kind were looked at
    sentence: str  # one line: what was judged, or the first failure
    failures: tuple[Failure, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)  # counts and distributions, by name


def verdict(
    invariant: str,
    judged: int,
    passed: str,
    nothing: str,
    failures: list[Failure],
    facts: dict[str, float],
    inconclusive: str | None,
) -> Verdict:
    """Decide: any failure fails; a stated reason or nothing judged is inconclusive; else pass.

    `passed` is the sentence for a pass, `inconclusive` the reason why no verdict can be given, and
    `nothing` says what would have had to happen when there was nothing to judge.
    """
    if failures:
        return Verdict(invariant, "fail", judged, failures[0].sentence, tuple(failures), facts)
    if inconclusive is not None:
        return Verdict(invariant, "inconclusive", judged, inconclusive, (), facts)
    if judged == 0:
        return Verdict(invariant, "inconclusive", 0, nothing, (), facts)
    return Verdict(invariant, "pass", judged, passed, (), facts)
