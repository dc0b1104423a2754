"""How verdicts speak to people: times, spans and spreads, and which failures are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from chaos.invariants.verdict import Failure, Verdict, verdict

TOLD = 20  # a broken system breaks thousands of times; people read the first few
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def clock(micros: int | None) -> str:
    """The UTC time of day of microseconds since the epoch: `12:00:05.200000`."""
    if micros is None:
        return "no time"
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%H:%M:%S.%f")
    except OverflowError:
        # A broken backoff can set a due time that no calendar holds; it must still be told.
        return f"{micros} µs after 1970"


def span(micros: float) -> str:
    """A length of time, given in microseconds: `3.200000 s`."""
    return f"{micros / 1e6:.6f} s"


def many(number: int, noun: str) -> str:
    """A number and its noun: `1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def starved(lag: int, bound: int, what: str) -> str:
    """Why a breach of a bound proves nothing on a machine that lagged by more than the bound."""
    return (
        f"the machine lagged {span(lag)}, more than the bound of {span(bound)}:"
        f" nothing follows from {what}"
    )


def spread(values: list[int], name: str) -> dict[str, float]:
    """Median, 99th percentile and maximum, as milliseconds, of values in microseconds.

    Keys are `<name>_p50_ms`, `<name>_p99_ms`, `<name>_max_ms`; none of them if there are no values.
    """
    if not values:
        return {}
    ranked = sorted(values)
    last = len(ranked) - 1
    return {
        f"{name}_p50_ms": ranked[last * 50 // 100] / 1000,
        f"{name}_p99_ms": ranked[last * 99 // 100] / 1000,
        f"{name}_max_ms": ranked[last] / 1000,
    }


@dataclass(slots=True)
class Found:
    """The failures of one invariant: all are counted, the first `TOLD` are told."""

    told: list[Failure] = field(default_factory=list)
    count: int = 0

    def add(self, task: int | None, seq: int | None, sentence: str) -> None:
        """Note one violation: of which task, and which commit shows it, if it is of one at all."""
        self.count += 1
        if len(self.told) < TOLD:
            told = sentence if task is None else f"task {task}: {sentence}"
            self.told.append(Failure(told, task, seq))

    def extend(self, other: Found) -> None:
        """Take over another's violations, after one's own."""
        self.count += other.count
        self.told += other.told[: TOLD - len(self.told)]

    def verdict(
        self,
        invariant: str,
        judged: int,
        passed: str,
        nothing: str,
        evidence: Mapping[str, float],
        inconclusive: str | None = None,
    ) -> Verdict:
        """Decide as `verdict` does, with the number of all failures among the evidence."""
        facts = {**evidence, "failures": self.count}
        return verdict(invariant, judged, passed, nothing, self.told, facts, inconclusive)
