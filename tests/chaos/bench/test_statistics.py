"""The statistics, against numbers worked out by hand or found in tables."""

from __future__ import annotations

import random

import pytest

from chaos.bench.statistics import (
    combined,
    least_p,
    p_value,
    percentile,
    ranked,
    ratio,
    spread,
)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([5, 1, 3, 2, 4], 50) == 3
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7], 99) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_spread_has_the_median_and_both_ends() -> None:
    assert spread([3, 9, 1]) == (3, 1, 9, 3)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 2 / 20),
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3, 5], [4, 6, 7, 8], 4 / 70),
        ([1, 3, 5], [2, 4, 6], 14 / 20),
        ([1, 1, 1], [1, 1, 1], 1.0),
        # With ties, of the 6 ways to choose two of 1 1 2 2 one is so far up and one so far down.
        ([1, 1], [2, 2], 2 / 6),
    ],
)
def test_the_p_value_is_counted_exactly(first: list[float], second: list[float], p: float) -> None:
    assert p_value(ranked(first, second)) == pytest.approx(p)
    assert p_value(ranked(second, first)) == pytest.approx(p)


def test_the_least_p_is_what_samples_apart_give() -> None:
    for size in (1, 2, 3, 5):
        apart = ranked(range(size), range(10, 10 + size))
        assert p_value(apart) == pytest.approx(least_p(size, size))


def test_many_small_differences_the_same_way_are_one_large() -> None:
    one = ranked([1, 2, 3], [4, 5, 6])
    assert p_value(combined([one, one, one])) == pytest.approx(2 / 20**3)
    other = ranked([4, 5, 6], [1, 2, 3])
    assert p_value(combined([one, other])) == 1.0


def test_chance_alone_is_found_as_seldom_as_it_says() -> None:
    dice = random.Random(7)
    found = 0
    for _ in range(400):
        first, second = ([dice.gauss(100, 5) for _ in range(5)] for _ in range(2))
        found += p_value(ranked(first, second)) <= 0.05
    assert found <= 400 * 0.08


def test_a_ratio_comes_with_the_interval_of_the_test() -> None:
    found = ratio([10, 10, 10], [20, 20, 20])
    assert (found.estimate, found.low, found.high) == (2, 2, 2)
    assert found.confidence == pytest.approx(0.9)  # the most that three and three can say
    few = ratio([10, 11], [20, 22])
    assert few.confidence == pytest.approx(1 - 2 / 6)
    many = ratio([100, 101, 102, 103, 104, 105], [110, 111, 112, 113, 114, 115])
    assert many.confidence >= 0.95
    assert many.low < many.estimate < many.high
    assert (many.low, many.high) != (110 / 105, 115 / 100)  # narrower than all pairs


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(11)
    covered = 0
    for _ in range(300):
        first = [dice.gauss(100, 5) for _ in range(5)]
        second = [1.3 * dice.gauss(100, 5) for _ in range(5)]
        found = ratio(first, second)
        covered += found.low <= 1.3 <= found.high
    assert covered >= 300 * 0.92


def test_one_repeat_gives_a_ratio_without_confidence() -> None:
    assert ratio([10], [15]) == (1.5, 1.5, 1.5, 0.0)
