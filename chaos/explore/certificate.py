"""What a search may say of itself: a pass is a certificate, and a certificate needs evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from chaos.explore.run import Bounds
from chaos.explore.search import Tally
from chaos.invariants.verdict import Outcome

Coverage = Literal["exhausted", "bounded", "cut short", "stopped at a failure"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The evidence of one search.

    coverage: `exhausted` is every interleaving with at most the stated faults; `bounded` is every
        one with at most the stated preemptions too; a search that was cut short shows nothing.
    returned: for each actor, in how many schedules its function ran to its end.
    faults: in how many schedules each kind of fault happened.
    blocked: in how many schedules an actor waited for a lock.
    checked: how many schedules were compared, step by step, with an earlier run of the same steps.
    degraded: everything that makes the evidence worth less; empty in a pass.
    """

    bounds: Bounds
    coverage: Coverage
    schedules: int
    steps: int
    preemptions: int  # the most in one schedule
    returned: Mapping[str, int]
    raised: Mapping[str, Mapping[str, int]]
    crashed: Mapping[str, int]
    faults: Mapping[str, int]
    blocked: int
    checked: int
    degraded: tuple[str, ...]
    server: str
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """`pass` if no schedule failed and nothing is missing, `inconclusive` if something is."""
        if self.coverage == "stopped at a failure":
            return "fail"
        return "inconclusive" if list(self.missing()) else "pass"

    def missing(self) -> Iterator[str]:
        """What keeps this from being a pass."""
        if self.coverage == "cut short":
            yield f"the search was cut short after {self.schedules} schedules: raise the limit"
        for name, times in self.returned.items():
            if not times:
                how = ", ".join(self.raised.get(name, ())) or "it always crashed"
                yield f"actor {name} never came to its end ({how}): its later statements never ran"
        for kind, most in self.bounds.budget().items():
            if most and not self.faults.get(kind):
                yield f"no schedule had a {kind}, though up to {most} were allowed"
        if not self.checked:
            yield "no schedule was run twice: whether they are deterministic is not known"
        yield from self.degraded

    def lines(self) -> Iterator[str]:
        """For people."""
        allowed = [f"{most} {kind}" for kind, most in self.bounds.budget().items() if most]
        most = self.bounds.preemptions
        within = "any number of preemptions" if most is None else f"up to {most} preemptions"
        if allowed:
            within += " and " + ", ".join(allowed)
        yield (
            f"{self.schedules} schedules, {self.coverage} within {within};"
            f" {self.steps} steps, {self.schedules / self.seconds:.0f} schedules/s,"
            f" PostgreSQL {self.server}"
        )
        for name, times in self.returned.items():
            ends = [f"returned in {times}"]
            ends += [f"{error} in {n}" for error, n in self.raised.get(name, {}).items()]
            if self.crashed.get(name):
                ends.append(f"crashed in {self.crashed[name]}")
            yield f"actor {name}: {', '.join(ends)}"
        yield f"an actor waited for a lock in {self.blocked}; {self.checked} compared with a rerun"
        if self.faults:
            yield "faults: " + ", ".join(f"{kind} in {n}" for kind, n in self.faults.items())
        for reason in self.missing():
            yield f"missing: {reason}"


def certificate(
    tally: Tally, bounds: Bounds, actors: tuple[str, ...], server: str, seconds: float, failed: bool
) -> Certificate:
    """What a search with this tally may claim."""
    if failed:
        coverage: Coverage = "stopped at a failure"
    elif tally.cut:
        coverage = "cut short"
    else:
        coverage = "bounded" if tally.pruned else "exhausted"
    return Certificate(
        bounds=bounds,
        coverage=coverage,
        schedules=tally.schedules,
        steps=tally.steps,
        preemptions=tally.deepest,
        returned={name: tally.returned[name] for name in actors},
        raised={name: dict(errors) for name, errors in tally.raised.items()},
        crashed=dict(tally.crashed),
        faults=dict(tally.faults),
        blocked=tally.blocked,
        checked=tally.checked,
        degraded=tuple(sorted(tally.degraded)),
        server=server,
        seconds=seconds,
    )
