"""The statistics of repeats: medians, ranks, and what two small samples can tell. Nothing assumed.

All tests are exact: the distribution under "both are the same" is counted, ties included, not
approximated, because a bench has three to ten repeats. Functions are pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """The repeats of one figure."""

    median: float
    low: float
    high: float
    repeats: int


class Ratio(NamedTuple):
    """How many times the first sample the second is, with an interval that covers `confidence`."""

    estimate: float
    low: float
    high: float
    confidence: float


class Ranked(NamedTuple):
    """A rank sum and its distribution under the null, both as deviations from the mean, times 2."""

    deviation: int
    null: Counter[int]


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest. Raises statistics.StatisticsError for no values."""
    return Spread(median(values), min(values), max(values), len(values))


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least so many percent are not above (nearest rank).

    Raises ValueError for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values have no percentile")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def ranked(first: Sequence[float], second: Sequence[float]) -> Ranked:
    """The Wilcoxon rank sum of `second` among both (ties share their mean rank)."""
    both = [*first, *second]
    ranks = [  # doubled, so that a shared rank is a whole number
        sum(2 for other in both if other < value) + sum(1 for other in both if other == value) + 1
        for value in both
    ]
    sums: list[Counter[int]] = [Counter({0: 1})] + [Counter() for _ in second]
    for rank in ranks:
        for size in range(len(second), 0, -1):
            for total, ways in sums[size - 1].items():
                sums[size][total + rank] += ways
    mean = len(second) * (len(both) + 1)
    null = Counter({total - mean: ways for total, ways in sums[-1].items()})
    return Ranked(sum(ranks[len(first) :]) - mean, null)


def combined(strata: Iterable[Ranked]) -> Ranked:
    """Several comparisons as one: each is ranked within itself, then all are added up."""
    deviation, null = 0, Counter({0: 1})
    for one in strata:
        deviation += one.deviation
        summed: Counter[int] = Counter()
        for (total, ways), (step, more) in product(null.items(), one.null.items()):
            summed[total + step] += ways * more
        null = summed
    return Ranked(deviation, null)


def p_value(found: Ranked) -> float:
    """How often chance alone gives a rank sum at least this far from its mean, to either side."""
    far = sum(ways for total, ways in found.null.items() if abs(total) >= abs(found.deviation))
    return far / found.null.total()


def least_p(first: int, second: int) -> float:
    """The smallest p that samples of these sizes can give, however far apart they are."""
    return min(1.0, 2 / math.comb(first + second, first))


def ratio(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Ratio:
    """The Hodges-Lehmann estimate of second / first, and the interval that inverts the rank test.

    With few repeats no interval covers as much as asked; then it is the widest there is, and says
    what it covers. Raises ValueError unless all values are positive.
    """
    if min(*first, *second) <= 0:
        raise ValueError("a ratio needs positive values")
    ratios = sorted(b / a for a, b in product(first, second))
    # As many pairs as are below, in a sample without ties, with what probability.
    null = ranked(range(len(first)), [len(first) + n for n in range(len(second))]).null
    lowest = min(null)
    below, cut, covered = 0, 0, 0.0
    for step in range(len(ratios) // 2):
        below += null[lowest + 2 * step]
        covers = 1 - 2 * below / null.total()
        if step > 0 and covers < confidence:
            break
        cut, covered = step, covers
    return Ratio(median(ratios), ratios[cut], ratios[-1 - cut], max(0.0, covered))
