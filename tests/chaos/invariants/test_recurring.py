"""`occurrence-once`: good stories, bad ones, and near misses.

The schedule of these stories is due every second. The bound is two seconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.history.events import History, Occurrence, Recurrence
from tests.chaos.invariants.build import (
    RULES,
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
    us,
)

POLICIES = ("skip", "once", "all")


def ticking(
    story: Story, missed: str = "skip", *, every: float = 1, ended: float, **others: Any
) -> History:
    """The history of one schedule, whose run ends so soon that nothing is late then."""
    rules = replace(RULES, schedules={"tick": Recurrence(round(every * 1e6), missed)})
    return story.history(rules=rules, ended=ended, **others)


def ticks(*due: float, late: float = 0.1, took: float = 0.3) -> Story:
    """Tasks 1, 2, … that are due then, planned `late` and done after `took` seconds."""
    story = Story()
    for task, at in enumerate(due, 1):
        story.plan(task, at + late, at).run(task, at + late, at + late + took)
    return story


@pytest.mark.parametrize("missed", POLICIES)
def test_one_run_after_the_other_passes(missed: str) -> None:
    verdict = assert_passes("occurrence-once", ticking(ticks(1, 2, 3), missed, ended=5), judged=3)
    assert verdict.evidence["passed_over"] == 0
    assert verdict.evidence["settled"] == 3
    assert verdict.evidence["delay_max_ms"] == 100


def test_a_run_may_wait_or_run_at_the_end() -> None:
    for story in (ticks(1, 2).plan(3, 3.1, 3), ticks(1, 2).plan(3, 3.1, 3).claim(3, at=3.2)):
        assert_passes("occurrence-once", ticking(story, ended=3.5), judged=3)


def test_two_tasks_of_one_occurrence_are_told() -> None:
    history = ticking(ticks(1, 2).plan(3, 2.5, 2), ended=3)
    assert_fails(
        "occurrence-once",
        history,
        "task 3: was planned at 12:00:02.500000 as the run of schedule tick that is due at"
        " 12:00:02.000000, which task 2 is already",
    )
    assert failing(history) == {"occurrence-once"}


def test_a_run_that_is_planned_before_its_time_is_told() -> None:
    assert_passes("occurrence-once", ticking(ticks(1, 2).plan(3, 3, 3), ended=3))
    history = ticking(ticks(1, 2).plan(3, 2.999999, 3), ended=3)
    assert_fails("occurrence-once", history, "task 3", "0.000001 s before that")


def test_a_run_beside_the_grid_is_told() -> None:
    history = ticking(ticks(1, 2).plan(3, 3.5, 3.25), ended=4)
    assert_fails("occurrence-once", history, "task 3", "which is no multiple of 1.000000 s")


def test_two_runs_of_a_schedule_at_once_are_told() -> None:
    history = ticking(ticks(1).plan(2, 2.1, 2).plan(3, 3.1, 3), ended=4)
    assert_fails("occurrence-once", history, "task 3", "while task 2 of it still lived")
    story = ticks(1).plan(2, 2.1, 2).claim(2, at=2.2).plan(3, 3.1, 3).complete(2, at=3.2)
    history = ticking(story, ended=4)
    assert_fails("occurrence-once", history, "task 3", "while task 2 of it still lived")
    other = ticks(1).plan(2, 2.1, 2).plan(3, 3.1, 3, name="other")
    assert_passes("occurrence-once", ticking(other, ended=4))


def test_a_run_that_is_older_than_the_last_is_told() -> None:
    history = ticking(ticks(3, 4).plan(3, 4.5, 2), ended=5)
    assert_fails("occurrence-once", history, "task 3", "after task 2, due at 12:00:04")


# What is missed


@pytest.mark.parametrize("missed", POLICIES)
def test_what_falls_due_during_a_run_is_passed_over_unless_all_are_wanted(missed: str) -> None:
    story = ticks(1).plan(2, 2.1, 2).run(2, at=2.1, over=5.5).plan(3, 5.6, 5)
    history = ticking(story.run(3, 5.6, 5.7), missed, ended=6)
    if missed == "all":
        assert_fails(
            "occurrence-once",
            history,
            "task 3: is the run of schedule tick that is due at 12:00:05.000000, and the run before"
            " it is task 2, due at 12:00:02.000000: the one due at 12:00:03.000000 was left out",
        )
    else:
        verdict = assert_passes("occurrence-once", history)
        assert verdict.evidence["passed_over"] == 2


def test_all_are_made_up_for_however_late() -> None:
    story = ticks(1).plan(2, 2.1, 2).run(2, at=2.1, over=9)
    for task in range(3, 10):
        story.plan(task, 9 + task / 20, task).run(task, 9 + task / 20, 9.01 + task / 20)
    assert_passes("occurrence-once", ticking(story, "all", ended=9.9), judged=9)


def test_an_old_run_is_passed_over_once_a_later_one_is_due() -> None:
    def made_up(late: float) -> Story:
        story = ticks(1).plan(2, 2.1, 2).run(2, at=2.1, over=3 + late - 0.1)
        return story.plan(3, 3 + late, 3)

    for missed in ("skip", "once"):
        assert_passes("occurrence-once", ticking(made_up(2.9), missed, ended=6))
        history = ticking(made_up(3), missed, ended=6)
        assert_fails("occurrence-once", history, "task 3", f"passed over ({missed})")
        # What the machine lagged lies between the statement and its commit.
        assert_passes("occurrence-once", ticking(made_up(3), missed, ended=6, lag=0.1))
    assert_passes("occurrence-once", ticking(made_up(3), "all", ended=6))


def test_skip_leaves_out_what_is_more_than_a_minute_late() -> None:
    def hourly(late: float) -> Story:
        hour = 3600
        return ticks(0, hour).plan(3, 2 * hour + late, 2 * hour)

    def judge(late: float, missed: str) -> History:
        story = hourly(late).fault("outage", "inject", target="server", at=7200)
        story.fault("outage", "heal", target="server", at=7200 + late - 1)
        return ticking(story, missed, every=3600, ended=7200 + late)

    assert_passes("occurrence-once", judge(61.9, "skip"))
    assert_fails("occurrence-once", judge(62, "skip"), "task 3", "or a minute is over")
    assert_passes("occurrence-once", judge(62, "once"))


# What is left out for nothing


def test_a_schedule_that_is_left_alone_is_told() -> None:
    history = ticking(ticks(1, 2).plan(3, 5.5, 5), ended=6)
    assert_fails(
        "occurrence-once",
        history,
        "task 2: the run of schedule tick that is due at 12:00:03.000000 was left out for nothing:"
        " task 2 before it was over at 12:00:02.400000, and task 3 was planned at 12:00:05.500000:"
        " 2.500000 s without a fault, 2.000000 s are allowed",
    )
    assert_passes("occurrence-once", ticking(ticks(1, 2).plan(3, 5, 5), ended=6))


def test_a_long_run_does_not_leave_its_schedule_alone() -> None:
    story = ticks(1).plan(2, 2.1, 2).run(2, at=2.1, over=12).plan(3, 13.9, 13)
    assert_passes("occurrence-once", ticking(story, ended=14))


def test_a_fault_explains_a_delay_until_it_is_healed_and_the_bound_is_over() -> None:
    def struck(planned: float, *faults: tuple[str, float]) -> History:
        story = ticks(1, 2)
        for action, at in faults:
            story.fault("pause", action, at=at)
        return ticking(story.plan(3, planned, int(planned)), ended=planned + 0.1)

    pause = ("inject", 3.2), ("heal", 6.2)
    assert_passes("occurrence-once", struck(8.2, *pause))
    assert_fails("occurrence-once", struck(8.3, *pause), "task 2", "2.100000 s without a fault")
    assert_passes("occurrence-once", struck(6.9, ("inject", 4.9)))  # a kill
    assert_fails("occurrence-once", struck(7, ("inject", 4.9)), "task 2")
    assert_passes("occurrence-once", struck(6.9, ("death", 4.9)))
    # Too late to have been the cause, or over before.
    assert_fails("occurrence-once", struck(6, ("inject", 5.1)), "2.100000 s without a fault")
    assert_fails("occurrence-once", struck(8, ("inject", 1), ("heal", 2)), "task 2")


def test_tasks_that_are_faults_explain_no_delay() -> None:
    story = ticks(1, 2).fault("flaky", "inject", target="9 tasks", at=4).plan(3, 5.9, 5)
    assert_fails("occurrence-once", ticking(story, ended=6), "task 2")


def test_a_schedule_that_ends_for_nothing_is_told() -> None:
    assert_passes("occurrence-once", ticking(ticks(1, 2), ended=5))
    history = ticking(ticks(1, 2), ended=5.1)
    assert_fails("occurrence-once", history, "and the run ended with nothing planned at 12:00:05.1")


def test_a_schedule_may_stop_at_a_dead_run() -> None:
    story = ticks(1).enqueue(2, at=2.1, max_attempts=1, occurrence=Occurrence("tick", us(2)))
    story.claim(2, at=2.2).fail(2, at=2.3)
    assert_passes("occurrence-once", ticking(story, ended=20))


def test_a_schedule_that_was_never_planned_is_told() -> None:
    story = Story().enqueue(1).cancel(1, at=1)
    history = ticking(story, ended=3.1)
    assert_fails("occurrence-once", history, "schedule tick was never planned until 12:00:03.1")
    none = "no occurrence of a schedule was planned"
    assert_inconclusive("occurrence-once", ticking(story, ended=3), none)
    assert_inconclusive("occurrence-once", story.history(), none)


def test_on_a_starved_machine_a_delay_shows_nothing() -> None:
    story = ticks(1, 2).plan(3, 9.5, 9)
    assert_fails("occurrence-once", ticking(story, ended=10, lag=2), "4.000000 s are allowed")
    history = ticking(story, ended=10, lag=2.1)
    assert_inconclusive("occurrence-once", history, "the machine lagged 2.100000 s")


# Settling


def test_a_run_that_settles_twice_is_told() -> None:
    story = ticks(1, 2).change(2, at=2.5, state="pending").claim(2, at=2.6).complete(2, at=2.7)
    assert_fails(
        "occurrence-once",
        ticking(story, ended=3),
        "task 2: its occurrence was completed already, and completed at 12:00:02.700000",
    )


def test_a_dead_run_may_be_requeued_and_settle_again() -> None:
    story = ticks(1).enqueue(2, at=2.1, max_attempts=1, occurrence=Occurrence("tick", us(2)))
    story.claim(2, at=2.2).fail(2, at=2.3).requeue(2, at=2.4).run(2, at=2.5, over=2.6)
    assert_passes("occurrence-once", ticking(story, ended=4))


def test_a_run_that_becomes_another_is_told() -> None:
    story = ticks(1).plan(2, 2.1, 2).claim(2, at=2.2)
    story.end(2, 2.3, "failed", state="pending", occurrence=Occurrence("tick", us(9)))
    history = ticking(story, ended=3)
    assert_fails("occurrence-once", history, "task 2: became another occurrence")


def test_occurrences_need_no_client() -> None:
    story = ticks(1, 2).enqueue(3, at=2).acknowledged(3, at=2).run(3, at=2, over=3)
    assert "conserved" not in failing(ticking(story, ended=3))


def test_a_schedule_whose_times_are_not_known_is_judged_by_its_order_alone() -> None:
    assert_passes("occurrence-once", ticks(1, 7.25).history(), judged=2)
    assert_fails("occurrence-once", ticks(1, 2).plan(3, 2.5, 2).history(), "task 2 is already")
