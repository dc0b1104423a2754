"""A fault bit only if the history shows the effect that it is there to have, or it counted it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import pytest

from chaos.cluster.postgres import Postgres
from chaos.faults import Fault, Injection
from chaos.faults.clock import WrongClock
from chaos.faults.database import (
    Crash,
    DdlLock,
    ExhaustConnections,
    OldTransaction,
    Restart,
    StaleStatistics,
    TerminateBackends,
)
from chaos.faults.network import Bandwidth, BlackHole, Down, Latency, LimitData, ResetPeer, Slicer
from chaos.faults.operator import Cancel, Discard, Requeue
from chaos.faults.replies import LoseCommits, LoseReplies
from chaos.faults.rows import RowLock
from chaos.faults.tasks import faults_of
from chaos.faults.worker import Freeze, Kill, Pause, Stampede, Terminate
from chaos.fleet import Fleet, Seat
from chaos.history.events import History, Note, worker_of
from chaos.workload import Behaviour, Job
from tests.chaos.faults.arena import arena
from tests.chaos.invariants.build import Story, us

KILL = Kill(kind="kill", count=1)
KILL_LAST = Kill(kind="kill", count=1, aim="last-attempt")
PAUSE = Pause(kind="pause", count=1, lasts=2)
BLACK_HOLE = BlackHole(kind="black-hole", count=1, lasts=2)
FREEZE = Freeze(kind="freeze", count=1)
LOSE_REPLIES = LoseReplies(kind="lose-replies", count=1, lasts=2)
LOSE_COMMITS = LoseCommits(kind="lose-commits", count=1, lasts=2)
TERMINATE = Terminate(kind="terminate", count=1)
STAMPEDE = Stampede(kind="stampede", count=1)
OUTAGES = [Crash(kind="crash", count=1, lasts=2), Restart(kind="restart", count=1, lasts=2)]
SLOW_REPLIES = [
    Latency(kind="latency", count=1, lasts=2, ms=400),
    Bandwidth(kind="bandwidth", count=1, lasts=2, kb_per_second=1),
    Slicer(kind="slicer", count=1, lasts=2, bytes=20, delay_ms=20),
]
COUNTED = [
    ResetPeer(kind="reset-peer", count=1, lasts=1),
    LimitData(kind="limit-data", count=1, lasts=1, bytes=100),
    Down(kind="down", count=1, lasts=1),
    TerminateBackends(kind="terminate-backends", count=1),
    ExhaustConnections(kind="exhaust-connections", count=1, lasts=1),
    OldTransaction(kind="old-transaction", count=1, lasts=1),
    StaleStatistics(kind="stale-statistics", count=1, lasts=1),
    DdlLock(kind="ddl-lock", count=1, lasts=1),
    Requeue(kind="requeue", count=1),
    Discard(kind="discard", count=1),
]
# In place from 10 s to 20 s.
INJECTION = Injection("w1.1", us(9), us(10), us(20), seen=0)


def kind(fault: Fault) -> str:
    """The name of a parameter."""
    return fault.kind


def held(owner: str = "w1.1/nonce", task: int = 7, max_attempts: int = 3) -> Story:
    """A story in which a worker has claimed a task."""
    return Story().enqueue(task, max_attempts=max_attempts).claim(task, at=5, owner=owner)


def claim_told(at: float, worker: str = "w1.1", claimed: float = 12) -> History:
    """A claim, and a worker that knows of it at some later time."""
    story = Story().enqueue(7).claim(7, at=claimed, owner=f"{worker}/nonce")
    story.change(7, at=claimed + 1, error="neither a claim nor a renewal")
    story.notes = [Note(us(at), worker, "claimed", 7, 1, f"{worker}/nonce", "")]
    return story.history()


@pytest.mark.parametrize("fault", [KILL, PAUSE, BLACK_HOLE, FREEZE], ids=kind)
def test_a_fault_bit_if_a_lease_was_taken_from_its_target(fault: Fault) -> None:
    assert fault.bite(INJECTION, held().reclaim(7, 15).history()) is not None


@pytest.mark.parametrize("fault", [KILL, PAUSE, BLACK_HOLE, FREEZE], ids=kind)
@pytest.mark.parametrize(
    "story",
    [
        held(),
        held().reclaim(7, 8),
        held().complete(7, 15),
        held("w2.1/nonce").reclaim(7, 15),
        held("w1.11/nonce").reclaim(7, 15),
    ],
    ids=["nothing", "before", "completed", "another worker", "a name that begins alike"],
)
def test_a_fault_did_not_bite_if_no_lease_was_taken_from_its_target_afterwards(
    fault: Fault, story: Story
) -> None:
    assert fault.bite(INJECTION, story.history()) is None


def test_a_kill_bites_whenever_its_lease_is_reclaimed_but_a_zombie_must_have_been_away() -> None:
    late = held().reclaim(7, 21).history()
    assert KILL.bite(INJECTION, late) is not None
    assert PAUSE.bite(INJECTION, late) is None
    assert BLACK_HOLE.bite(INJECTION, late) is None


def test_a_kill_bit_as_well_if_an_operator_cancelled_what_the_dead_had_left() -> None:
    cancelled = held().cancel(7, 15)
    assert KILL.bite(INJECTION, cancelled.history()) is not None
    assert KILL.bite(INJECTION, held().cancel(7, 9.5).history()) is None  # perhaps still alive
    assert KILL.bite(INJECTION, held("w2.1/nonce").cancel(7, 15).history()) is None
    assert PAUSE.bite(INJECTION, cancelled.history()) is None
    for aim in ("last-attempt", "in-renewal"):
        aimed = KILL.model_copy(update={"aim": aim})
        assert aimed.bite(INJECTION, cancelled.history()) is None


def test_a_pause_bit_as_well_if_the_worker_took_leases_from_its_own_handlers_afterwards() -> None:
    def bit(
        by: str = "w1.1",
        owner: str = "w1.1/nonce",
        claimed: float = 9,  # for five seconds
        started: float | None = 9.5,
        taken: float = 21,
        finished: float | None = 25,
    ) -> bool:
        story = Story().enqueue(7).claim(7, at=claimed, owner=owner).reclaim(7, taken)
        told = [
            ("started", started, owner),
            ("reclaimed", taken, by),
            ("finished", finished, owner),
        ]
        story.notes = [
            Note(us(at), worker_of(who), what, 7, 1, owner, "")
            for what, at, who in told
            if at is not None
        ]
        return PAUSE.bite(INJECTION, story.history()) is not None

    assert bit()
    assert bit(finished=None)
    assert not bit(finished=20.5)  # at once when it woke up
    assert not bit(started=None)
    assert not bit(started=20.5)
    assert not bit(claimed=3.5, started=3.6)  # ran out before
    assert not bit(claimed=16)  # did not run out meanwhile
    assert not bit(by="w2.1")
    assert not bit(owner="w2.1/nonce")


@pytest.mark.parametrize(
    ("workers", "terminated", "told", "looks"),
    [
        (1, False, [{}, {"w2.1": [1]}, {"w1.1": [1]}], 3),
        (1, False, [{}, None], 2),  # nobody can tell
        (1, True, [], 0),
        (2, False, [], 0),
    ],
)
def test_whether_a_pause_bit_is_asked_once_a_worker_that_is_alone_has_a_lease_again(
    server: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    terminated: bool,
    told: list[dict[str, list[int]] | None],
    looks: int,
) -> None:
    where = arena(server, "postgres", *[Seat(number, "") for number in range(1, workers + 1)])
    left = list(told)
    monkeypatch.setattr(where, "leases", lambda: left.pop(0))
    PAUSE.model_copy(update={"terminated": terminated}).settle(where, INJECTION)
    assert len(told) - len(left) == looks


@pytest.mark.parametrize("fault", [KILL, PAUSE, FREEZE], ids=kind)
def test_who_was_aimed_at_in_a_renewal_must_say_that_it_was_there(fault: Fault) -> None:
    aimed = fault.model_copy(update={"aim": "in-renewal"})
    story = held().reclaim(7, 15)
    for at, worker, what, bit in (
        (9.9, "w1.1", "in-renewal", True),
        (8.8, "w1.1", "in-renewal", True),  # and waited to be struck
        (8.6, "w1.1", "in-renewal", False),
        (10.1, "w1.1", "in-renewal", False),
        (9.9, "w2.1", "in-renewal", False),
        (9.9, "w1.1", "in-reclaim", False),
    ):
        story.notes = [Note(us(at), worker, what, 0, 0, "", "")]
        assert (aimed.bite(INJECTION, story.history()) is not None) is bit, (at, worker, what)


def reply_lost(at: float, waited: float, worker: str = "w1.1") -> list[Note]:
    """A worker that waited for a reply in vain."""
    return [Note(us(at), worker, "reply-lost", 0, 0, "", str(us(waited) - us(0)))]


def test_replies_were_lost_if_the_worker_committed_while_it_waited_for_one_in_vain() -> None:
    story = Story().enqueue(7).claim(7, at=12, owner="w1.1/nonce")
    for notes, bit in (
        (reply_lost(13, 2), True),
        (reply_lost(11, 2), False),
        (reply_lost(15, 2), False),
        (reply_lost(13, 2, "w2.1"), False),
        (reply_lost(21, 12), False),
        ([], False),
    ):
        story.notes = notes
        assert (LOSE_REPLIES.bite(INJECTION, story.history()) is not None) is bit
    others = Story().enqueue(7).claim(7, at=12, owner="w2.1/nonce")
    others.notes = reply_lost(13, 2)
    assert LOSE_REPLIES.bite(INJECTION, others.history()) is None


def test_a_task_was_cancelled_in_the_state_that_was_meant_or_the_fault_did_not_bite() -> None:
    waiting = Story().enqueue(7).cancel(7, 9.5)
    running = Story().enqueue(7).claim(7, at=2).cancel(7, 9.5)
    done = replace(INJECTION, target="operator", seen=1)
    for story, was_running in ((waiting, False), (running, True)):
        for wanted in (False, True):
            fault = Cancel(kind="cancel", count=1, running=wanted)
            assert (fault.bite(done, story.history()) is not None) is (wanted is was_running)
    earlier = Story().enqueue(7).cancel(7, 3).history()
    assert Cancel(kind="cancel", count=1, running=False).bite(done, earlier) is None


def test_a_kill_at_a_moment_at_which_nobody_can_tell_who_held_leases_was_not_missed(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "kill", lambda fleet, seats: None)
    seat = Seat(1, "", incarnation=1)
    where = arena(server, "postgres", seat)
    told: Sequence[tuple[dict[str, list[int]] | None, bool]]
    told = [({"w1.1": [1]}, False), ({}, True), (None, False)]
    for leases, missed in told:
        monkeypatch.setattr(where, "leases", partial(copy, leases))
        seen = KILL.strike(where, seat)()
        assert KILL.missed(replace(INJECTION, seen=seen), Story().history()) is missed


def test_of_commits_only_one_with_an_effect_was_lost() -> None:
    claimed = Story().enqueue(7).claim(7, at=12, owner="w1.1/nonce")
    claimed.notes = reply_lost(13, 2)
    assert LOSE_REPLIES.bite(INJECTION, claimed.history()) is not None
    assert LOSE_COMMITS.bite(INJECTION, claimed.history()) is None
    completed = Story().enqueue(7).claim(7, at=11, owner="w1.1/nonce")
    completed.complete(7, 12, effect=True)
    completed.notes = reply_lost(13, 1)
    assert LOSE_COMMITS.bite(INJECTION, completed.history()) is not None


def test_a_row_lock_bit_if_it_held_to_the_end_and_others_were_claimed_meanwhile() -> None:
    lock = RowLock(kind="row-lock", count=1, lasts=2)
    claimed = Story().enqueue(7).claim(7, at=12).history()
    assert lock.bite(replace(INJECTION, seen=3), claimed) is not None
    assert lock.bite(INJECTION, claimed) is None
    before = Story().enqueue(7).claim(7, at=9).history()
    assert lock.bite(replace(INJECTION, seen=3), before) is None


def test_a_kill_on_the_last_attempt_bit_only_if_the_task_died_of_it() -> None:
    assert KILL_LAST.bite(INJECTION, held(max_attempts=1).reclaim(7, 15).history()) is not None
    assert KILL_LAST.bite(INJECTION, held(max_attempts=2).reclaim(7, 15).history()) is None


def test_a_termination_bit_if_the_worker_ended_its_attempts_and_then_itself() -> None:
    gone = replace(INJECTION, seen=1)
    assert TERMINATE.bite(gone, held().complete(7, 11).history()) is not None
    assert TERMINATE.bite(gone, held().release(7, 11).history()) is not None
    assert TERMINATE.bite(gone, held().complete(7, 9).history()) is None
    assert TERMINATE.bite(gone, held().reclaim(7, 11).history()) is None
    assert TERMINATE.bite(gone, held("w2.1/nonce").complete(7, 11).history()) is None
    assert TERMINATE.bite(INJECTION, held().complete(7, 11).history()) is None


def test_a_stampede_bit_if_several_died_with_leases_and_new_ones_came() -> None:
    injection = replace(INJECTION, target="w1.1 w2.1")
    story = held().enqueue(8).claim(8, at=5, owner="w2.1/nonce").reclaim(7, 15).reclaim(8, 15)
    story.notes = [Note(us(16), "w1.2", "claimed", 7, 2, "w1.2/nonce", "")]
    assert STAMPEDE.bite(injection, story.history()) is not None
    nobody_came = replace(story.history(), notes=(story.notes[0]._replace(worker="w1.1"),))
    assert STAMPEDE.bite(injection, nobody_came) is None
    only_one = held().reclaim(7, 15)
    only_one.notes = story.notes
    assert STAMPEDE.bite(injection, only_one.history()) is None


@pytest.mark.parametrize("fault", OUTAGES, ids=kind)
def test_an_outage_bit_if_leases_were_held_across_a_silence(fault: Fault) -> None:
    assert fault.bite(INJECTION, held().complete(7, 21).history()) is not None


@pytest.mark.parametrize("fault", OUTAGES, ids=kind)
@pytest.mark.parametrize(
    "story",
    [
        held().complete(7, 15),
        held().complete(7, 8).enqueue(8, at=21),
        held(),
    ],
    ids=["not silent", "no lease", "no work afterwards"],
)
def test_an_outage_did_not_bite_otherwise(fault: Fault, story: Story) -> None:
    assert fault.bite(INJECTION, story.history()) is None


@pytest.mark.parametrize("fault", OUTAGES, ids=kind)
def test_an_outage_is_not_tried_again_before_work_could_go_on(fault: Fault) -> None:
    assert not fault.missed(INJECTION, held().history())
    assert fault.missed(INJECTION, held().complete(7, 15).history())
    assert fault.missed(INJECTION, Story().enqueue(7).history())


def test_a_kill_is_tried_again_if_it_left_no_lease_behind() -> None:
    history = held().history()
    assert KILL.missed(INJECTION, history)
    assert not KILL.missed(replace(INJECTION, seen=1), history)
    assert STAMPEDE.missed(replace(INJECTION, seen=1), history)
    assert not STAMPEDE.missed(replace(INJECTION, seen=2), history)


def test_what_lasted_is_tried_again_if_it_had_no_effect_by_its_end() -> None:
    assert PAUSE.missed(INJECTION, held().history())
    assert not PAUSE.missed(INJECTION, held().reclaim(7, 15).history())
    # Nobody knows yet: the leases of a process that is stopped for good are valid for now.
    assert not FREEZE.missed(INJECTION, held().history())


@pytest.mark.parametrize("fault", SLOW_REPLIES, ids=kind)
def test_a_slow_network_bit_if_the_reply_to_a_claim_was_late(fault: Fault) -> None:
    assert fault.bite(INJECTION, claim_told(at=12.5)) is not None


@pytest.mark.parametrize("fault", SLOW_REPLIES, ids=kind)
def test_a_slow_network_bit_if_a_reply_never_came(fault: Fault) -> None:
    assert fault.bite(INJECTION, replace(claim_told(at=12.5), notes=())) is not None


@pytest.mark.parametrize("fault", SLOW_REPLIES, ids=kind)
def test_a_slow_network_bit_if_the_reply_to_a_renewal_was_late(fault: Fault) -> None:
    story = held()
    for at in (9, 11, 13):
        story.change(7, at, expires=us(at + 5))
    early = Note(us(9.5), "w1.1", "renewed", 7, 1, "w1.1/nonce", str(us(14)))
    first = early._replace(at=us(11.05), detail=str(us(16) - 1))
    in_time = early._replace(at=us(13.05), detail=str(us(18)))
    story.notes = [early, first, in_time]
    assert fault.bite(INJECTION, story.history()) is None
    story.notes = [early, first, in_time._replace(at=us(13.5))]
    assert fault.bite(INJECTION, story.history()) is not None


@pytest.mark.parametrize("fault", SLOW_REPLIES, ids=kind)
@pytest.mark.parametrize(
    "history",
    [
        claim_told(at=12.05),
        claim_told(at=12.5, worker="w2.1"),
        claim_told(at=9.5, claimed=9),
        replace(claim_told(at=12.5), phases=Story().history(lag=1).phases),
    ],
    ids=["in time", "another worker", "before", "the machine lagged"],
)
def test_a_slow_network_did_not_bite_otherwise(fault: Fault, history: History) -> None:
    assert fault.bite(INJECTION, history) is None


@pytest.mark.parametrize("fault", COUNTED, ids=kind)
def test_what_no_commit_can_show_bit_if_the_fault_saw_it(fault: Fault) -> None:
    assert fault.bite(replace(INJECTION, seen=3), Story().history()) is not None
    assert fault.bite(INJECTION, Story().history()) is None


def bite(behaviour: Behaviour, story: Story, seconds: float = 0.0) -> str | None:
    """What the only fault that such a task 7 is says of a story, with leases of two seconds."""
    [fault] = faults_of(Job(0, behaviour, seconds, 1), lease=2)
    return fault.bite({7}, story.history(), 2)


def test_tasks_that_do_no_harm_are_no_faults() -> None:
    assert faults_of(Job(0, "slow", 1, 0), lease=2) == []
    assert faults_of(Job(0, "quick", 0, 0), lease=2) == []


def test_a_flaky_task_bit_if_it_failed() -> None:
    assert bite("flaky", held().fail(7, 6)) is not None
    assert bite("flaky", held().complete(7, 6)) is None


def test_a_failing_task_bit_if_it_failed_until_it_was_dead() -> None:
    assert bite("failing", held(max_attempts=1).fail(7, 6)) is not None
    assert bite("failing", held(max_attempts=2).fail(7, 6)) is None


def test_a_poisonous_task_bit_if_its_lease_was_taken_from_the_dead() -> None:
    assert bite("poison", held().reclaim(7, 11)) is not None
    assert bite("poison", held().complete(7, 6)) is None


def test_a_hog_bit_if_it_lost_its_lease_and_lived() -> None:
    assert bite("hog", held().reclaim(7, 11).note("effect", 7, 12, token=1)) is not None
    assert bite("hog", held().reclaim(7, 11)) is None
    assert bite("hog", held().complete(7, 6).note("effect", 7, 6, token=1)) is None


def test_a_hostile_task_bit_if_its_error_was_stored_and_it_was_done_at_last() -> None:
    failed = held().fail(7, 6)
    failed.commits[-1] = failed.commits[-1]._replace(
        ended=(failed.commits[-1].ended[0]._replace(error="what it said"),)
    )
    assert bite("hostile", failed) is None
    assert bite("hostile", failed.claim(7, at=7).complete(7, 8)) is not None
    assert bite("hostile", held().complete(7, 6)) is None


def test_a_slow_task_bit_if_its_holder_completed_it_after_more_than_a_lease() -> None:
    assert bite("slow", held().complete(7, 8), seconds=3) is not None
    assert bite("slow", held().complete(7, 6), seconds=3) is None
    assert bite("slow", held().reclaim(7, 8), seconds=3) is None
    assert bite("slow", held().fail(7, 8), seconds=3) is None


@pytest.mark.parametrize(
    ("worker", "at", "wrong_by", "bites"),
    [
        ("w1.1", 15, 3600, True),
        ("w1.1", 15, -3600, True),
        ("w1.1", 15, 1799, False),  # less than half of what was asked for
        ("w1.1", 9, 3600, False),  # before it was in place
        ("w1.1", 21, 3600, False),  # after it was healed
        ("w1.2", 15, 3600, False),  # somebody else
    ],
)
def test_a_clock_was_wrong_if_its_worker_claimed_by_it(
    worker: str, at: float, wrong_by: float, bites: bool
) -> None:
    fault = WrongClock(kind="wrong-clock", count=1, lasts=10, seconds=3600)
    story = held()
    story.notes = [Note(us(at), worker, "claimed", 7, 1, "o", str(us(at + wrong_by)))]
    assert (fault.bite(INJECTION, story.history()) is not None) == bites


def test_a_clock_that_drifts_was_wrong_if_it_was_noticeably_so() -> None:
    fault = WrongClock(kind="wrong-clock", count=1, lasts=10, rate=1.5)
    for wrong_by, bites in ((0.2, True), (0.05, False)):
        story = held()
        story.notes = [Note(us(15), "w1.1", "claimed", 7, 1, "o", str(us(15 + wrong_by)))]
        assert (fault.bite(INJECTION, story.history()) is not None) == bites
