"""`effect-once` and `explained-duplicate`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

from chaos.history.events import Effect
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)

# effect-once


def _charged() -> Story:
    """A task of a transactional kind that completed with its effect."""
    return Story().enqueue(1, 2, kind="charge").claim(1, at=1).complete(1, at=2, effect=True)


def test_an_effect_with_its_completion_is_once() -> None:
    story = _charged().claim(2, at=3).fail(2, at=4).claim(2, at=5).complete(2, at=6, effect=True)
    verdict = assert_passes("effect-once", story.history(), judged=2)
    assert verdict.evidence["completions"] == 2


def test_a_completion_without_the_effect_of_its_kind_is_told() -> None:
    story = _charged().claim(2, at=3).complete(2, at=4)
    history = story.history()
    assert_fails("effect-once", history, "task 2", "completed at 12:00:04", "without its effect")
    assert failing(history) == {"effect-once"}


def test_a_completion_that_nobody_logged_needs_its_effect_too() -> None:
    story = _charged().claim(2, at=3).change(2, at=4, state="completed")
    assert_fails("effect-once", story.history(), "task 2", "without its effect")


def test_a_change_of_a_completed_task_is_not_another_completion() -> None:
    assert_passes("effect-once", _charged().change(1, at=4, error="edited").history())


def test_a_kind_without_effects_needs_none() -> None:
    story = _charged().enqueue(3, kind="plain").claim(3, at=3).complete(3, at=4)
    assert_passes("effect-once", story.history())


def test_a_task_of_the_kind_that_does_not_complete_needs_none() -> None:
    assert_passes("effect-once", _charged().cancel(2, at=3).history())


def test_an_effect_committed_before_its_completion_is_told() -> None:
    story = Story().enqueue(1, kind="charge").claim(1, at=1).effect(1, at=2).complete(1, at=3)
    verdict = assert_fails("effect-once", story.history(), "apart from any completion", times=2)
    assert "without its effect" in verdict.failures[1].sentence


def test_an_effect_with_a_failure_is_told() -> None:
    story = _charged().claim(2, at=3)
    commits = story.fail(2, at=4).commits
    commits[-1] = commits[-1]._replace(effects=(Effect(2, 1),))
    assert_fails("effect-once", story.history(), "task 2", "token 1", "apart from any completion")


def test_an_effect_with_another_token_than_the_row_is_told() -> None:
    story = _charged().claim(2, at=3).reclaim(2, at=8).claim(2, by="w2", at=9)
    commits = story.complete(2, at=10, effect=True).commits
    commits[-1] = commits[-1]._replace(effects=(Effect(2, 1),))
    assert_fails("effect-once", story.history(), "written with token 1", "completion of token 2")


def test_two_effects_in_one_completion_are_told() -> None:
    story = _charged()
    story.commits[-1] = story.commits[-1]._replace(effects=(Effect(1, 1), Effect(1, 1)))
    assert_fails("effect-once", story.history(), "committed again with token 1")


def test_two_completions_with_an_effect_each_are_told() -> None:
    story = _charged().change(1, at=3, state="pending").claim(1, at=4)
    history = story.complete(1, at=5, effect=True).history()
    assert_fails("effect-once", history, "committed again with token 2", "after token 1")


def test_a_requeue_allows_one_more_effect() -> None:
    story = _charged().change(1, at=3, state="dead", error="by hand").requeue(1, at=4)
    history = story.claim(1, at=5).complete(1, at=6, effect=True).history()
    assert_passes("effect-once", history, judged=2)


def test_an_effect_of_a_task_that_no_commit_inserted_is_told() -> None:
    story = Story().commit(1, effects=[Effect(9, 1)])
    assert_fails("effect-once", story.history(), "task 9", "apart from any completion")


@pytest.mark.parametrize("invariant", ["effect-once", "explained-duplicate"])
def test_a_history_without_effects_shows_nothing(invariant: str) -> None:
    history = Story().enqueue(1).claim(1, at=1).complete(1, at=2).history()
    assert_inconclusive(invariant, history, "nothing of its kind")


# explained-duplicate


def test_one_effect_of_a_completed_task_needs_no_explanation() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).complete(1, at=3)
    verdict = assert_passes("explained-duplicate", story.history(), judged=1)
    assert verdict.evidence["duplicates_explained"] == 0


@pytest.mark.parametrize("how", ["fail", "snooze", "reclaim", "zombie"])
def test_an_extra_effect_of_an_attempt_that_did_not_complete_is_explained(how: str) -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    if how == "fail":
        story.fail(1, at=3)
    elif how == "snooze":
        story.snooze(1, at=3, due=3)
    else:
        story.reclaim(1, at=6)
    story.claim(1, by="w2", at=7).note("effect", 1, 8).complete(1, at=9)
    if how == "zombie":
        story.notes[0] = story.notes[0]._replace(at=story.notes[1].at + 1)
    verdict = assert_passes("explained-duplicate", story.history(), judged=2)
    assert verdict.evidence["duplicates_explained"] == 1


def test_the_same_token_twice_is_never_explained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.note("effect", 1, 3).reclaim(1, at=6).claim(1, by="w2", at=7).note("effect", 1, 8)
    history = story.complete(1, at=9).history()
    verdict = assert_fails("explained-duplicate", history, "w1#1 with token 1", "effect 2 times")
    assert verdict.evidence["duplicates_explained"] == 1
    assert failing(history) == {"explained-duplicate"}


def test_an_effect_of_an_attempt_without_an_end_is_unexplained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.change(1, at=3, state="pending", owner=None, expires=None)
    story.claim(1, by="w2", at=7).note("effect", 1, 8).complete(1, at=9)
    verdict = assert_fails(
        "explained-duplicate", story.history(), "the effect of w1#1 with token 1 is an extra one"
    )
    assert verdict.evidence["duplicates_explained"] == 0


def test_a_single_effect_is_no_extra_one() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2, token=5)
    assert_passes("explained-duplicate", story.complete(1, at=3).history())


def test_an_effect_of_an_attempt_that_no_commit_knows_is_unexplained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.note("effect", 1, 2, token=5).complete(1, at=3)
    assert_fails("explained-duplicate", story.history(), "nobody with token 5")


def test_the_effect_of_an_earlier_completion_is_unexplained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.end(1, 3, "completed", state="pending").claim(1, at=5).note("effect", 1, 6)
    history = story.complete(1, at=7).history()
    assert_fails("explained-duplicate", history, "the effect of w1#1 with token 1 is an extra")


def test_the_effect_of_a_completion_that_was_requeued_afterwards_is_explained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).complete(1, at=3)
    story.change(1, at=4, state="pending").claim(1, at=5).note("effect", 1, 6).complete(1, at=7)
    assert_passes("explained-duplicate", story.history())


def test_a_completed_task_whose_effect_never_happened_is_told() -> None:
    story = Story().enqueue(1, 2, kind="mail").claim(1, 2, at=1).note("effect", 1, 2)
    history = story.complete(1, at=3).complete(2, at=3).history()
    assert_fails("explained-duplicate", history, "task 2", "its effect never happened")


def test_a_completed_task_of_another_kind_needs_no_effect() -> None:
    story = Story().enqueue(1, kind="mail").enqueue(2).claim(1, 2, at=1).note("effect", 1, 2)
    assert_passes("explained-duplicate", story.complete(1, at=3).complete(2, at=3).history())


def test_the_effect_of_an_attempt_that_still_runs_is_not_an_unexplained_extra() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).reclaim(1, at=6)
    story.claim(1, by="w2", at=38).note("effect", 1, 39)
    assert_passes("explained-duplicate", story.history())


def test_an_effect_of_an_attempt_that_lost_its_lease_to_a_claim_is_explained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.claim(1, by="w2", at=7).note("effect", 1, 8).complete(1, at=9)
    assert_passes("explained-duplicate", story.history())
