"""`attempts-bounded` and `backs-off`: good stories, bad ones, and near misses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.history.events import Policy
from chaos.invariants.attempts import delay
from tests.chaos.invariants.build import (
    RULES,
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)

# attempts-bounded


def _dead() -> Story:
    """A task that used exactly its two attempts: one killed, one failed."""
    story = Story().enqueue(1, max_attempts=2).claim(1, at=1).note("started", 1, 1)
    return story.reclaim(1, at=6).claim(1, at=7).ran(1, 7, 8).fail(1, at=8)


def test_attempts_up_to_exactly_the_cap_are_bounded() -> None:
    verdict = assert_passes("attempts-bounded", _dead().history(), judged=2)
    assert verdict.evidence["dead_lettered"] == 1
    assert verdict.evidence["killed_attempts"] == 1


def test_one_attempt_above_the_cap_is_told() -> None:
    story = _dead().change(1, at=9, state="pending").claim(1, at=10)
    # The requeue kept the count, and the claim went past it.
    verdict = assert_fails("attempts-bounded", story.history(), "attempts at 2, not 0", times=2)
    assert "claimed it although it had used 2 of 2" in verdict.failures[1].sentence


def test_a_requeue_resets_the_attempts() -> None:
    story = _dead().requeue(1, at=9).claim(1, at=10).fail(1, at=11).claim(1, at=12)
    assert_passes("attempts-bounded", story.complete(1, at=13).history(), judged=4)


def test_attempts_that_the_row_forgot_are_counted_all_the_same() -> None:
    story = (
        Story().enqueue(1, max_attempts=1).claim(1, at=1).fail(1, at=2, attempts=0, state="pending")
    )
    history = story.claim(1, at=3).complete(1, at=4).history()
    verdict = assert_fails("attempts-bounded", history, "attempts at 0, not 1", times=3)
    assert "became pending instead of dead" in verdict.failures[1].sentence
    assert "began attempt 2" in verdict.failures[2].sentence
    assert "above the cap of 1; the row says 1" in verdict.failures[2].sentence


@pytest.mark.parametrize("how", ["release", "snooze"])
def test_what_is_given_back_is_not_counted(how: str) -> None:
    story = Story().enqueue(1, max_attempts=1)
    for at in (1.0, 2.0, 3.0):
        story.claim(1, at=at)
        if how == "release":
            story.release(1, at=at)
        else:
            story.ran(1, at, at).snooze(1, at=at, due=at)
    assert_passes("attempts-bounded", story.claim(1, at=4).complete(1, at=5).history(), judged=4)


def test_an_attempt_that_is_given_back_but_kept_is_told() -> None:
    history = Story().enqueue(1).claim(1, at=1).release(1, at=2, attempts=1).history()
    assert_fails("attempts-bounded", history, "(released) left its attempts at 1, not 0")


def test_an_attempt_that_a_failure_gives_back_is_told() -> None:
    history = Story().enqueue(1).claim(1, at=1).fail(1, at=2, attempts=0).history(ended=2)
    assert_fails("attempts-bounded", history, "(failed) left its attempts at 0, not 1")
    assert failing(history) == {"attempts-bounded"}


def test_a_renewal_that_gives_attempts_back_is_told() -> None:
    history = Story().enqueue(1).claim(1, at=1).renew(1, at=2, attempts=0).history()
    assert_fails("attempts-bounded", history, "running to running (no outcome)", "at 0, not 1")


@pytest.mark.parametrize("attempts", [0, 2])
def test_a_claim_that_does_not_count_exactly_one_is_told(attempts: int) -> None:
    history = Story().enqueue(1).claim(1, at=1, attempts=attempts).history()
    assert_fails("attempts-bounded", history, f"from 0 to {attempts}, not up by one")


def test_a_release_of_an_attempt_that_had_started_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=1).note("started", 1, 1.5).release(1, at=2)
    assert_fails("attempts-bounded", story.history(), "w1/1 gave token 1 back", "had started")


def test_a_release_after_an_earlier_attempt_had_started_is_legal() -> None:
    story = Story().enqueue(1).claim(1, at=1).ran(1, 1, 2).fail(1, at=2)
    assert_passes("attempts-bounded", story.claim(1, at=3).release(1, at=4).history())


@pytest.mark.parametrize("how", ["fail", "reclaim"])
def test_what_exhausts_the_cap_must_be_dead_lettered(how: str) -> None:
    story = Story().enqueue(1, max_attempts=1).claim(1, at=1)
    end = story.fail if how == "fail" else story.reclaim
    history = end(1, at=6, state="pending").history(ended=6)
    assert_fails("attempts-bounded", history, "last attempt, 1 of 1", "became pending instead")
    assert failing(history) == {"attempts-bounded"}


@pytest.mark.parametrize("error", [None, ""])
def test_what_is_dead_lettered_must_have_an_error(error: str | None) -> None:
    story = Story().enqueue(1, max_attempts=1).claim(1, at=1).fail(1, at=2, error=error)
    assert_fails("attempts-bounded", story.history(finals={}), "without an error")
    verdict = assert_fails("attempts-bounded", story.history(), "without an error", times=2)
    assert "its last error is gone" in verdict.failures[1].sentence


def test_a_task_dead_lettered_before_its_cap_is_told() -> None:
    history = Story().enqueue(1).claim(1, at=1).fail(1, at=2, state="dead").history()
    assert_fails("attempts-bounded", history, "dead-lettered after 1 of 3 attempts")


def test_a_dead_letter_that_lost_its_payload_is_told() -> None:
    story = _dead()
    finals = {1: story.finals()[1]._replace(payload_now="another")}
    assert_fails("attempts-bounded", story.history(finals=finals), "not with the payload")


def test_a_dead_letter_that_lost_its_error_is_told() -> None:
    story = _dead()
    finals = {1: story.finals()[1]._replace(error="")}
    assert_fails("attempts-bounded", story.history(finals=finals), "its last error is gone")


def test_a_completed_task_may_drop_its_payload() -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    finals = {1: story.finals()[1]._replace(payload_now="")}
    assert_passes("attempts-bounded", story.history(finals=finals))


def test_a_cap_that_a_rescue_raises_is_told() -> None:
    story = Story().enqueue(1, max_attempts=2).claim(1, at=1).reclaim(1, at=6, max_attempts=3)
    assert_fails("attempts-bounded", story.history(), "its cap was moved from 2 to 3")


def test_a_dead_letter_with_the_error_of_an_earlier_attempt_is_told() -> None:
    story = Story().enqueue(1, max_attempts=2).claim(1, at=1).fail(1, at=2).claim(1, at=3)
    history = story.reclaim(1, at=9, error="boom").history()
    verdict = assert_fails(
        "attempts-bounded",
        history,
        "dead-lettered with the error 'boom'",
        "(token 2) ended with 'lease expired'",
        times=2,
    )
    assert "is dead-lettered with the error 'boom'" in verdict.failures[1].sentence
    assert failing(history) == {"attempts-bounded"}


def test_a_dead_letter_found_with_the_error_of_an_earlier_attempt_is_told() -> None:
    story = _dead()
    finals = {1: story.finals()[1]._replace(error="lease expired")}
    history = story.history(finals=finals)
    assert_fails("attempts-bounded", history, "error 'lease expired'", "ended with 'boom'")


def test_a_dead_letter_has_the_error_of_the_attempt_since_its_last_requeue() -> None:
    story = _dead().requeue(1, at=9).claim(1, at=10).reclaim(1, at=16)
    history = story.claim(1, at=17).reclaim(1, at=23).history()
    assert_passes("attempts-bounded", history)


def test_an_attempt_that_was_not_the_last_may_leave_any_error() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6, error="an older one")
    assert_passes("attempts-bounded", story.history())


def test_a_dead_letter_whose_log_has_no_errors_is_not_compared() -> None:
    story = Story().enqueue(1, max_attempts=1).claim(1, at=1)
    story.end(1, 2, "failed", state="dead", error="whatever")
    assert_passes("attempts-bounded", story.history())


def test_a_history_without_attempts_shows_nothing() -> None:
    history = Story().enqueue(1).history()
    assert_inconclusive("attempts-bounded", history, "no task was claimed")
    assert_inconclusive("backs-off", history, "no attempt failed or snoozed")


# backs-off

DOUBLING = Policy(base=1, factor=2, cap=5, jitter=0)
JITTERED = DOUBLING._replace(jitter=0.5)
# sha256("1:1") and sha256("1:2") begin with these: the oracle is written out, not computed.
CUT_1_1 = 0xD6B5915C / 2**32
CUT_1_2 = 0x673AEEB0 / 2**32


def _failed(policy: Policy | None, *delays: float) -> Story:
    """A task that fails once for each delay and is due again after it."""
    story = Story().enqueue(1, max_attempts=99, policy=policy)
    at = 1.0
    for delay_ in delays:
        story.claim(1, at=at).fail(1, at=at, due=at + delay_)
        at += delay_
    return story


def test_delays_follow_base_factor_and_cap() -> None:
    history = _failed(DOUBLING, 1, 2, 4, 5, 5).history()
    verdict = assert_passes("backs-off", history, judged=5)
    assert verdict.evidence["longest_delay_ms"] == 5000


def test_jitter_cuts_what_task_and_token_say() -> None:
    first, second = 1 - 0.5 * CUT_1_1, 2 * (1 - 0.5 * CUT_1_2)
    assert_passes("backs-off", _failed(JITTERED, first, second).history(), judged=2)
    assert_fails("backs-off", _failed(JITTERED, 1).history(ended=2), "but its policy says 0.")


@pytest.mark.parametrize("off", [0.000002, -0.000002])
def test_two_microseconds_are_rounding(off: float) -> None:
    assert_passes("backs-off", _failed(DOUBLING, 1 + off).history())


@pytest.mark.parametrize("off", [0.000003, -0.000003, -1, 86400])
def test_three_microseconds_are_not(off: float) -> None:
    history = _failed(DOUBLING, 1 + off).history(ended=1)
    assert_fails("backs-off", history, "attempt 1 (token 1) failed", "its policy says 1.000000 s")
    assert failing(history) == {"backs-off"}


def test_a_wrong_exponent_is_told() -> None:
    assert_fails("backs-off", _failed(DOUBLING, 1, 1).history(), "attempt 2", "says 2.000000 s")


def test_a_due_time_beyond_any_calendar_is_told() -> None:
    story = Story().enqueue(1, policy=DOUBLING).claim(1, at=1).fail(1, at=2, due=1e15)
    assert_fails("backs-off", story.history(), "its policy says 1.000000 s")


def test_no_attempt_count_overflows() -> None:
    assert delay(DOUBLING, 1_000_000, 1, 1) == 5
    assert delay(Policy(1.0, 10.0, 1e300, 0.0), 10_000, 1, 1) == 1e300
    assert delay(Policy(0, 2, 5, 0), 10_000, 1, 1) == 0
    assert delay(Policy(1, 2, 0, 0), 10_000, 1, 1) == 0
    assert delay(Policy(3, 1, 5, 0), 10_000, 1, 1) == 3
    assert delay(Policy(7, 2, 5, 0), 1, 1, 1) == 5


def test_a_long_delay_may_round_by_a_billionth() -> None:
    year = 31_536_000.0
    history = _failed(Policy(year, 2, year, 0), year * (1 + 0.9e-9)).history()
    assert_passes("backs-off", history)
    assert_fails("backs-off", _failed(Policy(year, 2, year, 0), year * (1 + 2e-9)).history())


@pytest.mark.parametrize(
    "tell",
    [
        lambda: _failed(None, 9),
        lambda: Story().enqueue(1, policy=DOUBLING).claim(1, at=1).release(1, at=2),
        lambda: Story().enqueue(1, policy=DOUBLING).claim(1, at=1).reclaim(1, at=6),
        lambda: Story().enqueue(1, policy=DOUBLING, max_attempts=1).claim(1, at=1).fail(1, at=2),
    ],
    ids=["no policy", "released", "reclaimed", "dead"],
)
def test_only_failures_that_are_tried_again_by_a_policy_are_judged(tell: Any) -> None:
    assert_inconclusive("backs-off", tell().history(), "no attempt failed or snoozed")


def _snoozed(due: float) -> Story:
    """A task that snoozed at 2 and is due again at `due`."""
    return Story().enqueue(1).claim(1, at=1).snooze(1, at=2, due=due)


def test_a_snooze_may_ask_for_any_time_from_its_end() -> None:
    assert_passes("backs-off", _snoozed(2).history(), judged=1)
    assert_passes("backs-off", _snoozed(99).history(), judged=1)


def test_a_snoozed_task_that_is_due_before_its_attempt_ended_is_told() -> None:
    history = _snoozed(1.999999).claim(1, at=38).history()
    assert_fails("backs-off", history, "was snoozed at 12:00:02", "again 0.000001 s before that")
    assert failing(history) == {"backs-off"}


def test_where_all_snoozes_ask_for_one_delay_it_must_be_exactly_that() -> None:
    rules = replace(RULES, snooze_delay=200_000)
    assert_passes("backs-off", _snoozed(2.2).history(rules=rules), judged=1)
    for due in (2.2 + 1e-6, 2.2 - 1e-6):
        history = _snoozed(due).history(rules=rules)
        assert_fails("backs-off", history, "again after 0.", "but it asked for 0.200000 s")
    # But for one that the worker put off by itself, and said so.
    assert_passes("backs-off", _snoozed(3).note("put-off", 1, 2).history(rules=rules), judged=1)


def test_a_last_attempt_whose_lease_ran_out_must_not_stay_as_it_is() -> None:
    stuck = Story().enqueue(1, max_attempts=1).claim(1, at=1)
    assert_fails("attempts-bounded", stuck.history(), "1 of 1, was over", "not dead-lettered")
    assert_passes("attempts-bounded", Story().enqueue(1, max_attempts=2).claim(1, at=1).history())
    assert_passes("attempts-bounded", stuck.reclaim(1, at=7).history())
    late = Story().enqueue(1, max_attempts=1).claim(1, at=38)
    assert_passes("attempts-bounded", late.history())


def test_a_starved_machine_is_not_blamed_for_a_last_lease_that_lies_around() -> None:
    stuck = Story().enqueue(1, max_attempts=1).claim(1, at=1)
    assert_passes("attempts-bounded", stuck.history(lag=3600))
