"""`limit-held`: good stories, bad ones, and near misses."""

from __future__ import annotations

from dataclasses import replace

from chaos.history.events import Change, History, Occurrence
from tests.chaos.invariants.build import (
    NOON,
    RULES,
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
)

LIMITED = replace(RULES, limits={"plain": 2})
CAPPED = replace(RULES, caps={"shop": 2})


def limited(story: Story) -> History:
    return story.history(rules=LIMITED)


def capped(story: Story) -> History:
    return story.history(rules=CAPPED)


def order(story: Story, *tasks: int, at: float = 0, source: str = "shop") -> Story:
    """Enqueue as a source that counts."""
    return story.enqueue(*tasks, at=at, source=source, counted=True)


# Leases


def test_as_many_leases_as_the_limit_are_held() -> None:
    story = Story().enqueue(1, 2, 3).claim(1, 2, at=1).complete(1, at=2).claim(3, at=2)
    verdict = assert_passes("limit-held", limited(story), judged=3)
    assert verdict.evidence["most_of_kind_plain"] == 2


def test_one_lease_more_than_the_limit_is_told_with_the_tasks() -> None:
    history = limited(Story().enqueue(1, 2, 3).claim(1, 2, at=38).claim(3, by="w2", at=39))
    assert_fails(
        "limit-held",
        history,
        "task 3: with it kind plain had 3 leases at 12:00:39.000000, 1 more than the 2 that it may"
        " have: tasks 1, 2, 3",
    )
    assert failing(history) == {"limit-held"}


def test_a_batch_may_not_exceed_the_limit_either() -> None:
    history = limited(Story().enqueue(1, 2, 3).claim(1, 2, 3, at=39))
    assert_fails("limit-held", history, "task 3", "had 3 leases")


def test_an_expired_lease_counts_until_it_is_taken_back() -> None:
    story = Story().enqueue(1, 2, 3).claim(1, 2, at=1).complete(2, at=3)
    assert_passes("limit-held", limited(story.reclaim(1, at=9).claim(3, 1, at=9)))
    story = Story().enqueue(1, 2, 3).claim(1, 2, at=1).claim(3, at=9)
    assert_fails("limit-held", limited(story), "task 3")


def test_every_end_of_an_attempt_gives_room() -> None:
    story = Story().enqueue(1, 2, 3, 4, 5, 6).claim(1, 2, at=1)
    story.fail(1, at=2, due=50).claim(3, at=2).snooze(2, at=3, due=50).claim(4, at=3)
    story.release(3, at=4).claim(5, at=4).cancel(4, at=5).claim(6, at=5)
    assert_passes("limit-held", limited(story.change(5, at=6, expires=None)), judged=6)


def test_a_renewal_takes_no_room() -> None:
    story = Story().enqueue(1, 2).claim(1, 2, at=1).renew(1, at=2).renew(2, at=2)
    assert_passes("limit-held", limited(story), judged=2)


def test_room_may_change_hands_within_one_commit() -> None:
    story = Story().enqueue(1, 2, 3).claim(1, 2, at=1)
    done = story.rows[1]._replace(state="completed", owner=None, expires=None, claimed_at=None)
    taken = story.rows[2]._replace(task=3)
    history = limited(story.commit(2, changes=[Change(3, taken), Change(1, done)]))
    assert_passes("limit-held", history)


def test_a_kind_without_a_limit_is_not_limited() -> None:
    story = Story().enqueue(1, 2).claim(1, 2, at=1)
    story.enqueue(3, 4, 5, kind="other").claim(3, 4, 5, at=1)
    assert_passes("limit-held", limited(story), judged=2)


def test_a_limit_that_stays_exceeded_is_told_at_each_claim_and_not_at_each_commit() -> None:
    story = Story().enqueue(1, 2, 3, 4).claim(1, 2, at=1).claim(3, at=2).renew(1, at=3)
    story.complete(1, at=4).complete(2, at=4).claim(4, at=5)
    assert_fails("limit-held", limited(story), times=1)


def test_a_limit_that_was_never_reached_shows_nothing() -> None:
    history = limited(Story().enqueue(1).claim(1, at=1))
    assert_inconclusive("limit-held", history, "kind plain never had more than 1 of the 2")
    none = "no task of a limited kind was claimed"
    assert_inconclusive("limit-held", limited(Story().enqueue(1)), none)
    assert_inconclusive("limit-held", Story().enqueue(1).claim(1, at=1).history(), none)


# Sources


def test_as_many_tasks_as_the_cap_are_outstanding() -> None:
    story = order(Story(), 1, 2).run(1, at=1, over=2)
    assert_passes("limit-held", capped(order(story, 3, at=2)), judged=3)


def test_one_task_more_than_the_cap_is_told() -> None:
    history = capped(order(order(Story(), 1, 2, at=39), 3, at=39))
    assert_fails(
        "limit-held",
        history,
        "task 3: with it source shop had 3 tasks at 12:00:39.000000, 1 more than the 2 that it may"
        " have: tasks 1, 2, 3",
    )


def test_a_running_task_is_outstanding_and_a_finished_one_is_not() -> None:
    story = order(Story(), 1, 2).claim(1, at=1)
    assert_fails("limit-held", capped(order(story, 3, at=2)), "task 3")
    story = order(Story(), 1, 2).cancel(1, at=1).claim(2, at=1).complete(2, at=2)
    assert_passes("limit-held", capped(order(story, 3, 4, at=2)))
    assert_passes("limit-held", capped(order(order(Story(), 1, 2).prune(1, at=1), 3, at=1)))


def test_a_retry_keeps_its_room() -> None:
    story = order(Story(), 1, 2).claim(1, at=1).fail(1, at=2)
    assert_passes("limit-held", capped(story), judged=2)
    assert_fails("limit-held", capped(order(story, 3, at=3)), "task 3")


def test_other_sources_do_not_count() -> None:
    story = order(order(Story(), 1, 2), 3, 4, 5, source="other").enqueue(6, 7)
    assert_passes("limit-held", capped(story), judged=2)


def test_a_task_of_a_capped_source_that_does_not_count_is_told_once() -> None:
    story = order(Story(), 1, 2).enqueue(3, at=3, source="shop", counted=False)
    history = capped(story.claim(3, at=4).complete(3, at=5))
    assert_fails(
        "limit-held",
        history,
        "task 3: is pending at 12:00:03.000000 and does not count under the cap of its source shop",
    )
    # A share that is lost while the task lives is one that another takes too much.
    assert_fails(
        "limit-held", capped(order(Story(), 1, 2).change(1, at=3, counted=False)), "task 1"
    )


def test_an_occurrence_of_a_schedule_takes_no_room() -> None:
    due = Occurrence("tick", NOON)
    story = order(Story(), 1, 2).enqueue(3, at=3, source="shop", occurrence=due)
    assert_passes("limit-held", capped(story), judged=2)


def test_limits_and_caps_are_told_apart() -> None:
    rules = replace(RULES, limits={"shop": 1}, caps={"shop": 3})
    story = Story().enqueue(1, 2, 3, kind="shop", source="shop", counted=True).claim(1, at=1)
    assert_passes("limit-held", story.history(rules=rules), judged=4)
    assert_fails("limit-held", story.claim(2, at=2).history(rules=rules), "kind shop had 2 leases")
