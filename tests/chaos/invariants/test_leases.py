"""`no-overlap` and `reclaimed-in-time`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)

# no-overlap: what the commits say


def test_a_reclaim_exactly_at_expiry_is_legal() -> None:
    story = Story().enqueue(1).claim(1, at=1, lease=5).reclaim(1, at=6).claim(1, by="w2", at=6)
    verdict = assert_passes("no-overlap", story.history(), judged=2)
    assert verdict.evidence["handovers"] == 1


def test_a_reclaim_a_microsecond_before_expiry_is_not() -> None:
    story = Story().enqueue(1).claim(1, at=1, lease=5).reclaim(1, at=5.999999)
    story.claim(1, by="w2", at=6).complete(1, at=7)
    history = story.history()
    assert_fails(
        "no-overlap",
        history,
        "task 1: w1/1 held token 1 until 12:00:06.000000",
        "reclaimed at 12:00:05.999999",
    )
    assert failing(history) == {"no-overlap"}


def test_a_reclaim_is_judged_by_the_expiry_as_last_renewed() -> None:
    story = Story().enqueue(1).claim(1, at=1).renew(1, at=4).reclaim(1, at=6.5)
    assert_fails("no-overlap", story.history(), "held token 1 until 12:00:09.000000")


def test_a_claim_over_a_valid_lease_is_told() -> None:
    story = Story().enqueue(7).claim(7, by="w3", at=0.2).claim(7, by="w5", at=3.1)
    assert_fails(
        "no-overlap",
        story.history(),
        "task 7: w3/1 held token 1 until 12:00:05.200000",
        "but w5/2 was given token 2 at 12:00:03.100000",
    )


def test_a_claim_over_a_lease_that_expires_that_moment_is_no_overlap() -> None:
    story = Story().enqueue(1).claim(1, at=1).claim(1, by="w2", at=6).complete(1, at=7)
    history = story.history()
    assert_passes("no-overlap", history)
    assert failing(history) == {"legal-steps"}  # our table knows no claim of a running task


def test_a_valid_lease_that_a_reset_took_away_is_told_at_the_next_claim() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    story.change(1, at=2, state="pending", owner=None, expires=None).claim(1, by="w2", at=5.999999)
    assert_fails("no-overlap", story.history(), "w1/1 held token 1", "w2/2 was given token 2")


def test_a_reset_whose_task_is_claimed_only_after_expiry_is_no_overlap() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    story.change(1, at=2, state="pending", owner=None, expires=None).claim(1, by="w2", at=6)
    assert_passes("no-overlap", story.history())


def test_a_valid_lease_that_a_zombie_failed_is_told_at_the_next_claim() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=6)
    story.fail(1, at=7, token=1).claim(1, by="w3", at=8)
    assert_fails("no-overlap", story.history(), "w2/2 held token 2", "w3/3 was given token 3")


@pytest.mark.parametrize("how", ["fail", "release", "snooze"])
def test_a_holder_may_end_its_valid_lease(how: str) -> None:
    story = Story().enqueue(1).claim(1, at=1)
    if how == "fail":
        story.fail(1, at=2)
    elif how == "release":
        story.release(1, at=2)
    else:
        story.snooze(1, at=2, due=2)
    assert_passes("no-overlap", story.claim(1, by="w2", at=2).history())


def test_a_cancel_may_end_a_valid_lease() -> None:
    assert_passes("no-overlap", Story().enqueue(1).claim(1, at=1).cancel(1, at=2).history())


# no-overlap: what the journals say


def test_a_zombie_that_runs_on_after_expiry_is_legal_and_reported() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=7)
    story.ran(1, 1.5, 8.25, token=1).ran(1, 7.25, 9, token=2).complete(1, at=9)
    verdict = assert_passes("no-overlap", story.history())
    assert verdict.evidence["zombie_windows"] == 1
    assert verdict.evidence["zombie_longest_ms"] == 1000
    assert verdict.evidence["zombie_total_ms"] == 1000


def test_a_zombie_beside_two_newer_attempts_is_two_windows() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=7)
    story.note("started", 1, 1.5, token=1).note("effect", 1, 2, token=1)
    story.ran(1, 7, 8).note("finished", 1, 20, token=1).fail(1, at=8)
    story.claim(1, by="w3", at=9).ran(1, 9, 12).complete(1, at=12)
    verdict = assert_passes("no-overlap", story.history())
    assert verdict.evidence["zombie_windows"] == 2
    assert verdict.evidence["zombie_longest_ms"] == 3000
    assert verdict.evidence["zombie_total_ms"] == 4000


def test_an_end_without_a_start_is_no_attempt() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=2).claim(1, by="w2", at=3)
    story.ran(1, 1, 2, token=1).ran(1, 3, 4).note("finished", 1, 5, token=7)
    assert_passes("no-overlap", story.history())


def test_an_old_attempt_that_ends_before_the_new_one_starts_is_no_zombie() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=7)
    story.ran(1, 1.5, 7.25, token=1).ran(1, 7.25, 9, token=2)
    verdict = assert_passes("no-overlap", story.history())
    assert verdict.evidence["zombie_windows"] == 0


def test_two_attempts_that_run_on_valid_leases_overlap() -> None:
    # The holder gave its lease back and ran on, well before the lease would have expired.
    story = Story().enqueue(1).claim(1, at=1).release(1, at=2).claim(1, by="w2", at=3)
    story.ran(1, 1.5, 4, token=1).ran(1, 3.5, 5, token=2).complete(1, at=5)
    assert_fails(
        "no-overlap",
        story.history(),
        "w1/1 (token 1) and w2/2 (token 2) both ran it",
        "from 12:00:03.500000 to 12:00:04.000000",
    )


def test_two_attempts_that_touch_do_not_overlap() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=3).claim(1, by="w2", at=3)
    story.ran(1, 1.5, 3.5, token=1).ran(1, 3.5, 5, token=2)
    assert_passes("no-overlap", story.history())


def test_an_attempt_nobody_saw_end_is_not_said_to_run_past_its_expiry() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=6)
    story.note("started", 1, 1.5, token=1).ran(1, 6, 9, token=2)
    verdict = assert_passes("no-overlap", story.history())
    assert verdict.evidence["zombie_windows"] == 0


def test_an_attempt_nobody_saw_end_is_over_when_its_holder_says_so() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=2).claim(1, by="w2", at=2)
    story.note("started", 1, 1.5, token=1).ran(1, 2.5, 4, token=2)
    assert_passes("no-overlap", story.history())


def test_an_attempt_nobody_saw_end_runs_until_its_lease_is_taken() -> None:
    story = Story().enqueue(1).claim(1, at=1).claim(1, by="w2", at=3)
    story.note("started", 1, 1.5, token=1).ran(1, 3.5, 4, token=2)
    verdict = assert_fails("no-overlap", story.history(), "held token 1", times=2)
    assert "both ran it from 12:00:03.500000" in verdict.failures[1].sentence


def test_one_attempt_started_twice_overlaps_itself() -> None:
    story = Story().enqueue(1).claim(1, at=1).note("started", 1, 1.5).ran(1, 2, 3)
    assert_fails("no-overlap", story.history(), "w1/1 (token 1) and w1/1 (token 1) both ran it")


def test_notes_of_a_lease_that_no_commit_shows_prove_no_overlap() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    story.ran(1, 1.5, 3, token=1).ran(1, 1.5, 3, token=9)
    assert_passes("no-overlap", story.history())


def test_a_history_without_leases_shows_nothing() -> None:
    history = Story().enqueue(1).history()
    assert_inconclusive("no-overlap", history, "no lease was given")
    assert_inconclusive("reclaimed-in-time", history, "no lease expired and was reclaimed")


# reclaimed-in-time


def _reclaimed(at: float) -> Story:
    """A lease that expires at 25 and is reclaimed at `at`."""
    story = Story().enqueue(1).claim(1, at=20, lease=5)
    return story.reclaim(1, at=at).claim(1, at=at).complete(1, at=at)


def test_a_reclaim_within_the_bound_is_in_time() -> None:
    verdict = assert_passes("reclaimed-in-time", _reclaimed(27).history(healed=20), judged=1)
    assert verdict.evidence["delay_p50_ms"] == 2000
    assert verdict.evidence["delay_p99_ms"] == 2000
    assert verdict.evidence["delay_max_ms"] == 2000
    assert verdict.evidence["after_heal"] == 1


def test_a_reclaim_a_microsecond_past_the_bound_is_late() -> None:
    history = _reclaimed(27.000001).history(healed=20)
    assert_fails(
        "reclaimed-in-time",
        history,
        "w1/1 (token 1) expired at 12:00:25.000000 and was reclaimed at 12:00:27.000001",
        "2.000000 s are allowed",
    )
    assert failing(history) == {"reclaimed-in-time"}


def test_the_bound_grows_by_the_lag_of_the_machine() -> None:
    assert_passes("reclaimed-in-time", _reclaimed(28).history(healed=20, lag=1))
    assert_fails("reclaimed-in-time", _reclaimed(28.1).history(healed=20, lag=1), "3.1")


def test_the_bound_counts_from_heal_when_the_lease_expired_before_it() -> None:
    assert_passes("reclaimed-in-time", _reclaimed(32).history(healed=30))
    assert_fails("reclaimed-in-time", _reclaimed(32.1).history(healed=30), "2.1")


def test_a_reclaim_before_heal_is_only_measured() -> None:
    verdict = assert_passes("reclaimed-in-time", _reclaimed(29).history(healed=30), judged=1)
    assert verdict.evidence["delay_max_ms"] == 4000
    assert verdict.evidence["after_heal"] == 0


def test_a_reclaim_at_the_moment_of_heal_is_not_after_it() -> None:
    verdict = assert_passes("reclaimed-in-time", _reclaimed(30).history(healed=30))
    assert verdict.evidence["after_heal"] == 0


def test_a_lease_never_reclaimed_is_late() -> None:
    story = Story().enqueue(1).claim(1, at=20, lease=5)
    assert_fails("reclaimed-in-time", story.history(ended=27.000001), "was not reclaimed by")


def test_a_lease_that_may_still_be_reclaimed_is_not_late() -> None:
    story = Story().enqueue(1, 2).claim(1, 2, at=20, lease=5).reclaim(2, at=25)
    assert_passes("reclaimed-in-time", story.history(ended=27))


def test_a_late_reclaim_on_a_starved_machine_is_inconclusive() -> None:
    history = _reclaimed(36).history(healed=20, lag=2.5)
    verdict = assert_inconclusive("reclaimed-in-time", history, "lagged 2.500000 s", "1 late")
    assert verdict.evidence["late"] == 1


def test_a_lag_of_exactly_the_bound_still_judges() -> None:
    assert_fails("reclaimed-in-time", _reclaimed(36).history(healed=20, lag=2), "11.000000 s late")


def test_reclaims_in_time_on_a_starved_machine_pass() -> None:
    assert_passes("reclaimed-in-time", _reclaimed(26).history(healed=20, lag=2.5))
