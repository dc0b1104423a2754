"""`progress`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

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
    verdict = assert_inconclusive(
        "progress", history, "before the bound at 12:00:35", "1 task left"
    )
    assert verdict.evidence["left"] == 1


def test_a_run_that_ends_early_with_nothing_left_passes() -> None:
    assert_passes("progress", _done().history(healed=20, progress_bound=15, ended=25))


def test_a_task_left_running_on_an_expired_lease_is_told() -> None:
    story = _done().enqueue(2).claim(2, by="w2", at=29.999, lease=5)
    assert_fails("progress", story.history(), "task 2", "lease of w2/2", "expired at 12:00:34.999")


def test_a_lease_that_expires_at_the_bound_may_lie_there() -> None:
    assert_passes("progress", _done().enqueue(2).claim(2, at=30, lease=5).history())


def test_a_task_settled_at_the_moment_of_heal_is_not_counted_as_after_it() -> None:
    verdict = assert_passes("progress", _done().history(healed=22))
    assert verdict.evidence["settled_after_heal"] == 0


def test_a_task_that_runs_on_a_valid_lease_is_progress() -> None:
    assert_passes("progress", _done().enqueue(2).claim(2, at=36).history())


def test_work_left_by_a_starved_machine_is_inconclusive() -> None:
    story = _done().enqueue(2)
    assert_inconclusive("progress", story.history(lag=15.1), "lagged 15.100000 s", "1 task left")
    assert_fails("progress", story.history(lag=15, ended=50), "task 2")


def test_the_bound_grows_by_the_lag_of_the_machine() -> None:
    story = _done().enqueue(2, due=3)
    assert_fails("progress", story.history(lag=2, ended=37), "task 2")
    assert_inconclusive("progress", story.history(lag=2, ended=36.999999), "bound at 12:00:37")


def test_the_lag_is_time_to_do_what_fell_due_before_the_bound_and_no_more_work() -> None:
    story = _done().enqueue(2, due=35)
    assert_passes("progress", story.history(lag=2, ended=40))


def test_a_starved_machine_that_left_nothing_passes() -> None:
    assert_passes("progress", _done().history(lag=99))


def test_a_history_in_which_nothing_settled_shows_nothing() -> None:
    assert_inconclusive("progress", Story().enqueue(1, due=99).history(), "no task was settled")


def test_the_waits_are_told_as_a_distribution() -> None:
    story = Story().enqueue(*range(100), due=0)
    for task in range(100):
        story.claim(task, at=task / 1000).complete(task, at=1)
    verdict = assert_passes("progress", story.history(), judged=100)
    assert verdict.evidence["wait_p50_ms"] == 49
    assert verdict.evidence["wait_p99_ms"] == 98
    assert verdict.evidence["wait_max_ms"] == 99


# Workers that end by themselves.


def _died(detail: str, at: float = 5) -> Story:
    """A worker that had worked ended, and the work was done all the same."""
    return _done().ran(1, 2, 3).fault("death", "death", at=at, detail=detail)


def test_a_worker_that_crashed_is_told() -> None:
    history = _died("1").history()
    verdict = assert_fails("progress", history, "worker w1 crashed: ended with 1")
    assert verdict.failures[0].task is None
    assert verdict.evidence["deaths"] == 1
    assert failing(history) == {"progress"}
    assert_fails("progress", _died("-11").history(), "worker w1 crashed: ended with -11")
    assert_fails("progress", _died("would not stop").history(), "w1 crashed: would not stop")
    assert_fails("progress", _died("1", at=45).history(), "w1 crashed")


def test_a_worker_that_a_task_killed_did_not_crash() -> None:
    assert assert_passes("progress", _died("-9").history()).evidence["deaths"] == 1


def test_a_worker_whose_task_kept_the_interpreter_to_the_end_could_not_be_told_to_stop() -> None:
    story = _died("would not stop").enqueue(2, kind="hog").claim(2, by="w1", at=3, lease=99)
    story.note("started", 2, 3)
    assert_fails("progress", story.history(), "w1 crashed: would not stop")
    story.fault("hog", "inject", target="1 tasks", at=0)
    assert failing(story.history()) == set()
    story.note("finished", 2, 4)
    assert_fails("progress", story.history(), "w1 crashed: would not stop")


def test_a_crash_is_told_whatever_the_machine_and_beside_what_is_left() -> None:
    starved = _died("1").enqueue(2).history(lag=99)
    assert_fails("progress", starved, "worker w1 crashed")
    verdict = assert_fails("progress", _died("1").enqueue(2).history(), "crashed", times=2)
    assert "task 2" in verdict.failures[1].sentence


def test_a_worker_that_crashed_while_the_database_was_away_is_told_if_it_had_been_at_work() -> None:
    story = _died("1").fault("crash", "inject", target="server", at=4)
    story.fault("crash", "heal", target="server", at=6)
    assert_fails("progress", story.history(), "worker w1 crashed")


@pytest.mark.parametrize(
    ("target", "inject", "heal", "crashed"),
    [
        ("server", 6, 7, False),
        ("server", 1, 4.999999, True),
        ("server", 1, 5, False),
        ("server", 10, 11, True),
        ("w2 w9", 6, 7, False),
        ("w2", 6, 7, True),
        ("3 tasks", 6, 7, True),
        ("nobody", 6, 7, True),
    ],
)
def test_a_worker_that_could_not_come_up_for_a_fault_did_not_crash(
    target: str, inject: float, heal: float, crashed: bool
) -> None:
    story = _done().fault("death", "death", target="w9", at=10, detail="1")
    story.fault("crash", "inject", target=target, at=inject)
    history = story.fault("crash", "heal", target=target, at=heal).history()
    if crashed:
        assert_fails("progress", history, "worker w9 crashed: ended with 1")
    else:
        assert_passes("progress", history)


def test_a_worker_that_was_told_to_stop_before_it_came_up_did_not_crash() -> None:
    story = _done().fault("death", "death", target="w9", at=10, detail="-15")
    assert_fails("progress", story.history(ended=40), "w9 crashed")
    story.fault("terminate", "inject", target="w9", at=9)
    assert_passes("progress", story.history(ended=40))
    story = _done().fault("death", "death", target="w9", at=40, detail="-15")
    assert_passes("progress", story.history(ended=40))


def test_what_was_enqueued_after_the_end_may_wait() -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    assert_fails("progress", story.enqueue(2, at=39.9, due=30).history(), "task 2")
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    assert_passes("progress", story.enqueue(2, at=40.1, due=30).history(), judged=1)


def _locked(due: float, claimed: float | None, other: float | None = None) -> Story:
    """A session holds rows from 10 to 20; one task falls due, and another may be claimed."""
    story = Story().enqueue(1, at=due, due=due).enqueue(2, at=1)
    if other is not None:
        story.claim(2, at=other).complete(2, at=other + 0.1)
    else:
        story.claim(2, at=1).complete(2, at=1.1)
    claimed = 20.5 if claimed is None else claimed
    story.claim(1, at=claimed).complete(1, at=claimed + 0.1)
    story.fault("row-lock", "inject", "bite", target="server", at=10)
    return story.fault("row-lock", "heal", target="server", at=20)


def test_all_claims_behind_a_row_that_somebody_locked_are_no_progress() -> None:
    history = _locked(due=12, claimed=None).history()
    assert_fails("progress", history, "task 1: was due and nothing was claimed", "1 task waited")


@pytest.mark.parametrize(
    ("due", "claimed", "other"),
    [(12, 13, None), (12, None, 16), (9, None, None), (10.1, None, None), (19.5, None, None)],
    ids=["claimed", "another claimed", "before it", "as it was put", "a moment only"],
)
def test_what_a_session_may_hold_or_a_moment_s_wait_is_no_standstill(
    due: float, claimed: float | None, other: float | None
) -> None:
    assert_passes("progress", _locked(due, claimed, other).history())
