"""`claim-bounded` and `not-early`: good stories, bad ones, and near misses."""

from __future__ import annotations

from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)

# claim-bounded


def test_a_claim_of_exactly_the_limit_is_bounded() -> None:
    verdict = assert_passes(
        "claim-bounded", Story().enqueue(1, 2, 3).claim(1, 2, 3, at=1).history()
    )
    assert verdict.evidence["largest_claim"] == 3
    assert verdict.evidence["rows"] == 3


def test_a_claim_of_one_more_than_the_limit_is_not() -> None:
    history = Story().enqueue(1, 2, 3, 4).claim(1, 2, 3, 4, at=39).history()
    assert_fails("claim-bounded", history, "task 4", "w1/1 was limited to 3 rows")
    assert failing(history) == {"claim-bounded"}


def test_two_claims_of_one_worker_count_apart() -> None:
    story = Story().enqueue(1, 2, 3, 4).claim(1, 2, at=1).claim(3, 4, at=1)
    assert_passes("claim-bounded", story.history(), judged=2)


def test_a_claim_that_takes_a_row_twice_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=1, owner="w1/1").fail(1, at=2)
    story.claim(1, at=3, owner="w1/1")
    assert_fails("claim-bounded", story.history(), "task 1", "the claim w1/1 took it twice")


def test_a_claim_spread_over_two_commits_is_told() -> None:
    story = Story().enqueue(1, 2).claim(1, at=1, owner="w1/1").claim(2, at=1, owner="w1/1")
    assert_fails("claim-bounded", story.history(), "task 2", "commit 4", "task 1 in commit 3")


def test_a_history_without_claims_shows_nothing() -> None:
    history = Story().enqueue(1).history()
    assert_inconclusive("claim-bounded", history, "no claim took a row")
    assert_inconclusive("not-early", history, "no task was claimed")


# not-early


def test_a_claim_at_the_due_time_is_not_early() -> None:
    assert_passes("not-early", Story().enqueue(1, due=5).claim(1, at=5).history(), judged=1)


def test_a_claim_a_microsecond_before_the_due_time_is_early() -> None:
    history = Story().enqueue(1, due=35).claim(1, at=34.999999, lease=9).history()
    assert_fails("not-early", history, "w1/1 claimed it at 12:00:34.999999", "0.000001 s before")
    assert_fails("legal-steps", history, "0.000001 s before it was due")
    assert failing(history) == {"not-early", "legal-steps"}


def test_a_retry_claimed_before_its_new_due_time_is_early() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=2, due=10).claim(1, at=9.5)
    assert_fails("not-early", story.history(), "before it was due at 12:00:10")


def test_a_claim_without_a_time_is_not_judged() -> None:
    history = Story().enqueue(1, due=5).claim(1, at=1, claimed_at=None).history()
    assert_inconclusive("not-early", history, "no task was claimed at a time that is known")


def _ordered(due: float | None) -> Story:
    """A task that its client ordered for `due`, enqueued as due at 5."""
    return Story().enqueue(1, due=5).acknowledged(1, at=0, due=due).claim(1, at=5)


def test_a_task_that_is_due_no_earlier_than_ordered_is_not_early() -> None:
    for due in (5, 4.9):
        verdict = assert_passes("not-early", _ordered(due).history(), judged=1)
        assert verdict.evidence["orders"] == 1


def test_a_task_that_is_due_a_microsecond_before_it_was_ordered_for_is_early() -> None:
    history = _ordered(5.000001).complete(1, at=6).history()
    assert_fails(
        "not-early",
        history,
        "task 1: was ordered for 12:00:05.000001 but was enqueued as due at 12:00:05.000000",
    )
    assert failing(history) == {"not-early"}


def test_an_order_is_compared_with_the_first_due_time_only() -> None:
    story = _ordered(5).fail(1, at=6, due=4).acknowledged(2, at=0, due=9)
    assert_passes("not-early", story.history(), judged=1)


def test_an_order_whose_time_is_not_known_is_not_compared() -> None:
    verdict = assert_passes("not-early", _ordered(None).history())
    assert verdict.evidence["orders"] == 0
