"""What a report reads off a history: attempts, bands, lanes, measures."""

from __future__ import annotations

from chaos.history.events import History
from chaos.history.lives import lives
from chaos.report.attempts import Attempt, attempts
from chaos.report.bands import bands
from chaos.report.lanes import MOST_ROWS, lanes, seat
from chaos.report.measures import bins, distributions, doings
from tests.chaos.invariants.build import Story, us
from tests.chaos.report.made_up import overwritten


def of(history: History) -> list[Attempt]:
    return attempts(history, lives(history))


def test_an_attempt_says_who_held_which_lease_until_when_and_how_it_ended() -> None:
    story = Story().enqueue(1, at=0).claim(1, by="w1.1", at=1).ran(1, 1.1, 4)
    story.renew(1, at=3).complete(1, at=4.1)
    [one] = of(story.history())
    assert (one.worker, one.token, one.number, one.outcome) == ("w1.1", 1, 1, "completed")
    assert (one.claimed, one.until, one.renewals) == (us(1), us(8), 1)
    assert (one.lease_end, one.run_end, one.zombie) == (us(4.1), us(4), None)
    # It was renewed two seconds after a claim for five, and ended 3.9 before it ran out.
    assert one.headroom == us(3) - us(0)


def test_the_handler_of_a_killed_worker_ends_with_it_and_its_lease_does_not() -> None:
    story = Story().enqueue(1, at=0).claim(1, by="w1.1", at=1).note("started", 1, 1.1)
    story.fault("kill", "inject", "bite", target="w1.1", at=2).reclaim(1, at=6.2, cause=False)
    [one] = of(story.history())
    assert (one.outcome, one.run_end, one.lease_end) == ("reclaimed", us(2), us(6))
    assert one.zombie is None


def test_a_zombie_is_a_handler_that_runs_on_after_its_lease() -> None:
    first, second = of(overwritten())
    assert (first.outcome, first.run_end, first.zombie) == ("reclaimed", us(6), (us(6), us(8.2)))
    # A write of somebody else ended it: it has no outcome of its own.
    assert (second.outcome, second.over, second.left) == ("taken", us(8.3), None)
    assert "had no right to" in second.says


def test_a_holder_that_completes_after_its_expiry_but_before_the_reclaim_was_a_zombie_too() -> None:
    story = Story().enqueue(1, at=0).claim(1, at=1).ran(1, 1.1, 6.5).complete(1, at=6.6)
    [one] = of(story.history())
    assert (one.outcome, one.zombie, one.headroom) == (
        "completed",
        (us(6), us(6.5)),
        us(0) - us(0.6),
    )


def test_the_note_of_leaving_may_come_after_the_completion() -> None:
    story = Story().enqueue(1, at=0).claim(1, at=1).complete(1, at=2, effect=True).ran(1, 1.1, 2.1)
    [one] = of(story.history())
    assert one.zombie is None
    assert one.says == "its holder wrote completed"


def test_statements_are_named_for_our_own_system_only() -> None:
    for transactional, file in ((False, "complete.sql"), (True, "complete_in_transaction.sql")):
        story = Story().enqueue(1, at=0).claim(1, at=1).complete(1, at=2, effect=transactional)
        history = story.history()
        history.about["system"] = "leaseproof:some-bug"
        assert of(history)[0].says == f"its holder wrote completed ({file})"


def test_an_attempt_whose_claim_a_failover_lost_is_told_as_that() -> None:
    story = Story().enqueue(1, at=0).claim(1, by="w1.1", at=1).note("started", 1, 1.1)
    story.fail_over(lost=1, at=3).claim(1, by="w2.1", at=4).complete(1, at=5)
    kept, undone = of(story.history())
    assert (kept.worker, kept.outcome) == ("w2.1", "completed")
    assert (undone.worker, undone.outcome, undone.lease_end) == ("w1.1", "undone", us(2))


def test_an_attempt_that_was_over_before_the_failover_undid_it_is_no_longer_than_it_was() -> None:
    story = Story().enqueue(1, 2, at=0).claim(1, 2, by="w1.1", at=1).renew(2, at=1.2)
    story.complete(1, at=1.5).fail_over(lost=3, at=3)
    undone = {one.task: (one.lease_end, one.until, one.outcome) for one in of(story.history())}
    assert undone == {1: (us(1.5), us(6), "undone"), 2: (us(2), us(6.2), "undone")}


