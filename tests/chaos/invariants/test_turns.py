"""`in-turn`: good stories, bad ones, and near misses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.history.events import History
from tests.chaos.invariants.build import (
    RULES,
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
    us,
    verdict_of,
)

ONE_SECOND = replace(RULES, passed_over=1_000_000)


def history(story: Story, lag: float = 0, ended: float = 40) -> History:
    """A history of a system that passes over nothing for longer than a second."""
    return story.history(rules=ONE_SECOND, lag=lag, ended=ended)


def backlog(*later: int) -> Story:
    """Task 1 is claimed at 1 and comes back at 10, before later ones that were due after it."""
    story = Story()
    for task in (1, *later):
        story.enqueue(task, at=0, due=task / 100)
    return story.claim(1, by="w1", at=1, lease=10).release(1, at=10)


def test_a_task_that_came_back_may_be_passed_over_for_as_long_as_is_promised() -> None:
    story = backlog(2, 3, 4).claim(2, by="w2", at=9)
    story.claim(3, by="w2", at=10.5).claim(4, by="w2", at=11.5)
    verdict = assert_passes("in-turn", history(story.claim(1, at=30)), judged=1)
    assert verdict.evidence["passed_over_max_ms"] == 1000
    assert "1 wait began after a later task had been claimed" in verdict.sentence


def test_a_task_that_is_passed_over_for_longer_is_told() -> None:
    story = backlog(2, 3).run(2, at=10.5, over=10.6).claim(3, by="w2", at=11.500001)
    told = history(story.complete(3, at=11.6).run(1, at=12, over=13))
    assert_fails(
        "in-turn",
        told,
        "task 1:",
        "was due at 12:00:00.010000 and could be claimed from 12:00:10.000000 on",
        "from 12:00:10.500000 to 12:00:11.500001 tasks were claimed that were due later",
        "for 1.000001 s, and 1.000000 s are allowed",
    )
    assert failing(told) == {"in-turn"}


def test_a_task_that_is_never_claimed_again_was_passed_over_by_all() -> None:
    story = backlog(2, 3).claim(2, by="w2", at=10.5).claim(3, by="w2", at=12)
    assert_fails("in-turn", history(story), "for 1.500000 s")
    assert_fails("in-turn", history(story.cancel(1, at=13)), "for 1.500000 s")


def test_a_long_wait_that_one_later_claim_passes_is_no_time_passed_over() -> None:
    # Two claims at once: the one that began a moment earlier found the earlier task locked.
    story = Story().enqueue(1, 2, at=0).claim(2, by="w2", at=19.999).claim(1, by="w1", at=20)
    told = history(story)
    assert_inconclusive("in-turn", told, "no wait began after")
    assert verdict_of("in-turn", told).evidence["passed_over_max_ms"] == 0


def test_the_order_is_by_due_time_and_then_by_id() -> None:
    def claimed(*order: int) -> History:
        told = Story().enqueue(4, at=0, due=0).enqueue(1, 2, 3, at=0, due=1)
        for turn, task in enumerate(order):
            told.claim(task, at=2 + 3 * turn)
        return history(told)

    assert_inconclusive("in-turn", claimed(4, 1, 2, 3), "no wait began after")
    assert_fails("in-turn", claimed(4, 2, 3, 1), "task 1:", "for 3.000000 s")
    assert_fails("in-turn", claimed(1, 2, 3, 4), "task 4:", "for 6.000000 s")


def test_tasks_claimed_at_the_same_moment_do_not_pass_one_another() -> None:
    story = Story().enqueue(1, 2, 3, at=0).claim(3, at=2).claim(2, 1, at=9)
    assert verdict_of("in-turn", history(story)).evidence["passed_over_max_ms"] == 0


@pytest.mark.parametrize("odd", [{"kind": "other"}, {"priority": 1}], ids=["kind", "priority"])
def test_those_of_another_kind_or_priority_are_no_matter(odd: dict[str, Any]) -> None:
    story = Story().enqueue(1, at=0).enqueue(2, 3, at=0, **odd).claim(2, at=5).claim(3, at=9)
    verdict = assert_inconclusive("in-turn", history(story.claim(1, at=10)), "no wait began after")
    assert "passed_over_max_ms" not in verdict.evidence


def test_the_wait_begins_when_the_task_is_due() -> None:
    story = Story().enqueue(1, at=0, due=20).enqueue(2, 3, at=0, due=20.5)
    told = history(story.claim(2, at=21).claim(3, at=21.9).claim(1, at=22))
    verdict = assert_inconclusive("in-turn", told, "no wait began after")
    assert verdict.evidence["passed_over_max_ms"] == pytest.approx(900)


def test_claims_before_it_was_due_do_not_pass_it_over() -> None:
    story = Story().enqueue(1, at=0, due=20).enqueue(2, 3, at=0, due=21)
    told = history(story.claim(2, at=19).claim(3, at=21).claim(1, at=22))
    assert verdict_of("in-turn", told).evidence["passed_over_max_ms"] == 0


@pytest.mark.parametrize("odd", [{"due": us(0.005)}, {"priority": 1}], ids=["moved", "priority"])
def test_a_task_that_gets_another_place_waits_anew(odd: dict[str, Any]) -> None:
    rank = {name: value for name, value in odd.items() if name == "priority"}
    story = Story().enqueue(1, at=0, due=0.01).enqueue(2, 3, at=0, due=1, **rank)
    told = history(story.claim(2, at=7).change(1, at=8, **odd).claim(3, at=8.5).claim(1, at=9))
    verdict = assert_passes("in-turn", told, judged=1)
    assert verdict.evidence["passed_over_max_ms"] == 0


@pytest.mark.parametrize("odd", [{"due": us(0.005)}, {"priority": 1}], ids=["moved", "priority"])
def test_how_long_it_was_passed_over_at_its_old_place_is_judged(odd: dict[str, Any]) -> None:
    story = Story().enqueue(1, at=0, due=0.01).enqueue(2, 3, at=0, due=1)
    story.claim(2, at=5).claim(3, at=7).change(1, at=8, **odd)
    assert_fails("in-turn", history(story), "for 2.000000 s")


def test_a_change_of_neither_due_time_nor_priority_does_not_end_the_wait() -> None:
    story = Story().enqueue(1, 2, 3, at=0).claim(2, at=7).change(1, at=8, error="seen")
    assert_fails("in-turn", history(story.claim(3, at=8.5).claim(1, at=9)), "for 1.500000 s")


@pytest.mark.parametrize(
    ("name", "target", "counts"),
    [
        ("pause", "w2", False),
        ("pause", "w3", True),
        ("stall", "server", False),
        ("row-lock", "database", False),
        ("old-transaction", "database", True),
    ],
)
def test_a_claim_that_may_have_come_late_does_not_count(
    name: str, target: str, counts: bool
) -> None:
    story = backlog(2, 3).claim(2, by="w2", at=10.1).claim(3, by="w2", at=12)
    story.fault(name, "inject", target=target, at=9).fault(name, "heal", target=target, at=11.5)
    told = history(story.claim(1, at=12.5))
    if counts:
        assert_fails("in-turn", told, "for 1.900000 s")
    else:
        assert_inconclusive("in-turn", told, "no wait began after")


def test_a_claim_counts_again_once_the_fault_is_longer_ago() -> None:
    story = backlog(2, 3).claim(2, by="w2", at=12).claim(3, by="w2", at=13.5)
    story.fault("row-lock", "inject", target="database", at=10)
    story.fault("row-lock", "heal", target="database", at=10.9)
    assert_fails("in-turn", history(story.claim(1, at=14)), "for 1.500000 s")


def test_a_row_lock_without_a_heal_was_over_at_once() -> None:
    story = backlog(2, 3).claim(2, by="w2", at=12).claim(3, by="w2", at=13.5)
    story.fault("row-lock", "inject", target="database", at=10.9)
    assert_fails("in-turn", history(story.claim(1, at=14)), "for 1.500000 s")


def test_the_lag_of_the_machine_is_added_and_more_than_the_promise_proves_nothing() -> None:
    story = backlog(2, 3).claim(2, at=10.1).claim(3, by="w2", at=11.6).claim(1, at=12)
    assert_inconclusive("in-turn", history(story, lag=0.5), "no wait began after")
    assert_fails("in-turn", history(story, lag=0.499999), "1.499999 s are allowed")
    late = backlog(2, 3).claim(2, at=10.1).claim(3, by="w2", at=13).claim(1, at=14)
    assert_inconclusive(
        "in-turn", history(late, lag=1.1), "lagged 1.100000 s", "1 wait that lasted too long"
    )


def test_first_and_last_claim_are_found_when_later_tasks_are_claimed_out_of_order() -> None:
    story = backlog()
    for task in (2, 3, 5, 6, 7, 8):
        story.enqueue(task, at=10, due=task / 100)
    for task, at in ((7, 10.2), (8, 10.4), (6, 10.6), (3, 10.8), (5, 10.9), (2, 11)):
        story.claim(task, by="w2", at=at)
    verdict = verdict_of("in-turn", history(story.claim(1, at=11.2)))
    assert verdict.evidence["passed_over_max_ms"] == pytest.approx(800)
    assert verdict.outcome == "inconclusive"


SECONDS = st.integers(0, 12)
ENDED = 100


# Of each task: when it is due, how long after that it is enqueued, how long it waits, besides one
# second, and whether it is claimed then.
@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, st.booleans()), max_size=12))
def test_the_longest_time_is_what_comparing_each_pair_gives(
    tasks: list[tuple[int, int, int, bool]],
) -> None:
    story = Story()
    waits = []
    for task, (due, after, length, claimed) in enumerate(tasks, 1):
        since = due + after
        until = since + 1 + length if claimed else ENDED
        story.enqueue(task, at=since, due=due)
        waits.append((task, due, since, until, claimed))
    for task, _, _, until, claimed in waits:
        if claimed:
            story.claim(task, at=until)
    found = []
    for task, due, since, until, _ in waits:
        later = [at for other, when, _, at, yes in waits if yes and (when, other) > (due, task)]
        while_it_lasted = [at for at in later if since < at < until]
        if while_it_lasted:
            found.append(max(while_it_lasted) - min(while_it_lasted))
    verdict = verdict_of("in-turn", history(story, ended=ENDED))
    assert verdict.evidence.get("passed_over_max_ms", 0) == 1000 * max(found, default=0)
    assert verdict.evidence["late"] == sum(seconds > 1 for seconds in found)


def test_nothing_is_judged_where_no_order_is_promised() -> None:
    told = backlog(3).claim(3, by="w2", at=20).claim(1, at=21).history()
    assert_inconclusive("in-turn", told, "the system promises no order")
