"""`key-once`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

from chaos.history.events import Change, Key
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)


def in_turn(until: str = "finished") -> Story:
    """Two tasks under one key, the second once the first is over."""
    story = Story().key(1, until=until).run(1, at=1, over=2)
    return story.key(2, at=2, until=until).run(2, at=3, over=4)


def test_a_key_is_free_again_when_its_task_is_over() -> None:
    verdict = assert_passes("key-once", in_turn().history(), judged=2)
    assert verdict.evidence["asked_again"] == 1
    for end in ("cancel", "die"):
        story = Story().key(1, max_attempts=1)
        story = story.cancel(1, at=2) if end == "cancel" else story.claim(1, at=1).fail(1, at=2)
        assert_passes("key-once", story.key(2, at=2).run(2, at=3, over=4).history())


def test_two_waiting_tasks_under_one_key_are_told() -> None:
    history = Story().key(1).key(2, at=1).cancel(1, at=2).cancel(2, at=2).history()
    assert_fails(
        "key-once",
        history,
        "task 2: came to live under the key 'k' of kind plain (until finished) at 12:00:01.000000,"
        " where task 1 lived already",
    )
    assert failing(history) == {"key-once"}


@pytest.mark.parametrize("late", [1.0, 1.5, 2.0])
def test_a_key_that_lasts_until_the_end_is_taken_while_its_task_runs(late: float) -> None:
    story = Story().key(1).claim(1, at=1)
    story = story.key(2, at=late) if late < 2 else story.complete(1, at=2).key(2, at=2)
    if late < 2:
        assert_fails("key-once", story.history(), "task 2", "task 1 lived already")
    else:
        assert_passes("key-once", story.history())


def test_a_key_that_lasts_until_the_start_is_free_after_the_first_claim_for_good() -> None:
    story = Story().key(1, until="started").claim(1, at=1).key(2, at=1, until="started")
    assert_passes("key-once", story.fail(1, at=2).history())  # it waits again, without the key
    story = Story().key(1, until="started").key(2, at=1, until="started")
    assert_fails("key-once", story.history(), "(until started)")


def test_a_key_of_a_period_is_taken_for_ever_unless_its_row_is_gone() -> None:
    assert_fails("key-once", in_turn("period").history(), "task 2", "(until period)")
    story = Story().key(1, until="period").run(1, at=1, over=2).prune(1, at=3)
    assert_passes("key-once", story.key(2, at=4, until="period").history())
    story = Story().key(1, key="k@60/1", until="period").key(2, key="k@60/2", until="period")
    assert_inconclusive("key-once", story.history(), "no key was asked for twice")


def test_other_kinds_keys_and_scopes_are_others() -> None:
    story = in_turn().key(3, kind="other").key(4, key="other").key(5, until="started")
    assert_passes("key-once", story.history(), judged=5)


def test_a_key_may_change_hands_within_one_commit() -> None:
    story = Story().key(1)
    first = story.rows[1]
    new = first._replace(task=2)
    both = [Change(2, new), Change(1, first._replace(state="cancelled"))]
    assert_passes("key-once", story.commit(1, changes=both).history())


def test_a_requeued_task_takes_its_key_again() -> None:
    story = Story().key(1, max_attempts=1).claim(1, at=1).fail(1, at=2).key(2, at=3)
    history = story.requeue(1, at=4).history()
    assert_fails("key-once", history, "task 1: came to live", "where task 2 lived already")
    story = Story().key(1, max_attempts=1).claim(1, at=1).fail(1, at=2).key(2, at=3)
    assert_passes("key-once", story.cancel(2, at=4).requeue(1, at=5).history())


# Asking again changes nothing


def test_a_running_task_that_is_set_back_is_told() -> None:
    story = Story().key(1).claim(1, at=1)
    story.change(1, at=2, state="pending", owner=None, expires=None, claimed_at=None)
    assert_fails(
        "key-once",
        story.history(),
        "task 1: has the key 'k' and was changed from running to pending at 12:00:02.000000,"
        " although no attempt of it began or ended",
    )


@pytest.mark.parametrize(
    "odd",
    [{}, {"due": 5}, {"max_attempts": 9}],
    ids=["payload only", "due time", "attempts"],
)
def test_a_waiting_task_that_is_written_again_is_told(odd: dict[str, int]) -> None:
    assert_fails("key-once", in_turn().key(3, at=5).change(3, at=6, **odd).history(), "task 3")
    # Without a key nobody can have asked for it again.
    other = in_turn().enqueue(3, at=5).change(3, at=6, **odd).history()
    assert_passes("key-once", other)
    assert "legal-steps" in failing(other)


def test_a_running_task_may_be_renewed_and_nothing_else() -> None:
    story = in_turn().key(3, at=5).claim(3, at=5).renew(3, at=6)
    assert_passes("key-once", story.history())
    assert_fails("key-once", story.renew(3, at=7, due=3).history(), "from running to running")


def test_a_finished_task_that_is_revived_is_told() -> None:
    history = in_turn().change(2, at=5, state="pending").history()
    assert_fails("key-once", history, "task 2", "from completed to pending")


def test_every_legal_end_leaves_a_key_in_peace() -> None:
    story = in_turn()
    story.key(3, at=5).claim(3, at=5).snooze(3, at=6, due=7).claim(3, at=7).release(3, at=7.5)
    story.claim(3, at=8).fail(3, at=9, due=10).claim(3, at=10).reclaim(3, at=16).cancel(3, at=17)
    story.key(4, at=18, max_attempts=1).claim(4, at=18).fail(4, at=19).discard(4, at=20)
    assert_passes("key-once", story.history())


def test_a_key_that_changes_is_told() -> None:
    history = in_turn().key(3, at=5).change(3, at=6, key=Key("l", "finished")).history()
    assert_fails("key-once", history, "task 3: its key was changed")


# What clients are told


def test_answers_that_are_true_pass() -> None:
    story = Story().key(1, at=1).told(1, "created", 0.9, 1.1).told(1, "standing", 1, 1.2, who="c2")
    story.run(1, at=2, over=3).key(2, at=4).told(2, "created", 3.9, 4.1)
    verdict = assert_passes("key-once", story.history(), judged=5)
    assert verdict.evidence["told_standing"] == 1


def test_a_task_that_nobody_inserted_cannot_stand() -> None:
    for answer, verb in (("standing", "stands"), ("created", "was created")):
        history = in_turn().told(9, answer, 1, 2).history()
        assert_fails(
            "key-once",
            history,
            f"task 9: c1 was told at 12:00:02.000000 that it {verb} under the key 'k',"
            " but no commit ever inserted it",
        )


def test_a_task_of_another_key_cannot_stand() -> None:
    history = in_turn().told(1, "standing", 0.5, 1, key="other").history()
    assert_fails("key-once", history, "under the key 'other', but it was enqueued under 'k'")
    history = in_turn().enqueue(3).told(3, "standing", 0.5, 1).history()
    assert_fails("key-once", history, "but it was enqueued under None")


def test_a_period_is_part_of_the_key() -> None:
    story = Story().key(1, key="k@60/7", until="period").told(1, "created", -0.1, 0.1)
    assert_passes("key-once", story.told(1, "standing", 5, 6).run(1, 7, 8).history())
    history = story.told(1, "standing", 30, 31).told(1, "standing", 30, 31, key="k@6").history()
    assert_fails("key-once", history, "under the key 'k@6'")


def test_two_calls_cannot_have_created_one_task() -> None:
    story = in_turn().told(1, "created", 0, 1).told(1, "created", 0, 1, who="c2")
    assert_fails("key-once", story.history(), "task 1: 2 calls were told to have created it")


def test_a_task_that_is_over_stands_in_nobodys_way() -> None:
    # Its end was committed at 2; a second for the commit to be seen.
    assert_passes("key-once", in_turn().told(1, "standing", 2.9, 3).history())
    history = in_turn().told(1, "standing", 3.1, 3.2).history()
    assert_fails(
        "key-once",
        history,
        "task 1: c1 was told at 12:00:03.200000 that it stands under the key 'k', but when it was"
        " asked at 12:00:03.100000 it had lost the key at 12:00:02.000000",
    )
    assert_passes("key-once", in_turn().told(1, "standing", 3.1, 3.2).history(lag=0.2))


def test_a_task_that_comes_later_does_not_stand_yet() -> None:
    history = in_turn().key(3, at=9).told(3, "standing", 5, 6).history()
    assert_fails("key-once", history, "but it was enqueued at 12:00:09.000000 only")
    assert_passes("key-once", in_turn().key(3, at=9).told(3, "standing", 5, 9.1).history())


def test_a_requeued_task_stands_again() -> None:
    story = Story().key(1, max_attempts=1).claim(1, at=1).fail(1, at=2)
    story.requeue(1, at=10).claim(1, at=11).fail(1, at=12)
    assert_passes("key-once", story.told(1, "standing", 11, 11.5).history())
    assert_fails("key-once", story.told(1, "standing", 5, 6).history(), "it had lost the key")


def test_without_keys_nothing_is_judged() -> None:
    history = Story().enqueue(1).run(1, at=1, over=2).history()
    assert_inconclusive("key-once", history, "no task was enqueued under a key")


def test_keys_that_nobody_asked_for_twice_show_nothing() -> None:
    history = Story().key(1).key(2, key="l").run(1, at=1, over=2).history()
    assert_inconclusive("key-once", history, "no key was asked for twice")
