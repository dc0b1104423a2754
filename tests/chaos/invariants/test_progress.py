"""`progress`: good stories, bad ones, and near misses."""

from __future__ import annotations

from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)


def _done() -> Story:
    return Story().enqueue(1, due=1).claim(1, at=1.5).complete(1, at=22)


def test_everything_settled_is_progress() -> None:
    story = _done().enqueue(2, due=2).cancel(2, at=3).enqueue(3).cancel(3, at=4).prune(3, at=5)
    verdict = assert_passes("progress", story.history(), judged=3)
    assert verdict.evidence["settled_after_heal"] == 1
    assert verdict.evidence["wait_max_ms"] == 500


def test_a_task_that_fell_due_a_microsecond_before_the_bound_must_be_done() -> None:
    story = _done().enqueue(2, due=34.999999)
    history = story.history(healed=20, progress_bound=15, ended=40)
    assert_fails("progress", history, "task 2: was due at 12:00:34.999999", "still pending")
    assert failing(history) == {"progress"}


def test_a_task_that_falls_due_at_the_bound_may_wait() -> None:
    story = _done().enqueue(2, due=35)
    assert_passes("progress", story.history(healed=20, progress_bound=15, ended=40), judged=1)


def test_a_run_that_ends_exactly_at_the_bound_is_judged() -> None:
    story = _done().enqueue(2, due=3)
    assert_fails("progress", story.history(healed=20, progress_bound=15, ended=35), "task 2")


def test_a_run_that_ends_before_the_bound_is_inconclusive_if_work_is_left() -> None:
    story = _done().enqueue(2, due=3)
    history = story.history(healed=20, progress_bound=15, ended=34.999999)
    verdict = assert_inconclusive("progress", history, "before the bound at 12:00:35", "1 tasks")
    assert verdict.evidence["left"] == 1


def test_a_run_that_ends_early_with_nothing_left_passes() -> None:
    assert_passes("progress", _done().history(healed=20, progress_bound=15, ended=25))


def test_a_task_left_running_on_an_expired_lease_is_told() -> None:
    story = _done().enqueue(2).claim(2, by="w2", at=29.999, lease=5)
    assert_fails("progress", story.history(), "task 2", "lease of w2#2", "expired at 12:00:34.999")


def test_a_lease_that_expires_at_the_bound_may_lie_there() -> None:
    assert_passes("progress", _done().enqueue(2).claim(2, at=30, lease=5).history())


def test_a_task_settled_at_the_moment_of_heal_is_not_counted_as_after_it() -> None:
    verdict = assert_passes("progress", _done().history(healed=22))
    assert verdict.evidence["settled_after_heal"] == 0


def test_a_task_that_runs_on_a_valid_lease_is_progress() -> None:
    assert_passes("progress", _done().enqueue(2).claim(2, at=36).history())


def test_work_left_by_a_starved_machine_is_inconclusive() -> None:
    story = _done().enqueue(2)
    assert_inconclusive("progress", story.history(lag=15.1), "lagged 15.100000 s", "1 tasks")
    assert_fails("progress", story.history(lag=15), "task 2")


def test_a_starved_machine_that_left_nothing_passes() -> None:
    assert_passes("progress", _done().history(lag=99))


def test_a_history_in_which_nothing_settled_shows_nothing() -> None:
    assert_inconclusive("progress", Story().enqueue(1, due=99).history(), "nothing of its kind")


def test_the_waits_are_told_as_a_distribution() -> None:
    story = Story().enqueue(*range(100), due=0)
    for task in range(100):
        story.claim(task, at=task / 1000).complete(task, at=1)
    verdict = assert_passes("progress", story.history(), judged=100)
    assert verdict.evidence["wait_p50_ms"] == 49
    assert verdict.evidence["wait_p99_ms"] == 98
    assert verdict.evidence["wait_max_ms"] == 99
