"""`fenced`: good stories, bad ones, and near misses."""

from __future__ import annotations

import pytest

from chaos.history.events import Change, Ended
from chaos.history.lives import lives
from tests.chaos.invariants.build import (
    Story,
    assert_fails,
    assert_inconclusive,
    assert_passes,
    failing,
    us,
)


def _handed_over() -> Story:
    """A task whose first holder, w1, lost its lease and still runs while w2 holds token 2."""
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=7)
    return story.ran(1, 1.5, 8, token=1)


def test_a_late_write_that_was_refused_is_evidence_of_the_fence() -> None:
    story = _handed_over().note("refused", 1, 8, token=1, detail="complete")
    story.note("lease-lost", 1, 8, token=1).fail(1, at=9).claim(1, at=10).complete(1, at=11)
    verdict = assert_passes("fenced", story.history(), judged=3)
    assert verdict.evidence["refused"] == 1
    assert verdict.evidence["lease_lost"] == 1
    assert verdict.evidence["zombies"] == 1
    assert verdict.evidence["by_holder"] == 2


def test_the_evidence_tells_which_kinds_of_late_writes_were_refused() -> None:
    story = _handed_over().complete(1, at=9)
    for detail in ("renew", "renew", "completed", "complete", "failed", "snoozed", "released", ""):
        story.note("refused", 1, 8, token=1, detail=detail)
    evidence = assert_passes("fenced", story.history()).evidence
    assert {name: value for name, value in evidence.items() if name.startswith("refused")} == {
        "refused": 8,
        "refused_completions": 1,
        "refused_completions_in_a_transaction": 1,
        "refused_failures": 1,
        "refused_releases": 1,
        "refused_snoozes": 1,
        "refused_renewals": 2,
    }


def test_without_a_former_holder_that_tried_nothing_is_shown() -> None:
    history = Story().enqueue(1).claim(1, at=1).complete(1, at=2).history()
    assert_inconclusive("fenced", history, "no former holder tried to write")


def test_an_attempt_that_ends_as_its_lease_is_taken_is_no_zombie() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6).claim(1, by="w2", at=7)
    story.ran(1, 1.5, 6, token=1).complete(1, at=9)
    assert_inconclusive("fenced", story.history(), "no former holder")
    story.notes.clear()
    assert_passes("fenced", story.ran(1, 1.5, 6.000001, token=1).history())


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("completed", "completed"),
        ("failed", "pending"),
        ("released", "pending"),
        ("snoozed", "pending"),
    ],
)
def test_a_write_by_a_former_holder_is_told(outcome: str, state: str) -> None:
    story = _handed_over().end(1, 8, outcome, token=1, state=state)
    assert_fails(
        "fenced",
        story.history(),
        f"task 1: w1/1 wrote {outcome} with token 1 at 12:00:08.000000",
        "w2/2 held the lease with token 2",
    )


def test_a_completion_by_a_zombie_breaks_only_the_fence() -> None:
    assert failing(_handed_over().complete(1, at=8, token=1).history()) == {"fenced"}


def test_the_same_token_of_another_owner_is_not_the_holders() -> None:
    # A lossy failover can issue a token twice: then only the owner tells them apart.
    story = Story().enqueue(1).claim(1, at=1)
    story.holders[1, 1] = "w9/9"
    assert_fails("fenced", story.complete(1, at=2).history(), "w9/9 wrote completed with token 1")


def test_a_write_by_a_former_holder_to_a_waiting_row_is_told() -> None:
    story = Story().enqueue(1).claim(1, at=1).reclaim(1, at=6)
    story.end(1, 8, "completed", token=1, state="completed")
    assert_fails("fenced", story.history(), "logged completed", "ended no lease")


def test_a_run_log_row_without_a_change_is_told() -> None:
    story = _handed_over().log(1, 8, "completed", token=1).complete(1, at=9)
    assert_fails("fenced", story.history(), "w1/1 (token 1) logged completed at 12:00:08")


def test_a_run_log_row_of_a_task_that_no_commit_inserted_is_told() -> None:
    ended = Ended(9, 1, "w1/1", 1, us(1), us(2), "completed", None)
    assert_fails("fenced", Story().commit(2, ended=[ended]).history(), "task 9", "ended no lease")


def test_a_second_run_log_row_of_one_change_is_told() -> None:
    story = _handed_over().complete(1, at=8)
    commit = story.commits[-1]
    story.commits[-1] = commit._replace(ended=commit.ended * 2)
    assert_fails("fenced", story.history(), "that commit ended no lease")


