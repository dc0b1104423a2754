"""A background thread's failure reaches the thread that must know of it."""

from __future__ import annotations

from itertools import count

import pytest

from chaos.background import Background, next_beat
from tests.waiting import wait_for


def test_a_turn_is_repeated_until_it_says_enough() -> None:
    turns = count()
    with Background("counting", 0.001, lambda: next(turns) < 5) as thread:
        thread.join(30)
    assert next(turns) == 6


def test_leaving_the_context_ends_the_thread() -> None:
    with Background("endless", 0.001, lambda: True) as thread:
        assert thread.is_alive()
    assert not thread.is_alive()


def test_a_failure_is_raised_by_check_and_on_leaving() -> None:
    def fail() -> bool:
        raise ValueError("the turn failed")

    with pytest.raises(ValueError, match="the turn failed"), Background("bad", 0, fail) as thread:
        wait_for(lambda: not thread.is_alive(), "the thread to end")
    with pytest.raises(ValueError, match="the turn failed"):
        thread.check()


def test_an_error_of_the_context_is_not_replaced_by_the_thread_s_own() -> None:
    def fail() -> bool:
        raise ValueError("the turn failed")

    def use() -> None:
        with Background("bad", 0, fail) as thread:
            wait_for(lambda: not thread.is_alive(), "the thread to end")
            raise KeyError("the first error")

    with pytest.raises(KeyError):
        use()


def test_who_is_late_skips_beats_and_keeps_the_others() -> None:
    assert next_beat(due=10, every=2, began=10) == 12
    assert next_beat(due=10, every=2, began=11.5) == 12
    assert next_beat(due=10, every=2, began=15) == 16
