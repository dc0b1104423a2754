"""Schedules as strings."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.explore.errors import ScheduleError
from chaos.explore.schedule import Advance, Schedule, Step, parse, show

STEPS = st.builds(
    Step,
    st.sampled_from(["a", "b", "worker_1"]),
    st.sampled_from(["", "!", "!!", "?", "^"]),
)
ADVANCES = st.builds(lambda n: Advance(timedelta(milliseconds=n)), st.integers(1, 10**9))


@given(st.lists(STEPS | ADVANCES).map(tuple))
def test_a_schedule_reads_back_as_it_was_printed(schedule: Schedule) -> None:
    assert parse(show(schedule)) == schedule


def test_the_notation_means_what_the_documentation_says() -> None:
    assert parse("a b! b!! a? c^ +60s +5ms +2h") == (
        Step("a"),
        Step("b", "!"),
        Step("b", "!!"),
        Step("a", "?"),
        Step("c", "^"),
        Advance(timedelta(seconds=60)),
        Advance(timedelta(milliseconds=5)),
        Advance(timedelta(hours=2)),
    )


@pytest.mark.parametrize("word", ["A", "a!?", "+0s", "60s", "+1d", "a!!!", "!"])
def test_a_word_that_is_no_step_is_refused_by_name(word: str) -> None:
    with pytest.raises(ScheduleError, match="is no step"):
        parse(f"a {word} b")


def test_a_clock_moved_by_less_than_a_millisecond_cannot_be_printed() -> None:
    with pytest.raises(ScheduleError, match="whole milliseconds"):
        show([Advance(timedelta(microseconds=1))])
