"""`effect-once` and `explained-duplicate`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

from chaos.history.events import Effect, Note
from chaos.invariants.verdict import Verdict
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
    us,
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


def test_a_history_without_effects_shows_nothing() -> None:
    history = Story().enqueue(1).claim(1, at=1).complete(1, at=2).history()
    assert_inconclusive("effect-once", history, "no transactional effect was committed")
    assert_inconclusive("explained-duplicate", history, "no effect outside the database happened")


# explained-duplicate


def duplicates(verdict: Verdict) -> dict[str, float]:
    """What the evidence says of duplicates."""
    prefix = "duplicates_"
    facts = verdict.evidence.items()
    return {name.removeprefix(prefix): n for name, n in facts if name.startswith(prefix)}


def test_one_effect_of_a_completed_task_needs_no_explanation() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).complete(1, at=3)
    verdict = assert_passes("explained-duplicate", story.history(), judged=1)
    assert verdict.evidence["duplicates_explained"] == 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("fail", "failure"),
        ("snooze", "snooze"),
        ("reclaim", "reclaim"),
        ("zombie", "reclaim"),
    ],
)
def test_an_extra_effect_of_an_attempt_that_did_not_complete_is_explained(
    how: str, reason: str
) -> None:
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
    verdict = assert_passes("explained-duplicate", story.history())
    assert verdict.judged == 2 + verdict.evidence["leases_lost"]
    assert duplicates(verdict) == {"explained": 1, f"after_{reason}": 1, "of_one_task_at_most": 1}


def test_explained_duplicates_are_told_by_their_reasons_and_by_task() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2).fail(1, at=3)
    story.claim(1, at=4).note("effect", 1, 5).complete(1, at=6).requeue(1, at=7)
    story.claim(1, at=8).note("effect", 1, 9).release(1, at=10)
    story.claim(1, at=11).note("effect", 1, 12)  # and still runs
    story.enqueue(2, kind="mail").claim(2, at=1).note("effect", 2, 2).stall(2)
    story.claim(2, by="w2", at=7).note("effect", 2, 8).complete(2, at=9)
    verdict = assert_passes("explained-duplicate", story.history())
    assert duplicates(verdict) == {
        "explained": 4,
        "after_failure": 1,
        "after_loss_to_a_claim": 1,
        "after_release": 1,
        "after_requeue": 1,
        "of_one_task_at_most": 3,
    }


def test_the_same_token_twice_is_never_explained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.note("effect", 1, 3).reclaim(1, at=6).claim(1, by="w2", at=7).note("effect", 1, 8)
    history = story.complete(1, at=9).history()
    verdict = assert_fails("explained-duplicate", history, "w1/1 with token 1", "effect 2 times")
    assert verdict.evidence["duplicates_explained"] == 1
    assert failing(history) == {"explained-duplicate"}


def test_an_effect_of_an_attempt_without_an_end_is_unexplained() -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1).note("effect", 1, 2)
    story.change(1, at=3, state="pending", owner=None, expires=None)
    story.claim(1, by="w2", at=7).note("effect", 1, 8).complete(1, at=9)
    verdict = assert_fails(
        "explained-duplicate", story.history(), "the effect of w1/1 with token 1 is an extra one"
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
    assert_fails("explained-duplicate", history, "the effect of w1/1 with token 1 is an extra")


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
    story.stall(1).claim(1, by="w2", at=7).note("effect", 1, 8).complete(1, at=9)
    assert_passes("explained-duplicate", story.history(), judged=3)


# explained-duplicate: what explains a lost lease


def _lost(*, renewed: float | None = None, at: float = 9, owner: str | None = None) -> Story:
    """A lease of w1 on a task without effects that ran out: given at 1, renewed until 3 later."""
    story = Story().enqueue(1, 2).claim(1, at=1, lease=3, owner=owner).note("started", 1, 1)
    if renewed is not None:
        story.renew(1, at=renewed, lease=3)
    story.reclaim(1, at=at, cause=False).claim(1, by="w2", at=at).complete(1, at=at + 1)
    # It lives on: it is heard of later.
    return story.claim(2, by="w1", at=20).note("claimed", 2, 20).complete(2, at=21)


LOSS = (
    "task 1: the lease of w1/1 under token 1 ran out at 12:00:04.000000 although nothing was done"
)


def test_a_lease_lost_by_a_worker_that_was_left_alone_is_told() -> None:
    history = _lost().history()
    assert_fails("explained-duplicate", history, f"{LOSS} to w1 and it was alive")
    assert failing(history) == {"explained-duplicate"}


@pytest.mark.parametrize(
    ("target", "inject", "heal", "explained"),
    [
        ("w1", 2, 3, True),
        ("w1", 0, 0.999999, False),
        ("w1", 0, 1, True),
        ("w1", 4, 5, True),
        ("w1", 4.000001, 5, False),
        ("w1", 0, None, True),
        ("w1", 4.000001, None, False),
        ("w0 w1", 2, 3, True),
        ("w2", 2, 3, False),
        ("w11", 2, 3, False),
        ("nobody", 2, 3, False),
        ("", 2, 3, True),
        ("server", 2, 3, True),
        ("database", 0, 0.999999, False),
        ("server", 0, None, False),
        ("server", 2, None, True),
    ],
)
def test_a_fault_explains_a_lost_lease_that_it_overlaps(
    target: str, inject: float, heal: float | None, explained: bool
) -> None:
    story = _lost().fault("pause", "inject", target=target, at=inject)
    if heal is not None:
        story.fault("pause", "heal", target=target, at=heal)
    if explained:
        assert_passes("explained-duplicate", story.history(), judged=1)
    else:
        assert_fails("explained-duplicate", story.history(), LOSS)


def test_what_is_done_to_the_server_and_not_to_sessions_explains_no_lost_lease() -> None:
    for name in ("old-transaction", "row-lock", "stale-statistics"):
        story = _lost().fault(name, "inject", target="server", at=2)
        story.fault(name, "heal", target="server", at=6)
        assert_fails("explained-duplicate", story.history(), LOSS)


def test_a_fault_that_was_over_when_the_lease_was_renewed_explains_nothing() -> None:
    story = _lost(renewed=3).fault("pause", "inject", at=1.5).fault("pause", "heal", at=2.9)
    assert_fails("explained-duplicate", story.history(), "ran out at 12:00:06.000000 although")
    story.fault("pause", "inject", at=3.5).fault("pause", "heal", at=3.6)
    assert_passes("explained-duplicate", story.history())


def test_each_heal_is_of_the_injection_before_it() -> None:
    story = _lost()
    for inject, heal in ((0, 0.5), (5, 6)):
        story.fault("pause", "inject", at=inject).fault("pause", "heal", at=heal)
    assert_fails("explained-duplicate", story.history(), LOSS)


def test_a_long_fault_explains_though_a_short_one_began_after_it() -> None:
    story = _lost()
    for name, inject, heal in (("down", 0, 2), ("latency", 0.2, 0.5)):
        story.fault(name, "inject", at=inject).fault(name, "heal", at=heal)
    assert_passes("explained-duplicate", story.history())


def test_a_worker_that_is_only_asked_to_stop_must_lose_no_lease() -> None:
    story = _lost().fault("terminate", "inject", at=2).fault("terminate", "heal", at=5)
    assert_fails("explained-duplicate", story.history(), f"{LOSS} to w1 but to ask it to stop")


@pytest.mark.parametrize(("at", "explained"), [(0.5, True), (4, True), (4.000001, False)])
def test_a_death_explains_the_leases_that_ran_out_after_it(at: float, explained: bool) -> None:
    history = _lost().fault("death", "death", at=at, detail="-9").history()
    assert failing(history) == (set() if explained else {"explained-duplicate"})


def test_a_lag_at_another_time_explains_no_loss() -> None:
    assert_fails("explained-duplicate", _lost().history(lag=3600), LOSS)


@pytest.mark.parametrize(
    ("inject", "heal", "explained"),
    [
        (2, 4.5, True),  # the server stood still, and the renewal was on its way
        (0, 0.9, False),
        (6, 7, False),  # when nobody believed in the lease any more
        (None, None, False),
    ],
)
def test_a_renewal_that_comes_when_its_holder_has_given_up_does_not_hide_why_it_did(
    inject: float | None, heal: float | None, explained: bool
) -> None:
    story = Story().enqueue(1, 2).claim(1, at=1, lease=3).note("started", 1, 1)
    story.note("lease-lost", 1, 4).renew(1, at=5, lease=3)
    story.reclaim(1, at=9, cause=False).claim(1, by="w2", at=9).complete(1, at=10)
    story.claim(2, by="w1", at=20).note("claimed", 2, 20).complete(2, at=21)
    if inject is not None and heal is not None:
        story.fault("stall", "inject", target="server", at=inject)
        story.fault("stall", "heal", target="server", at=heal)
    if explained:
        assert_passes("explained-duplicate", story.history(), judged=1)
    else:
        assert_fails("explained-duplicate", story.history(), LOSS)


@pytest.mark.parametrize(
    ("stopped", "explained"),
    [
        ((2.5, 4.9), True),
        ((1.0, 2.0), False),
        ((2.2, 2.4), False),  # too soon for the claim to have waited for its end
        ((5.5, 6.0), False),
        (None, False),
    ],
)
def test_a_claim_that_was_asked_for_long_before_it_came_is_given_up_at_once(
    stopped: tuple[float, float] | None, explained: bool
) -> None:
    story = Story().enqueue(1, 2).claim(1, at=5, lease=3).note("lease-lost", 1, 5.1)
    story.reclaim(1, at=9, cause=False).claim(1, by="w2", at=9).complete(1, at=10)
    story.claim(2, by="w1", at=20).note("claimed", 2, 20).complete(2, at=21)
    if stopped is not None:
        begin, end = stopped
        story.fault("pause", "inject", target="w1", at=begin)
        story.fault("pause", "heal", target="w1", at=end)
    if explained:
        assert_passes("explained-duplicate", story.history(), judged=1)
    else:
        assert_fails("explained-duplicate", story.history(), "the lease of w1/1", "ran out")


@pytest.mark.parametrize(
    ("renewed", "waited", "explained"),
    [
        (3.9, (3.5, 1.2), True),  # on its way for too long: its reply came when all was over
        (3.9, (4.1, 1.2), True),
        (3.9, (5.5, 1.2), False),  # after it gave up
        (3.9, (3.5, 0.5), False),
        (2.4, (2.2, 1.1), False),  # this is the one that it believed in, and gave up for no reason
    ],
)
def test_a_renewal_just_before_its_holder_gives_up_is_not_what_it_believed_in(
    renewed: float, waited: tuple[float, float], explained: bool
) -> None:
    at, length = waited
    story = Story().enqueue(1, 2).claim(1, at=1, lease=3).note("started", 1, 1)
    story.renew(1, at=renewed, lease=3).note("lease-lost", 1, 4)
    story.notes.append(Note(us(at), "w1", "starved", 0, 0, "", str(round(length * 1e6))))
    story.reclaim(1, at=9, cause=False).claim(1, by="w2", at=9).complete(1, at=10)
    story.claim(2, by="w1", at=20).note("claimed", 2, 20).complete(2, at=21)
    if explained:
        assert_passes("explained-duplicate", story.history(), judged=1)
    else:
        assert_fails("explained-duplicate", story.history(), "the lease of w1/1", "ran out")


@pytest.mark.parametrize(
    ("worker", "waits", "explained"),
    [
        ("w1", [(3, 1.1)], True),
        ("w1", [(3, 1)], False),
        ("w1", [(2, 0.5), (3, 0.4), (4, 0.2)], True),
        ("w1", [(1.5, 1.1)], False),  # the most of it before the lease began
        ("w1", [(4.6, 1.7)], True),  # its end was noted after the lease's
        ("w1", [(4.6, 1.6)], False),
        ("w1", [(4.2, 1), (5, 2)], False),  # the second wait began after the first
        ("w2", [(3, 2)], False),
        ("runner", [(3, 1.1)], True),
        ("runner", [(3, 1)], False),
        ("runner", [(0.9, 3600), (4.1, 0.1), (9, 2)], False),
    ],
)
def test_a_third_of_the_lease_without_a_processor_explains_its_loss(
    worker: str, waits: list[tuple[float, float]], explained: bool
) -> None:
    story = _lost()
    for at, length in waits:
        story.notes.append(Note(us(at), worker, "starved", 0, 0, "", str(round(length * 1e6))))
    if explained:
        verdict = assert_passes("explained-duplicate", story.history(), judged=1)
        assert verdict.evidence["leases_lost_for_want_of_a_processor"] == 1
        story.fault("pause", "inject", at=2).fault("pause", "heal", at=3)
        verdict = assert_passes("explained-duplicate", story.history(), judged=1)
        assert verdict.evidence["leases_lost_for_want_of_a_processor"] == 0
    else:
        assert_fails("explained-duplicate", story.history(), LOSS)


def _beside(fault: str, started: float, finished: float | None) -> Story:
    """The lost lease, and a task of the kind `hog` that ran on the same worker."""
    story = _lost().enqueue(3, kind="hog", at=0).claim(3, at=started, lease=99)
    story.note("started", 3, started)
    if finished is not None:
        story.note("finished", 3, finished).complete(3, at=finished)
    return story.fault(fault, "inject", target="1 tasks", at=0)


@pytest.mark.parametrize(
    ("fault", "started", "finished", "explained"),
    [
        ("hog", 2, 3.1, True),
        ("hog", 2, 3, False),
        ("hog", 3.5, 9, False),
        ("hog", 0, 9, True),
        ("hog", 3.9, None, True),
        ("hog", 4.1, None, False),
        ("flaky", 2, 3.1, False),
        ("outlast-lease", 0, None, False),
    ],
)
def test_a_task_that_is_a_fault_explains_what_it_kept_its_worker_from(
    fault: str, started: float, finished: float | None, explained: bool
) -> None:
    history = _beside(fault, started, finished).history()
    if explained:
        assert_passes("explained-duplicate", history, judged=1)
    else:
        assert_fails("explained-duplicate", history, LOSS)


def test_an_owner_names_its_worker_before_the_first_slash() -> None:
    story = _lost(owner="w1/a/b")
    assert_fails("explained-duplicate", story.history(), LOSS.replace("w1/1", "w1/a/b"))
    story.fault("pause", "inject", at=2).fault("pause", "heal", at=3)
    assert_passes("explained-duplicate", story.history(), judged=1)


def test_a_worker_without_a_journal_is_not_judged() -> None:
    story = _lost()
    story.notes.clear()
    assert_inconclusive("explained-duplicate", story.history(), "no worker with a journal")


def test_a_worker_that_fell_silent_may_be_dead_unless_the_history_tells_of_deaths() -> None:
    story = _lost()
    story.notes = [note for note in story.notes if note.at <= us(4)]
    assert_passes("explained-duplicate", story.history(), judged=1)
    story.fault("kill", "plan", target="", detail="1")
    assert_fails("explained-duplicate", story.history(), LOSS)


def test_a_lease_that_was_taken_after_the_end_of_the_run_is_not_judged() -> None:
    assert_fails("explained-duplicate", _lost(at=9).history(ended=9), LOSS)
    assert_inconclusive("explained-duplicate", _lost(at=9).history(ended=8.999999))


def test_a_lease_that_was_taken_too_early_did_not_run_out() -> None:
    history = _lost(at=3.999999).history()
    assert failing(history) == {"no-overlap"}
    assert_fails("explained-duplicate", _lost(at=4).history(), LOSS)


def test_a_lease_that_was_claimed_away_is_judged_too() -> None:
    story = Story().enqueue(1).claim(1, at=1, lease=3).ran(1, 1, 9).claim(1, by="w2", at=5)
    assert_fails("explained-duplicate", story.complete(1, at=9).history(), LOSS)


@pytest.mark.parametrize("how", ["reclaimed", "claimed away"])
def test_a_lease_lost_without_a_cause_explains_no_extra_effect(how: str) -> None:
    story = Story().enqueue(1, kind="mail").claim(1, at=1, lease=3).note("effect", 1, 2)
    if how == "reclaimed":
        story.reclaim(1, at=6, cause=False)
    story.claim(1, by="w2", at=7).note("effect", 1, 8)
    history = story.note("claimed", 1, 9, token=1).complete(1, at=9).history()
    verdict = assert_fails("explained-duplicate", history, LOSS, times=2)
    assert "the effect of w1/1 with token 1 is an extra one" in verdict.failures[1].sentence
    assert verdict.evidence["duplicates_explained"] == 0
    assert "explained-duplicate" in failing(history)
