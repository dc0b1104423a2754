"""Failures in hand-made histories, projected onto scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.explore.schedule import show
from chaos.history.events import History, Recurrence
from chaos.history.lives import lives
from chaos.invariants.judge import INVARIANTS
from chaos.lowering.projection import CannotLowerError, Projection, projections
from tests.chaos.invariants.build import RULES, Story


def zombie() -> Story:
    """A holder completes a task when another has it."""
    story = Story().enqueue(1).claim(1, by="w1", at=1).reclaim(1, at=7).claim(1, by="w2", at=8)
    return story.complete(1, at=9, token=1)


def looks(history: History, invariant: str) -> list[Projection]:
    """What the first failure of the invariant is projected onto, each way."""
    told = lives(history)
    verdict = INVARIANTS[invariant](history, told)
    assert verdict.outcome == "fail", verdict.sentence
    return projections(history, told, invariant, verdict.failures[0])


def first(story: Story, invariant: str) -> tuple[dict[str, str], str]:
    """The actors and the order of the smallest projection."""
    look = looks(story.history(), invariant)[0]
    return dict(look.script.actors), show(look.schedule)


def test_a_zombie_is_an_actor_whose_turn_comes_when_another_has_its_task() -> None:
    [look, *_] = looks(zombie().history(), "fenced")
    assert look.script.actors == {"a": "claim complete", "b": "reclaim", "c": "claim"}
    assert show(look.schedule) == "a a +36s b b +6s c c +6s a a"
    assert look.cast == {"a": "w1/1", "b": "a reaper", "c": "w2/2"}


def test_a_lease_that_was_over_is_over_and_one_that_was_not_is_not_however_time_is_rounded() -> (
    None
):
    late = Story().enqueue(1).claim(1, at=0, lease=5).reclaim(1, at=5.001)
    late.claim(1, by="w2", at=5.002).complete(1, at=5.003, token=1)
    assert first(late, "fenced")[1].startswith("a a +31s b b")
    early = Story().enqueue(1).claim(1, at=0, lease=5).reclaim(1, at=4.999)
    assert first(early, "no-overlap")[1] == "a a +29s b b"


def test_a_kill_is_a_crash_before_the_step_that_would_have_come() -> None:
    story = Story().enqueue(1, max_attempts=5).claim(1, by="w1", at=1)
    story.fault("kill", "inject", target="w1", at=2).reclaim(1, at=7)
    story.claim(1, by="w2", at=8, attempts=1)
    actors, schedule = first(story, "attempts-bounded")
    assert actors == {"a": "claim complete", "b": "reclaim", "c": "claim"}
    assert schedule == "a a +6s a! +30s b b +6s c c"


def test_renewals_are_their_senders() -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1).renew(1, at=3).reclaim(1, at=9)
    story.claim(1, by="w2", at=10).renew(1, at=11)
    mine = story.notes.pop()
    story.notes.append(mine._replace(token=1, owner="w1/1", worker="w1"))
    actors, schedule = first(story, "fenced")
    assert actors == {"a": "claim renew renew", "b": "reclaim", "c": "claim"}
    assert schedule.endswith("c c +6s a a")


def test_an_effect_goes_with_its_completion_and_a_failure_after_that_is_a_lost_reply() -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1).complete(1, at=2, effect=True)
    story.end(1, 3, "failed", token=1, state="pending")
    story.claim(1, by="w2", at=4).complete(1, at=5, effect=True)
    actors, schedule = first(story, "effect-once")
    assert actors == {"a": "claim transact", "b": "claim transact"}
    assert schedule.startswith("a a +6s a a a? +6s a a ")


def test_a_claim_that_was_given_back_unheard_is_a_lost_reply() -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1)
    story.note("reply-lost", 0, 1, token=1)
    story.notes[-1] = story.notes[-1]._replace(worker="w1")
    story.release(1, at=2, attempts=1)
    assert first(story, "attempts-bounded") == ({"a": "claim"}, "a a? +6s a a")


def test_two_that_ask_for_one_key_are_two_clients() -> None:
    story = Story().key(1, at=1).key(2, at=2)
    found = looks(story.history(), "key-once")
    assert found[-1].script.actors == {"a": "ask", "b": "ask"}
    assert (found[-1].script.tasks, found[-1].script.until) == (0, "finished")


def test_two_that_plan_one_occurrence_are_two_planners() -> None:
    rules = replace(RULES, schedules={"tick": Recurrence(60_000_000, "all")})
    story = Story().plan(1, at=60, due=60).plan(2, at=60.1, due=60)
    found = looks(story.history(rules=rules, healed=90, ended=91), "occurrence-once")
    assert found[-1].script.actors == {"a": "plan", "b": "plan"}
    assert found[-1].script.missed == "all"


def test_what_a_limit_had_room_for_before_is_taken_off_it() -> None:
    rules = replace(RULES, limits={"plain": 3})
    story = Story().enqueue(1, 2, 3, 4).claim(1, 2, at=1).claim(3, by="w2", at=2)
    story.claim(4, by="w3", at=3)
    found = looks(story.history(rules=rules), "limit-held")
    assert found[0].script.actors == {"a": "claim", "b": "claim"}
    assert (found[0].script.limit, found[0].script.tasks) == (1, 2)
    assert show(found[0].schedule).startswith("a a a ")  # a claim takes hold of limits first
    assert found[1].script.actors == {"a": "claim:2", "b": "claim", "c": "claim"}
    assert found[1].script.limit == 3


def test_a_batch_of_a_capped_source_is_one_enqueue() -> None:
    rules = replace(RULES, caps={"shop": 3})
    story = Story().enqueue(1, 2, source="shop", counted=True)
    story.enqueue(3, 4, at=1, source="shop", counted=True)
    found = looks(story.history(rules=rules), "limit-held")
    assert found[0].script.actors == {"a": "enqueue", "b": "enqueue"}
    assert (found[0].script.cap, found[0].script.tasks) == (1, 0)


def test_a_claim_of_too_many_asked_for_as_many_as_it_may() -> None:
    story = Story().enqueue(1, 2, 3, 4).claim(1, 2, 3, 4, at=1)
    [look] = looks(story.history(), "claim-bounded")
    assert look.script.actors == {"a": "claim:3"}
    assert (look.script.tasks, look.script.claims) == (4, 3)


def test_an_operator_is_an_actor_too() -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1).cancel(1, at=2)
    story.end(1, 3, "completed", token=1)
    actors, schedule = first(story, "fenced")
    assert actors == {"a": "claim complete", "b": "cancel"}
    assert schedule.replace(" +6s", "") == "a a b b a a"


def test_what_speaks_of_time_or_of_a_run_s_end_cannot_be_lowered() -> None:
    story = Story().enqueue(1)
    with pytest.raises(CannotLowerError, match=r"progress speaks of a run's end"):
        looks(story.history(), "progress")


def test_what_a_failover_undid_cannot_be_lowered() -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1).fail_over(lost=1, at=5)
    story.claim(1, by="w2", at=6).complete(1, at=7)
    # Its token was issued twice, and its first holder writes.
    story.commits[-1] = story.commits[-1]._replace(
        ended=(story.commits[-1].ended[0]._replace(owner="w1/1"),)
    )
    with pytest.raises(CannotLowerError, match="a failover undid commits of task 1"):
        looks(story.history(), "fenced")


def test_a_failure_of_too_many_at_once_cannot_be_lowered() -> None:
    rules = replace(RULES, limits={"plain": 1})
    story = Story().enqueue(*range(1, 9))
    for task in range(1, 9):
        story.claim(task, by=f"w{task}", at=task)
    failure = INVARIANTS["limit-held"](
        story.history(rules=rules), lives(story.history(rules=rules))
    ).failures[-1]
    told = lives(story.history(rules=rules))
    with pytest.raises(CannotLowerError, match="more than 6 actors"):
        projections(story.history(rules=rules), told, "limit-held", failure)
