"""All invariants together: what a rich run adds up to, and what one bug turns red."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import chaos.invariants
from chaos.history.events import History, Policy, Recurrence
from chaos.invariants.judge import INVARIANTS, judge, overall, toothless, why
from chaos.invariants.words import clock, many, spread
from tests.chaos.invariants.build import RULES, Story, failing, us, verdict_of


def _rich() -> Story:
    """A run with one of everything: all of it legal."""
    story = Story().fault("kill", "inject", "bite", "heal")
    # A charge in a transaction, killed once, then done once; the zombie's write is refused.
    story.enqueue(1, kind="charge").acknowledged(1, at=0, due=0)
    story.claim(1, at=1).ran(1, 1, 7.5, token=1).reclaim(1, at=6.1)
    story.claim(1, by="w2", at=7).ran(1, 7, 8).note("refused", 1, 7.5, token=1, detail="complete")
    story.note("lease-lost", 1, 7.5, token=1).renew(1, at=7.5).complete(1, at=8, effect=True)
    # A mail outside the database, sent twice because its first attempt failed.
    story.enqueue(2, kind="mail", policy=Policy(2, 2, 60, 0))
    story.claim(2, at=1).ran(2, 1, 2).note("effect", 2, 1.5).fail(2, at=2, due=4)
    story.claim(2, at=4).ran(2, 4, 5).note("effect", 2, 4.5).complete(2, at=5)
    # Exhausted, requeued, snoozed, released, and done after heal.
    story.enqueue(3, max_attempts=1).claim(3, at=1).ran(3, 1, 2).fail(3, at=2)
    story.requeue(3, at=10).claim(3, at=11).ran(3, 11, 12).snooze(3, at=12, due=21)
    story.claim(3, at=22).release(3, at=22.5).claim(3, at=23).ran(3, 23, 24).complete(3, at=24)
    # Cancelled while waiting and while running; dead and discarded; pruned; not due for long.
    story.enqueue(4, 5, 6, 7, max_attempts=1).cancel(4, at=1)
    story.claim(5, 6, at=2).cancel(5, at=3).reclaim(6, at=7).discard(6, at=8).prune(6, at=9)
    story.claim(7, at=2).fail(7, at=3)
    # A mail sent by a zombie as well, and pruned at last.
    story.enqueue(10, kind="mail").claim(10, at=1).note("started", 10, 1).note("effect", 10, 2)
    story.reclaim(10, at=6.5).claim(10, by="w2", at=7).renew(10, at=8).ran(10, 7, 9)
    story.note("effect", 10, 8).complete(10, at=9).prune(10, at=15)
    # Dead, and of a kind of its own: claimed so late, it would have been passed over by others.
    story.enqueue(8, kind="late", max_attempts=1).claim(8, at=24).reclaim(8, at=29.5)
    # One under a key and one that was not needed, two of a limited kind, two of a capped source.
    story.key(11).told(11, "created", 0, 0.1).told(11, "standing", 1, 1.1).run(11, at=2, over=3)
    story.enqueue(12, 13, kind="one").run(12, at=1, over=2).run(13, at=2, over=3)
    for task in (14, 15):
        story.enqueue(task, source="shop", counted=True).run(task, at=1, over=2)
    # A schedule's two runs, and no client that would know of them.
    story.plan(16, 0.1, 0).run(16, at=1, over=2).plan(17, 30.1, 30).run(17, at=31, over=32)
    # One that was given back after one that was due later had been claimed.
    story.enqueue(18, 19, kind="rare").claim(18, at=9)
    story.claim(19, by="w3", at=9.5).complete(19, at=10).release(18, at=11)
    story.run(18, at=12, over=13).acknowledged(18, 19, at=0)
    return story.enqueue(9, due=1000).acknowledged(*range(2, 16), at=0)


RICH = replace(
    RULES,
    limits={"one": 1},
    caps={"shop": 1},
    schedules={"tick": Recurrence(30_000_000, "all")},
    passed_over=1_000_000,
)


def _history(story: Story) -> History:
    return story.history(named=INVARIANTS, rules=RICH)


def test_a_rich_run_passes_every_invariant() -> None:
    history = _history(_rich())
    verdicts = judge(history)
    assert [verdict.invariant for verdict in verdicts] == list(INVARIANTS)
    assert {
        verdict.invariant: verdict.sentence for verdict in verdicts if verdict.outcome != "pass"
    } == {}
    assert overall(history, verdicts) == "pass"


def test_a_fault_that_never_bit_is_inconclusive() -> None:
    history = _history(_rich().fault("pause", "inject", "heal"))
    assert overall(history, judge(history)) == "inconclusive"
    history = _history(_rich().fault("pause", "inject"))
    assert overall(history, judge(history)) == "inconclusive"
    history = _history(_rich().fault("pause", "inject", "inject", "bite", "heal"))
    assert overall(history, judge(history)) == "pass"


def test_a_planned_fault_that_was_never_injected_is_inconclusive() -> None:
    story = _rich().fault("pause", "plan", target="", detail="6")
    history = _history(story)
    assert toothless(history) == {"pause"}
    assert overall(history, judge(history)) == "inconclusive"
    assert why(history, judge(history)) == "fault pause was planned 6 times and never injected"
    history = _history(story.fault("pause", "inject"))
    assert toothless(history) == {"pause"}
    assert why(history, judge(history)) == "fault pause was injected 1 time and never bit"
    history = _history(story.fault("pause", "bite"))
    assert toothless(history) == frozenset()
    assert overall(history, judge(history)) == "pass"


def test_a_fault_that_bit_does_not_stand_for_another_of_its_kind() -> None:
    story = _rich().fault("pause", "plan", target="", detail="6", which=0)
    story.fault("pause", "inject", "bite", which=0).fault("pause", "plan", detail="2", which=3)
    history = _history(story)
    assert toothless(history) == {"pause"}
    assert overall(history, judge(history)) == "inconclusive"
    assert why(history, judge(history)) == (
        "fault pause, number 2 of 2 of its kind, was planned 2 times and never injected"
    )
    history = _history(story.fault("pause", "inject", "bite", which=3))
    assert overall(history, judge(history)) == "pass"


def test_a_run_says_why_it_did_not_pass() -> None:
    history = _history(_rich())
    assert why(history, judge(history)) == ""
    history = _history(_rich().change(9, at=30, error="edited"))
    assert why(history, judge(history)) == "legal-steps failed"
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=2).claim(1, at=3)
    history = story.complete(1, at=4, token=1).history(named=["backs-off"])
    assert why(history, judge(history)) == "no-overlap and fenced failed"
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    history = story.history(named=["effect-once", "fenced", "no-such"])
    assert why(history, judge(history)) == (
        "effect-once is named and judged nothing: no transactional effect was committed;"
        " fenced is named and is inconclusive: no former holder tried to write: no write was"
        " refused, no attempt outlived its lease;"
        " no-such is named, and no invariant has that name"
    )


def test_one_and_many_are_told_apart() -> None:
    assert many(0, "task") == "0 tasks"
    assert many(1, "task") == "1 task"
    assert many(2, "task") == "2 tasks"
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).complete(1, at=3)
    sentence = verdict_of("explained-duplicate", story.history()).sentence
    assert sentence.startswith("1 effect of 1 completed task; 0 duplicates")


def test_a_named_invariant_without_evidence_is_inconclusive() -> None:
    story = Story().enqueue(1).claim(1, at=1).complete(1, at=2)
    history = story.history(named=["fenced"])
    assert overall(history, judge(history)) == "inconclusive"
    history = story.history(named=["conserved"])
    assert overall(history, judge(history)) == "pass"


def test_a_named_invariant_that_nobody_judged_is_inconclusive() -> None:
    history = Story().enqueue(1).cancel(1, at=1).history(named=["no-such-invariant"])
    assert overall(history, judge(history)) == "inconclusive"


def test_a_failure_of_an_invariant_that_is_not_named_fails_the_run() -> None:
    story = Story().enqueue(1).acknowledged(2, at=1).fault("pause", "inject")
    history = story.history(named=["fenced"])
    assert overall(history, judge(history)) == "fail"


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_an_empty_history_passes_nothing(invariant: str) -> None:
    assert verdict_of(invariant, Story().history()).outcome == "inconclusive"


def test_one_bug_in_a_rich_run_turns_only_its_invariants_red() -> None:
    assert failing(_history(_rich().acknowledged(99, at=1))) == {"no-lost-task"}
    assert failing(_history(_rich().enqueue(99, due=25).acknowledged(99, at=0))) == {"progress"}
    edited = _rich().change(9, at=30, error="edited")
    assert failing(_history(edited)) == {"legal-steps"}
    more = _rich().enqueue(99, at=24).acknowledged(99, at=24)
    stolen = more.claim(99, at=30).reclaim(99, at=31).claim(99, at=32)
    assert failing(_history(stolen.complete(99, at=33))) == {"no-overlap"}
    more = _rich().enqueue(99, at=24).acknowledged(99, at=24)
    zombie = more.claim(99, at=24).reclaim(99, at=29).claim(99, at=30)
    assert failing(_history(zombie.complete(99, at=31, token=1))) == {"fenced"}
    twice = _rich().note("effect", 2, 4.6)
    assert failing(_history(twice)) == {"explained-duplicate"}
    causeless = _rich().enqueue(99, at=30).acknowledged(99, at=30).claim(99, at=30)
    causeless.ran(99, 30, 31).reclaim(99, at=35, cause=False).claim(99, by="w2", at=35)
    causeless.complete(99, at=36).note("claimed", 1, 37, token=1)  # w1 is alive
    assert failing(_history(causeless)) == {"explained-duplicate"}
    assert failing(_history(_rich().enqueue(99, at=24).cancel(99, at=25))) == {"conserved"}
    crashed = _rich().fault("death", "death", detail="1")
    assert failing(_history(crashed)) == {"progress"}


def test_only_the_first_twenty_failures_are_told_and_all_are_counted() -> None:
    story = Story()
    for task in range(50):
        story.acknowledged(task, at=1)
    verdict = verdict_of("no-lost-task", story.history())
    assert len(verdict.failures) == 20
    assert verdict.evidence["failures"] == 50


def test_a_failure_says_where_it_stands() -> None:
    story = Story().enqueue(7).claim(7, at=1).reclaim(7, at=2)
    (failure,) = verdict_of("no-overlap", story.history()).failures
    assert (failure.task, failure.seq) == (7, 3)


def test_times_are_told_as_utc() -> None:
    assert clock(us(5.2)) == "12:00:05.200000"
    assert clock(None) == "no time"
    assert clock(2**63 - 1) == "9223372036854775807 µs after 1970"


def test_a_spread_of_nothing_is_empty() -> None:
    assert spread([], "wait") == {}


def test_invariants_import_nothing_but_the_history_and_pure_helpers() -> None:
    pure = {
        "__future__",
        "bisect",
        "chaos.history.collector",
        "chaos.history.events",
        "chaos.history.lives",
        "chaos.history.lost",
        "collections",
        "collections.abc",
        "dataclasses",
        "datetime",
        "hashlib",
        "itertools",
        "math",
        "typing",
    }
    found = set()
    for module in Path(chaos.invariants.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    assert {name for name in found if not name.startswith("chaos.invariants.")} <= pure
