"""`chaos bench compare A B`: whether two results differ, as far as their repeats can tell.

Each cell that both have is compared by an exact Wilcoxon rank-sum test of its repeats, and by the
ratio of B to A (Hodges-Lehmann, with the interval of that same test). All cells of a figure
together are compared by one stratified test: few repeats of many cells can show what no single
cell can.

The repeats within a result were interleaved, those of two results were not: what the machine did
differently between the two runs is in the difference. So the commit latencies are told too.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from statistics import mean
from typing import NamedTuple

from chaos.bench.result import FIGURES, Key, Result, repeats
from chaos.bench.statistics import (
    Ranked,
    Ratio,
    Spread,
    combined,
    least_p,
    p_value,
    ranked,
    ratio,
    spread,
)

LEVEL = 0.05
FACTS = ("processor", "cores", "file_system", "postgres server_version", "leaseproof", "python")
APART = 1.2  # commit latencies whose ratio is greater are worth a warning


class Compared(NamedTuple):
    """One cell, or all cells together (key None), of one figure in two results."""

    figure: str
    key: Key | None
    first: Spread | None
    second: Spread | None
    ratio: Ratio | None
    p: float
    least_p: float

    @property
    def verdict(self) -> str:
        """What may be said, in a few words."""
        if self.p <= LEVEL and self.ratio is not None:
            better = FIGURES[self.figure].better
            gained = (self.ratio.estimate > 1) == (better == "more")
            return f"B is {'better' if gained else 'worse'}"
        if self.least_p > LEVEL:
            return "too few repeats to tell"
        return "no difference shown"


def compare(first: Result, second: Result) -> list[Compared]:
    """Every cell that both have, figure by figure, after all cells of the figure together."""
    found = []
    for name, figure in FIGURES.items():
        if not figure.better:
            continue
        ours, theirs = repeats(first, name), repeats(second, name)
        cells = [_cell(name, key, ours[key], theirs[key]) for key in ours if key in theirs]
        if len(cells) > 1:
            found.append(_together(name, [cell for cell, _ in cells], [rank for _, rank in cells]))
        found += [cell for cell, _ in cells]
    return found


def _cell(name: str, key: Key, ours: list[float], theirs: list[float]) -> tuple[Compared, Ranked]:
    ranks = ranked(ours, theirs)
    compared = Compared(
        name,
        key,
        spread(ours),
        spread(theirs),
        ratio(ours, theirs) if min(*ours, *theirs) > 0 else None,
        p_value(ranks),
        least_p(len(ours), len(theirs)),
    )
    return compared, ranks


def _together(name: str, cells: list[Compared], ranks: list[Ranked]) -> Compared:
    ratios = [cell.ratio.estimate for cell in cells if cell.ratio is not None]
    overall = exp(mean(map(log, ratios))) if ratios else None
    least = 1.0
    for cell in cells:
        least *= cell.least_p / 2
    return Compared(
        name,
        None,
        None,
        None,
        # No interval is claimed for a mean over cells that need not share one ratio.
        None if overall is None else Ratio(overall, overall, overall, 0.0),
        p_value(combined(ranks)),
        min(1.0, 2 * least),
    )


def cautions(first: Result, second: Result, compared: list[Compared]) -> Iterator[str]:
    """What a reader must know before believing the comparison."""
    for fact in FACTS:
        a, b = first.machine.get(fact), second.machine.get(fact)
        if a != b:
            yield f"the results differ in {fact}: {a} and {b}"
    a, b = (_commit(result) for result in (first, second))
    if max(a, b) > APART * min(a, b):
        yield (
            f"a durable commit took {a:.2f} ms in A and {b:.2f} ms in B: the disk was not the same,"
            " and every figure with commits in it shows that"
        )
    cells = [one for one in compared if one.key is not None]
    if not cells:
        yield "the two results have no cell in common"
        return
    if all(one.least_p > LEVEL for one in cells):
        counts = {
            (one.first.repeats, one.second.repeats) for one in cells if one.first and one.second
        }
        said = ", ".join(f"{a} and {b}" for a, b in sorted(counts))
        yield (
            f"with {said} repeats no single cell can differ at {LEVEL:.0%}, whatever its values:"
            " take at least 4 in each"
        )
    else:
        chance = LEVEL * len(cells)
        yield (
            f"{len(cells)} comparisons at {LEVEL:.0%}: about {chance:.0f} would seem to differ by"
            " chance alone"
        )


def _commit(result: Result) -> float:
    """The mean of the commit latencies before and after, in milliseconds."""
    return (
        float(result.machine["commit_p50_ms_before"]) + float(result.machine["commit_p50_ms_after"])
    ) / 2