def test_a_lease_that_ends_without_a_run_log_row_is_told() -> None:
    story = _handed_over().change(1, at=8, state="completed", owner=None, expires=None)
    assert_fails(
        "fenced", story.history(), "became completed", "w2/2 held token 2", "no run-log row"
    )


def test_a_running_row_that_is_deleted_is_told() -> None:
    story = _handed_over().commit(8, changes=[Change(1, None)])
    assert_fails("fenced", story.history(), "it was deleted", "no run-log row")


def test_a_claim_over_an_expired_lease_names_its_writer() -> None:
    story = Story().enqueue(1).claim(1, at=1).claim(1, by="w2", at=7)
    assert_passes("fenced", story.note("refused", 1, 8, token=1).history())


def test_a_renewal_of_ones_own_lease_is_fenced() -> None:
    story = _handed_over().renew(1, at=9)
    assert_passes("fenced", story.complete(1, at=10).history())


def test_a_renewal_by_a_zombie_is_told() -> None:
    story = _handed_over().change(1, at=8, expires=us(13))
    story.note("renewed", 1, 8, token=1, detail=str(us(13)))
    history = story.complete(1, at=9).history()
    assert_fails(
        "fenced",
        history,
        "w1/1 renewed with token 1 until 12:00:13.000000",
        "prolonged the lease of w2/2 with token 2",
    )
    assert failing(history) == {"fenced"}


def test_a_renewal_that_no_commit_shows_changed_nothing() -> None:
    story = _handed_over().note("renewed", 1, 8, token=1, detail=str(us(13)))
    assert_passes("fenced", story.complete(1, at=9).history())


def test_an_expiry_that_both_holders_had_is_no_zombie_renewal() -> None:
    story = Story().enqueue(1).claim(1, at=1, lease=10).renew(1, at=2, lease=10)
    story.fail(1, at=3).claim(1, by="w2", at=4, lease=8).complete(1, at=5)
    assert_passes("fenced", story.note("refused", 1, 5, token=1).history())


def test_two_ends_of_one_task_are_each_judged() -> None:
    story = Story().enqueue(1).claim(1, at=1).fail(1, at=2).claim(1, by="w2", at=3)
    story.fail(1, at=4, token=1).claim(1, by="w3", at=5).complete(1, at=6, token=2)
    assert_fails("fenced", story.history(), "w1/1 wrote failed", "w2/2 held", times=2)


# Several ends in one commit.


def _in_one_commit(*, reverse: bool) -> Story:
    """Token 1 is given back, token 2 claimed and completed, all in one commit."""
    story = Story().enqueue(1).claim(1, at=1).release(1, at=2)
    story.claim(1, by="w2", at=2).complete(1, at=2)
    last = story.commits[2:]
    del story.commits[2:]
    changes = [change for commit in last for change in commit.changes]
    ended = [row for commit in last for row in commit.ended]
    story.commit(2, changes, reversed(ended) if reverse else ended)
    return story.note("refused", 1, 3, token=1)


@pytest.mark.parametrize("reverse", [False, True])
def test_ends_in_one_commit_are_told_apart_by_their_tokens(reverse: bool) -> None:
    history = _in_one_commit(reverse=reverse).history()
    assert failing(history) == set()
    verdict = assert_passes("fenced", history)
    assert verdict.evidence["by_holder"] == 2
    moves = lives(history)[1].moves
    outcomes = [move.ended and (move.ended.token, move.ended.outcome) for move in moves]
    assert outcomes == [None, None, (1, "released"), None, (2, "completed")]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_stranger_among_the_ends_of_one_commit_is_told(reverse: bool) -> None:
    story = _in_one_commit(reverse=reverse)
    commit = story.commits[-1]
    story.commits[-1] = commit._replace(
        ended=tuple(
            row._replace(token=7, owner="w9/9") if row.token == 2 else row for row in commit.ended
        )
    )
    assert_fails("fenced", story.history(), "w9/9 wrote completed with token 7", "w2/2 held")


def test_an_end_that_nobody_logged_does_not_borrow_the_log_row_of_another() -> None:
    story = _in_one_commit(reverse=False)
    commit = story.commits[-1]
    story.commits[-1] = commit._replace(ended=commit.ended[1:])
    assert_fails("fenced", story.history(), "it became pending", "w1/1 held token 1", "no run-log")


def test_a_claim_over_a_running_row_may_log_the_end_of_the_lease_it_takes() -> None:
    story = Story().enqueue(1).claim(1, at=1)
    ended = story.logged(1, 6, "reclaimed")
    story.claim(1, by="w2", at=6)
    story.commits[-1] = story.commits[-1]._replace(ended=(ended,))
    assert_passes("fenced", story.note("refused", 1, 7, token=1).complete(1, at=8).history())
