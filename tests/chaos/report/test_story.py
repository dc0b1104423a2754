"""Counterexamples: the task that an invariant names, step by step, and what else struck it."""

from __future__ import annotations

from dataclasses import replace

from chaos.history.events import History
from chaos.history.lives import lives
from chaos.invariants.judge import judge
from chaos.report.attempts import attempts
from chaos.report.bands import bands
from chaos.report.story import MOST_EVENTS, Story, stories
from tests.chaos.invariants.build import RULES
from tests.chaos.invariants.build import Story as Told
from tests.chaos.report.made_up import overwritten


def of(history: History) -> list[Story]:
    told = lives(history)
    return stories(history, told, judge(history), attempts(history, told), bands(history))


def test_the_task_that_failed_is_told_in_the_order_of_time_with_statements_and_tokens() -> None:
    [story] = of(overwritten())
    assert (story.title, story.tasks) == ("Task 7", (7,))
    assert story.breaks[0][0] == "fenced"  # the scenario names it
    told = [f"{one.who} {one.what} {one.by}".strip() for one in story.events]
    assert told == [
        "a client enqueues task 7 (slow), due at 12:00:00.000 enqueue.sql",
        "client knows that task 7 is enqueued",
        "w1.1/1 claims task 7: attempt 1 of 3, token 1, until 12:00:06.000 claim.sql",
        "w1.1/1 enters the handler of task 7 under token 1",
        "w1.1 is struck by pause: woke up as a zombie of 1 lease",
        "somebody takes back token 1 of w1.1/1 (reclaimed): task 7 is pending reclaim.sql",
        "w2.1/2 claims task 7: attempt 2 of 3, token 2, until 12:00:12.000 claim.sql",
        "w2.1/2 enters the handler of task 7 under token 2",
        "w1.1 is free of pause",
        "w1.1/1 has its effect outside the database, task 7 under token 1",
        "w1.1/1 leaves the handler of task 7 under token 1: completed",
        "w1.1/1 writes completed with token 1: task 7 is completed, although token 2 of w2.1/2"
        " had the lease complete.sql",
        "w2.1/2 is refused by the fence: complete of task 7 under token 2",
    ]
    [guilty] = [one for one in story.events if one.guilty]
    assert (guilty.who, guilty.mark, story.guilty) == ("w1.1/1", "write", guilty.at)
    assert {one.mark for one in story.events} == {"", "write", "effect", "refused"}


def test_a_run_that_did_not_fail_has_no_counterexample() -> None:
    story = Told().enqueue(1, at=0).acknowledged(1, at=0.1).claim(1, at=1).complete(1, at=2)
    assert of(story.history()) == []


def test_a_claim_of_too_many_is_told_with_all_that_it_took() -> None:
    story = Told().enqueue(1, 2, 3, 4, at=0).claim(1, 2, 3, 4, at=1)  # three are allowed
    for task in (1, 2, 3, 4):
        story.complete(task, at=2)
    [found] = of(story.history())
    assert [name for name, _ in found.breaks] == ["claim-bounded"]
    assert sorted(found.tasks) == [1, 2, 3, 4]
    assert len([one for one in found.events if one.guilty]) == 4


def test_a_broken_limit_is_told_with_all_that_held_a_lease_by_then() -> None:
    story = Told().enqueue(1, 2, 3, 4, at=0).claim(1, at=1).claim(2, at=2).complete(1, at=3)
    story.claim(3, at=4).claim(4, at=5)
    for task in (2, 3, 4):
        story.complete(task, at=6)
    [found] = of(story.history(rules=replace(RULES, limits={"plain": 2})))
    assert [name for name, _ in found.breaks] == ["limit-held"]
    assert found.tasks == (4, 2, 3)


def test_a_failure_of_no_task_is_told_by_its_sentence() -> None:
    story = Told().enqueue(1, at=0).acknowledged(1, at=0.1).claim(1, at=1).complete(1, at=2)
    story.fault("death", "death", at=3, detail="1")
    [found] = of(story.history())
    assert (found.title, found.tasks, found.events) == ("The run as a whole", (), ())
    assert "worker w1 crashed" in found.breaks[0][1]


def test_of_a_long_life_what_is_near_the_failure_is_told() -> None:
    story = Told().enqueue(1, at=0, max_attempts=99)
    for turn in range(40):
        story.claim(1, at=1 + turn).fail(1, at=1.5 + turn)
    story.claim(1, at=50).complete(1, at=51, token=7)
    story.change(1, at=52, state="pending")
    [found, *_] = of(story.history(ended=60))
    assert len(found.events) == MOST_EVENTS
    assert found.left_out == 1 + 80 + 3 - MOST_EVENTS
    assert any(one.guilty for one in found.events)


def test_a_change_that_nobody_logged_is_told_as_that() -> None:
    story = Told().enqueue(1, 2, at=0).claim(1, 2, at=1).prune(1, at=2)
    story.change(2, at=2, state="pending", owner=None, expires=None, claimed_at=None)
    told = [event.what for found in of(story.history()) for event in found.events]
    assert "deletes task 1" in told
    assert "makes task 2 pending while w1/1 holds token 1, and logs nothing" in told
