"""A failover undoes what was lost, and nothing else: what each invariant then allows, and what not.

Each story fails over at 10 s to a standby that lacks its last commits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.history.lost import lost
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_passes,
    failing,
    verdict_of,
)


def enqueued(*, synchronous: bool = False) -> Story:
    """Task 1 is kept; the enqueue of task 2 is lost."""
    return Story().enqueue(1).enqueue(2, at=5).fail_over(1, at=10, synchronous=synchronous)


def claimed(*, synchronous: bool = False) -> Story:
    """Task 1 is kept; its claim by `w1/1` and the completion are lost. It had its effect."""
    story = Story().enqueue(1).claim(1, at=5).ran(1, 5, 6).note("effect", 1, at=6)
    return story.complete(1, at=6).fail_over(2, at=10, synchronous=synchronous)


def again(story: Story) -> Story:
    """Task 1 is claimed, under the same token, and run by another worker."""
    story.claim(1, by="w2", at=11).ran(1, 11, 12).note("effect", 1, at=12)
    return story.complete(1, at=12)


# What is read off the lost commits.


def test_what_was_lost_is_told_apart() -> None:
    story = Story().enqueue(1).enqueue(2).claim(2, at=3)
    story.enqueue(3, at=5).claim(1, at=5).complete(2, at=6).claim(3, at=6).complete(1, at=7)
    gone = lost(story.fail_over(5, at=10).history())
    assert set(gone.tasks) == {3}
    assert gone.claims == {(1, 1, "w1/2"), (3, 1, "w1/3")}
    assert gone.ends == {(2, 1, "w1/1"): "completed", (1, 1, "w1/2"): "completed"}
    assert gone.completed == {1, 2}


def test_a_lost_renewal_is_no_claim() -> None:
    story = Story().enqueue(1).claim(1, at=3).renew(1, at=5).fail_over(1, at=10)
    assert lost(story.history()).claims == frozenset()


def test_a_failover_that_lost_nothing_changes_nothing() -> None:
    story = again(Story().enqueue(1).acknowledged(1, at=0.1).fail_over(0, at=10))
    assert failing(story.history()) == set()
    assert assert_passes("no-lost-task", story.history()).evidence["lost_enqueues"] == 0


# no-lost-task: enqueues.


def test_an_acknowledged_enqueue_may_be_lost_with_an_asynchronous_standby_and_is_counted() -> None:
    story = enqueued().acknowledged(2, at=5.1)
    verdict = assert_passes("no-lost-task", story.history(), judged=2)
    assert verdict.evidence["lost_enqueues"] == 1
    assert verdict.sentence.endswith(
        "; lost in a failover: 1 commit, 1 enqueue, 0 claims, 0 completions"
    )
    assert failing(story.acknowledged(1, at=1).run(1, at=11, over=12).history()) == set()


def test_a_task_that_neither_log_has_is_lost_whatever_the_standby() -> None:
    story = enqueued().acknowledged(3, at=5.1)
    assert_fails("no-lost-task", story.history(), "task 3", "no commit ever inserted it")


def test_an_acknowledged_enqueue_is_not_lost_with_a_synchronous_standby() -> None:
    story = enqueued(synchronous=True).acknowledged(2, at=5.1)
    assert_fails("no-lost-task", story.history(), "task 2", "acknowledged to client", "undid")


def test_an_enqueue_that_nobody_was_told_of_may_be_lost_with_any_standby() -> None:
    assert_passes("no-lost-task", enqueued(synchronous=True).acknowledged(1, at=1).history())


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_id_of_a_lost_task_may_be_another_s(synchronous: bool) -> None:
    story = enqueued(synchronous=synchronous)
    story.acknowledged(1, at=1).run(1, at=11, over=12)
    story.enqueue(2, at=11).acknowledged(2, at=11.1, due=11).run(2, at=12, over=13)
    assert failing(story.history()) == set()


def test_notes_of_a_lost_task_are_not_those_of_the_task_that_has_its_id_now() -> None:
    story = Story().enqueue(1).enqueue(2, at=5, kind="mail").acknowledged(2, at=5.1, due=4)
    story.claim(2, at=6, owner="w1/lost").ran(2, 6, 7).note("effect", 2, at=7)
    story.fail_over(2, at=10).acknowledged(1, at=1).run(1, at=11, over=12)
    story.enqueue(2, at=11, kind="mail").acknowledged(2, at=11.1, due=11)
    story.claim(2, by="w2", at=12).ran(2, 12, 13).note("effect", 2, at=13).complete(2, at=13)
    assert failing(story.history()) == set()
    assert verdict_of("explained-duplicate", story.history()).evidence["duplicates_explained"] == 0


def test_two_effects_of_the_task_that_has_the_id_now_are_still_two() -> None:
    story = enqueued().enqueue(2, at=11)
    story.claim(2, at=12).note("effect", 2, at=13).note("effect", 2, at=14).complete(2, at=15)
    assert_fails("explained-duplicate", story.history(), "had its effect 2 times")


# no-lost-task: what workers were told.

TOLD: dict[str, Callable[[Story], Story]] = {
    "had claimed it with token 1": lambda story: story.claim(1, at=5).note("claimed", 1, at=5.1),
    "its lease with token 1 was renewed": lambda story: story.renew(1, at=5),
    "taken it back from w1": lambda story: story.reclaim(1, at=6).note("reclaimed", 1, at=6.1),
    "completion with token 1 was committed": lambda story: story.complete(1, at=6).note(
        "finished", 1, at=6.1, detail="committed"
    ),
    "the end of its attempt with token 1 was written": lambda story: story.complete(1, at=6).note(
        "settled", 1, at=6.1, detail="completed"
    ),
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("commits", [0, 1])
def test_what_a_worker_was_told_of_is_not_lost_with_a_synchronous_standby(
    told: str, synchronous: bool, commits: int
) -> None:
    story = Story().enqueue(1)
    if "claimed" not in told:
        story.claim(1, at=0.5, lease=5).note("claimed", 1, at=0.6)
    TOLD[told](story).fail_over(commits, at=10, synchronous=synchronous)
    history = story.history(healed=11, ended=12)
    if synchronous and commits:
        assert_fails("no-lost-task", history, "task 1", told, "synchronous standby")
    else:
        assert verdict_of("no-lost-task", history).failures == ()


def test_a_plain_handler_s_end_is_no_word_of_the_database() -> None:
    story = Story().enqueue(1).claim(1, at=5).complete(1, at=6)
    story.note("finished", 1, at=6, detail="completed").fail_over(1, at=10, synchronous=True)
    assert_passes("no-lost-task", story.history(healed=11, ended=12))


def test_an_end_that_was_written_again_after_the_failover_is_not_lost() -> None:
    story = Story().enqueue(1).claim(1, at=5).complete(1, at=6)
    story.fail_over(1, at=10, synchronous=True)
    story.complete(1, at=11).note("settled", 1, at=11.1, detail="completed")
    assert_passes("no-lost-task", story.history(healed=12, ended=13))


# explained-duplicate.


def test_an_attempt_that_was_undone_explains_that_its_effect_was_repeated() -> None:
    story = again(claimed())
    assert failing(story.history()) == set()
    evidence = assert_passes("explained-duplicate", story.history()).evidence
    assert evidence["duplicates_explained"] == evidence["explained_by_failover"] == 1


def test_nothing_is_explained_by_a_failover_to_a_synchronous_standby() -> None:
    history = again(claimed(synchronous=True)).history()
    assert_fails("explained-duplicate", history, "token 1 is an extra one")


def test_an_effect_of_an_attempt_that_was_not_undone_is_not_explained_by_the_failover() -> None:
    story = again(claimed()).note("effect", 1, at=13, token=1)  # of the later holder
    assert_fails("explained-duplicate", story.history(), "w2/2 with token 1, had its effect 2")
    story = Story().enqueue(1, 2).claim(1, at=3).note("effect", 1, at=4).change(1, 4.5)
    story.change(1, at=4.6, state="pending", owner=None, expires=None, claimed_at=None)
    story.enqueue(3, at=5).fail_over(1, at=10).claim(1, by="w2", at=11)
    history = story.note("effect", 1, at=12).complete(1, at=12).history()
    assert_fails("explained-duplicate", history, "w1/1 with token 1 is an extra one")


def test_an_undone_attempt_that_had_its_effect_twice_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=5).note("effect", 1, at=6).note("effect", 1, at=6.5)
    history = again(story.fail_over(1, at=10)).history()
    assert_fails("explained-duplicate", history, "w1/1 with token 1, had its effect 2 times")


def test_a_lost_completion_explains_that_the_task_runs_again_when_its_lease_is_over() -> None:
    story = Story().enqueue(1).claim(1, at=8).ran(1, 8, 9).note("effect", 1, at=9)
    story.complete(1, at=9).fail_over(1, at=10).reclaim(1, at=14, cause=False)
    story.claim(1, by="w2", at=15).note("effect", 1, at=16).complete(1, at=16)
    assert failing(story.history()) == set()
    assert verdict_of("no-lost-task", story.history()).evidence["lost_completions"] == 1


# fenced, effect-once.


def test_a_token_that_is_issued_twice_is_counted_and_harmless_if_its_first_holder_is_refused() -> (
    None
):
    story = claimed().claim(1, by="w2", at=11)
    story.notes.append(story.notes[0]._replace(what="refused", detail="complete"))
    verdict = assert_passes("fenced", story.complete(1, at=12).history())
    assert verdict.evidence["tokens_issued_twice"] == 1


def test_a_holder_from_before_the_failover_that_writes_under_the_token_of_another_is_told() -> None:
    story = claimed().claim(1, by="w2", at=11)
    story.holders[1, 1] = "w1/1"
    history = story.complete(1, at=12).history()
    assert_fails("fenced", history, "w1/1 wrote completed with token 1", "w2/2 held the lease")


def test_a_token_that_no_other_claim_got_was_not_issued_twice() -> None:
    story = claimed().enqueue(2, at=11).claim(2, at=11).complete(2, at=12)
    assert verdict_of("fenced", story.history()).evidence["tokens_issued_twice"] == 0


def test_another_task_under_the_id_of_a_lost_one_has_tokens_of_its_own() -> None:
    story = Story().enqueue(1).enqueue(2, at=5).claim(2, at=6).fail_over(2, at=10)
    story.enqueue(2, at=11).claim(2, by="w2", at=12).complete(2, at=13)
    assert verdict_of("fenced", story.history()).evidence["tokens_issued_twice"] == 0


@pytest.mark.parametrize("lost_commits", [0, 2])
def test_an_effect_in_the_database_is_lost_with_its_completion_or_there_once(
    lost_commits: int,
) -> None:
    story = Story().enqueue(1).claim(1, at=5).complete(1, at=6, effect=True)
    story.fail_over(lost_commits, at=10)
    if lost_commits:
        story.claim(1, by="w2", at=11).complete(1, at=12, effect=True)
    assert_passes("effect-once", story.history(), judged=1)


def test_an_effect_in_the_database_that_survived_its_completion_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=5).effect(1, at=6).complete(1, at=6)
    assert_fails("effect-once", story.fail_over(1, at=10).history(), "apart from any completion")