def test_a_lease_that_nobody_ended_is_held_and_an_unknown_word_is_other() -> None:
    story = Story().enqueue(1, 2, at=0).claim(1, 2, at=1).end(2, 2, "vanished", state="pending")
    assert [one.outcome for one in of(story.history())] == ["held", "other"]


def test_a_band_lasts_until_its_heal_or_as_long_as_the_process_is_heard_of() -> None:
    story = Story().enqueue(1, at=0).claim(1, by="w1", at=1).ran(1, 1.1, 6)
    story.fault("pause", "inject", target="w2", at=2).fault("pause", "heal", target="w2", at=4)
    story.fault("pause", "bite", target="w2", at=40, detail="slept")
    story.fault("clock", "inject", at=3).fault("kill", "inject", target="w3", at=5)
    story.fault("restart", "inject", "heal", target="server", at=7)
    story.fault("poison", "inject", target="3 tasks", at=0)
    story.fault("death", "death", target="w1", at=8, detail="-9")
    found = [(one.name, one.whom, one.begin, one.end) for one in bands(story.history())]
    assert found == [
        ("pause", "w2", us(2), us(4)),
        ("clock", "w1", us(3), us(6)),
        ("kill", "w3", us(5), us(5)),
        ("restart", "all", us(7), us(7)),
        ("death", "w1", us(8), us(8)),
    ]
    assert [one.bite for one in bands(story.history())][:2] == ["slept", ""]


def test_processes_in_one_place_share_a_lane_and_attempts_at_once_have_rows_of_their_own() -> None:
    story = Story().enqueue(1, 2, 3, at=0)
    story.claim(1, by="w10.1", at=1).claim(2, by="w2.1", at=1).claim(3, by="w2.2", at=2)
    for task in (1, 2, 3):
        story.complete(task, at=3)
    placed = lanes(of(story.history()), struck=["w3.1"])
    assert placed.names == ("w2", "w3", "w10")
    assert placed.tops == (0, 2, 3, 4)
    assert placed.rows == (3, 0, 1)
    assert (placed.stretch("w2.9"), placed.stretch("w4")) == ((0, 2), None)
    assert seat("night.shift") == "night.shift"


def test_a_lane_has_no_more_rows_than_can_be_seen() -> None:
    tasks = range(1, MOST_ROWS + 9)
    story = Story().enqueue(*tasks, at=0).claim(*tasks, at=1)
    placed = lanes(of(story.history()))
    assert (placed.tops, placed.crowded) == ((0, MOST_ROWS), True)
    assert set(placed.rows) == set(range(MOST_ROWS))


def test_measures_count_what_happened_when_and_by_whom() -> None:
    history = overwritten()
    found = of(history)
    width, stretches = bins(found, history.phases)
    assert width * len(stretches) >= history.phases.ended - history.phases.began
    assert sum(one.claims for one in stretches) == 2
    assert sum(one.completions for one in stretches) == 0  # neither attempt is the one completed
    delay, headroom, zombie, again = distributions(found)
    assert delay.values == (500_000,)
    assert headroom.values == ()
    assert zombie.values == (2_200_000,)
    assert again.values == ()
    told = {one.worker: one for one in doings(found, ["w1", "w2", "w3"])}
    assert (told["w1"].outcomes["reclaimed"], told["w1"].zombies, told["w1"].processes) == (1, 1, 1)
    assert (told["w2"].outcomes["taken"], told["w3"].processes) == (1, 0)


def test_a_repeated_effect_is_measured_from_the_one_before() -> None:
    story = Story().enqueue(1, 2).claim(1, at=1).note("effect", 1, 2).reclaim(1, at=6)
    story.claim(1, by="w2", at=7).note("effect", 1, 8).fail(1, at=9)
    story.claim(1, at=10).note("effect", 1, 11.5).complete(1, at=12)
    story.claim(2, at=2).note("effect", 2, 3).complete(2, at=4)
    *_, again = distributions(of(story.history()))
    assert again.name == "repeated effect"
    assert again.values == (3_500_000, 6_000_000)
