"""`no-lost-task`, `legal-steps` and `conserved`: good stories, bad ones, and near misses."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.history.events import Change, Final
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
    us,
)

# no-lost-task


def test_settled_waiting_running_and_pruned_tasks_are_not_lost() -> None:
    story = Story().enqueue(1, 2, 3, 4, 5, max_attempts=1).acknowledged(1, at=0.1)
    story.claim(1, 2, at=1).complete(1, at=2).fail(2, at=2)
    story.cancel(3, at=3).prune(3, at=4)
    story.claim(4, at=38)
    verdict = assert_passes("no-lost-task", story.history(), judged=5)
    assert verdict.evidence["completed"] == 1
    assert verdict.evidence["dead"] == 1
    assert verdict.evidence["pruned"] == 1
    assert verdict.evidence["running"] == 1
    assert verdict.evidence["pending"] == 1


def test_an_acknowledged_task_that_no_commit_inserted_is_lost() -> None:
    story = Story().enqueue(1).acknowledged(1, at=0.1).acknowledged(2, at=0.2)
    assert_fails("no-lost-task", story.history(), "task 2", "acknowledged at 12:00:00.200000")


@pytest.mark.parametrize("state", ["pending", "running", "dead"])
def test_a_task_deleted_before_it_is_final_is_lost(state: str) -> None:
    story = Story().enqueue(1, max_attempts=1)
    if state != "pending":
        story.claim(1, at=1)
    if state == "dead":
        story.fail(1, at=2)
    history = story.prune(1, at=3).history()
    assert_fails("no-lost-task", history, "task 1", "deleted at 12:00:03", state)
    assert_fails("legal-steps", history, "deleted while", state)
    assert_fails("conserved", history, "deleted while", state)


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_final_task_may_be_pruned(state: str) -> None:
    story = Story().enqueue(1, max_attempts=1)
    if state == "completed":
        story.claim(1, at=1).complete(1, at=2)
    elif state == "cancelled":
        story.cancel(1, at=2)
    else:
        story.claim(1, at=1).fail(1, at=2).discard(1, at=3)
    assert failing(story.prune(1, at=4).history()) == set()


def test_a_task_that_the_final_look_misses_has_vanished() -> None:
    story = Story().enqueue(1, 2)
    finals = story.finals()
    del finals[2]
    history = story.history(finals=finals)
    assert_fails("no-lost-task", history, "task 2", "vanished", "pending")
    assert_fails("conserved", history, "task 2", "was not found at the end")


def test_without_a_final_look_nothing_can_have_vanished() -> None:
    assert_passes("no-lost-task", Story().enqueue(1).history(finals={}))


def test_a_task_that_ends_in_an_unknown_state_is_lost() -> None:
    history = Story().enqueue(1).change(1, at=1, state="limbo").history()
    assert_fails("no-lost-task", history, "task 1", "unknown state 'limbo'")
    assert_fails("conserved", history, "task 1", "'limbo', a state that nothing counts")


def test_a_lease_expired_for_exactly_the_bound_is_not_stuck() -> None:
    story = Story().enqueue(1).claim(1, at=33, lease=5)
    assert_passes("no-lost-task", story.history(ended=40, reclaim_bound=2))


def test_a_lease_expired_for_a_microsecond_more_is_stuck() -> None:
    story = Story().enqueue(1).claim(1, at=33, lease=5)
    history = story.history(ended=40.000001, reclaim_bound=2)
    assert_fails("no-lost-task", history, "task 1", "stuck", "w1/1", "expired at 12:00:38.000000")


def test_an_expired_lease_has_the_bound_from_heal_to_be_taken_back() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    assert_passes("no-lost-task", story.history(healed=39, ended=40, reclaim_bound=2))


def test_a_running_task_without_an_expiry_is_stuck_for_ever() -> None:
    history = Story().enqueue(1).claim(1, at=39, expires=None).history()
    assert_fails("no-lost-task", history, "no expiry")


def test_the_time_to_take_a_lease_back_grows_by_the_lag_of_the_machine() -> None:
    story = Story().enqueue(1).claim(1, at=32, lease=5)
    assert_passes("no-lost-task", story.history(ended=40, reclaim_bound=2, lag=1))
    history = story.history(ended=40.000001, reclaim_bound=2, lag=1)
    assert_fails("no-lost-task", history, "stuck")


def test_a_stuck_task_on_a_starved_machine_is_inconclusive() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    assert_inconclusive("no-lost-task", story.history(lag=3), "lagged 3.000000 s", "1 expired")
    assert_fails("no-lost-task", story.history(lag=2), "stuck")


def test_a_lost_task_on_a_starved_machine_is_still_lost() -> None:
    story = Story().enqueue(1).claim(1, at=1).acknowledged(2, at=0)
    assert_fails("no-lost-task", story.history(lag=3), "task 2")


def test_an_empty_history_shows_nothing() -> None:
    history = Story().history()
    assert_inconclusive("no-lost-task", history, "no task was enqueued")
    assert_inconclusive("legal-steps", history, "no task changed")
    assert_inconclusive("conserved", history, "no task changed")


# legal-steps


def test_every_step_of_the_table_is_legal() -> None:
    story = Story().enqueue(*range(1, 8), max_attempts=2)
    story.claim(1, 2, 3, at=1).renew(1, at=2).complete(1, at=3)
    story.fail(2, at=3).release(3, at=3)
    story.claim(2, 3, at=4).reclaim(2, at=9).snooze(3, at=9, due=10)
    story.requeue(2, at=10).claim(2, at=11).fail(2, at=12).claim(2, at=13).fail(2, at=14)
    story.discard(2, at=15)
    story.claim(4, at=5).cancel(4, at=6).cancel(5, at=6)
    story.claim(6, at=7).reclaim(6, at=12)
    assert_passes("legal-steps", story.history(), judged=len(story.commits) + 3)


@pytest.mark.parametrize(
    ("plant", "parts"),
    [
        (lambda s: s.change(1, at=1, error="edited"), ["pending to pending", "no outcome"]),
        (lambda s: s.change(1, at=1, state="completed"), ["pending to completed"]),
        (lambda s: s.change(1, at=1, state="limbo"), ["pending to limbo"]),
        (
            lambda s: s.claim(1, at=1).release(1, at=2, state="dead"),
            ["running to dead", "released"],
        ),
        (
            lambda s: s.claim(1, at=1).change(1, at=2, state="pending", owner=None, expires=None),
            ["running to pending with no outcome logged"],
        ),
        (
            lambda s: s.claim(1, at=1).complete(1, at=2).change(1, at=3, state="pending"),
            ["completed to pending"],
        ),
        (lambda s: s.enqueue(2, state="completed"), ["task 2", "enqueued as completed"]),
        (
            lambda s: s.claim(1, at=1, owner="w1/1", expires=None),
            ["without an owner and an expiry"],
        ),
        (lambda s: s.claim(1, at=1).fail(1, at=2, owner="w1/1"), ["still had an owner"]),
        (lambda s: s.claim(1, at=1).fail(1, at=2, expires=us(6)), ["still had an owner or an"]),
        (lambda s: s.claim(1, at=1).claim(1, by="w2", at=7), ["w2/2", "while it was running"]),
        (
            lambda s: s.cancel(1, at=1).claim(1, at=2),
            ["given token 1 while it was cancelled"],
        ),
        (
            lambda s: s.claim(1, at=1).fail(1, at=2).claim(1, at=3, token=1),
            ["w1/2 was given token 1, which is not a new one"],
        ),
        (lambda s: s.claim(1, at=1).fail(1, at=2, token=1).claim(1, at=3, token=0), ["shrank"]),
    ],
)
def test_an_illegal_step_is_told(plant: Any, parts: list[str]) -> None:
    assert_fails("legal-steps", plant(Story().enqueue(1)).history(), *parts)


def test_a_token_grows_only_by_a_claim() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=2)
    row = story.commits[-1].changes[0].row
    assert row is not None
    story.commits[-1] = story.commits[-1]._replace(changes=(Change(1, row._replace(token=2)),))
    assert_fails("legal-steps", story.history(), "token went from 1 to 2 without a claim")


def test_a_token_that_a_release_lowers_is_illegal() -> None:
    story = Story().enqueue(1).claim(1, at=1).release(1, at=2)
    row = story.commits[-1].changes[0].row
    assert row is not None
    story.commits[-1] = story.commits[-1]._replace(changes=(Change(1, row._replace(token=0)),))
    assert_fails("legal-steps", story.history(), "token shrank from 1 to 0")


def test_a_token_may_skip_numbers() -> None:
    assert_passes("legal-steps", Story().enqueue(1).claim(1, at=1, token=7).history())


# conserved


def test_what_was_enqueued_is_all_accounted_for() -> None:
    story = Story().enqueue(1, 2, 3).claim(1, at=1).complete(1, at=2).prune(1, at=3)
    verdict = assert_passes("conserved", story.history(), judged=6)
    assert verdict.evidence["enqueued"] == 3
    assert verdict.evidence["pruned"] == 1
    assert verdict.evidence["pending"] == 2
    assert verdict.evidence["compared_with_the_end"] == 2


@pytest.mark.parametrize("odd", [{"state": "completed"}, {"attempts": 1}])
def test_a_change_of_a_task_that_was_never_inserted_is_told(odd: dict[str, Any]) -> None:
    history = Story().enqueue(1, **odd).history()
    assert_fails("conserved", history, "task 1", "without having been inserted")


def test_a_deletion_of_a_task_that_was_never_inserted_is_told() -> None:
    history = Story().prune(1, at=1).history()
    assert_fails("conserved", history, "deleted without having been inserted")


def test_a_second_insert_of_a_living_task_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2).enqueue(1, at=3)
    assert_fails("conserved", story.history(), "inserted again while it lived (completed, token 1)")


def test_a_second_insert_after_a_prune_is_a_new_task() -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2).prune(1, at=3).enqueue(1, at=4)
    assert_passes("conserved", story.history(ended=4.5))


@pytest.mark.parametrize("odd", [{"state": "pending"}, {"token": 2}, {"attempts": 0}])
def test_an_end_that_is_not_what_the_commits_left_is_told(odd: dict[str, Any]) -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    finals = {1: story.finals()[1]._replace(**odd)}
    history = story.history(finals=finals)
    assert_fails("conserved", history, "completed with token 1 and 1 attempt,", "was found")
    assert failing(history) == {"conserved"}


def test_a_task_found_at_the_end_that_no_commit_inserted_is_told() -> None:
    finals = {9: Final(9, "pending", 0, 0, None, "digest", "digest")}
    history = Story().history(finals=finals)
    assert_fails("conserved", history, "task 9", "the commits never inserted it")


def test_a_task_found_at_the_end_that_was_deleted_is_told() -> None:
    story = Story().enqueue(1).cancel(1, at=1)
    finals = story.finals()
    history = story.prune(1, at=2).history(finals=finals)
    assert_fails("conserved", history, "found cancelled at the end, but the commits deleted it")


def test_a_task_that_nobody_acknowledged_is_one_that_nobody_enqueued() -> None:
    story = Story().enqueue(1, 2, 3, due=99).acknowledged(1, at=1)
    history = story.history()
    verdict = assert_fails("conserved", history, "nobody enqueued 2 tasks of those that", ": 2, 3")
    assert verdict.evidence["unacknowledged"] == 2
    assert failing(history) == {"conserved"}
    assert_fails("conserved", story.history(unknown=1), "nobody enqueued 1 task of")


def test_enqueues_of_unknown_outcome_may_have_left_tasks() -> None:
    story = Story().enqueue(1, 2, 3, due=99).acknowledged(1, at=1)
    verdict = assert_passes("conserved", story.history(unknown=2))
    assert verdict.evidence["unacknowledged"] == 2
    story.acknowledged(2, 3, at=1)
    assert assert_passes("conserved", story.history()).evidence["unacknowledged"] == 0


def test_without_acknowledgements_or_a_final_look_nobody_knows_what_was_enqueued() -> None:
    verdict = assert_passes("conserved", Story().enqueue(1, 2).history())
    assert "unacknowledged" not in verdict.evidence
    story = Story().enqueue(1, 2).acknowledged(1, at=1)
    assert_passes("conserved", story.history(finals={}))


def test_an_acknowledged_task_that_is_lost_makes_no_room_for_another() -> None:
    story = Story().enqueue(1, 2, due=99).acknowledged(1, 3, at=1)
    assert failing(story.history()) == {"no-lost-task", "conserved"}
