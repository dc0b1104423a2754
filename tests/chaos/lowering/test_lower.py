"""Failures found again by the explorer: of hand-made histories, and of real runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from chaos.explore import replay
from chaos.explore.errors import ExplorerError
from chaos.explore.schedule import show
from chaos.figures import lowering
from chaos.history.events import History
from chaos.lowering import actors
from chaos.lowering.actors import Player, play
from chaos.lowering.lower import lower
from chaos.lowering.projection import CannotLowerError
from chaos.lowering.recorded import mutant_of
from chaos.lowering.script import Script
from chaos.mutants import MUTANTS, planted
from tests.chaos.invariants.build import Story
from tests.chaos.lowering.test_projection import zombie

SCENARIOS = Path(__file__).parents[3] / "scenarios"


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Connections are cut on purpose; psycopg warns of each."""
    logging.getLogger("psycopg").setLevel(logging.ERROR)


def double_claim() -> Story:
    """Two claims of one task, whose statements overlapped."""
    return Story().enqueue(1).claim(1, by="w1", at=1).claim(1, by="w2", at=1.01)


def test_a_failure_that_the_order_of_commits_does_not_show_is_found_around_it(
    empty_dsn: str,
) -> None:
    with planted(MUTANTS["claim-without-lock"]):
        found = lower(double_claim().history(), empty_dsn, "no-overlap")
    assert found.searched > 0
    assert found.script == Script(actors={"a": "claim", "b": "claim"}, invariant="no-overlap")
    assert show(found.trace.choices) == "a b a b"
    assert found.cast == {"a": "w1/1", "b": "w2/2"}
    source = found.test("claim-without-lock")
    assert "    # b was w2/2\n" in source
    run: dict[str, Callable[[], None]] = {}
    exec(source, run)
    assert "test_a_b_a_b" in run


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_failure_in_the_order_of_the_run_needs_no_search_and_loses_what_it_does_not_need(
    empty_dsn: str,
) -> None:
    story = Story().enqueue(1).claim(1, by="w1", at=1).renew(1, at=2).reclaim(1, at=8)
    story.claim(1, by="w2", at=9).complete(1, at=10, token=1)
    with planted(MUTANTS["complete-without-fence"]):
        found = lower(story.history(), empty_dsn)
    assert found.searched == 0
    assert found.script.actors == {"a": "claim complete", "b": "reclaim", "c": "claim"}
    assert show(found.trace.choices) == "a a +31s b b c c a a"


def test_without_the_bug_there_is_nothing_to_be_found(empty_dsn: str) -> None:
    with pytest.raises(CannotLowerError, match="no schedule of what was done"):
        lower(double_claim().history(), empty_dsn, "no-overlap")


def test_a_run_in_which_nothing_failed_is_not_lowered() -> None:
    history = Story().enqueue(1).claim(1, at=1).complete(1, at=2).history()
    with pytest.raises(CannotLowerError, match="the run did not fail any invariant"):
        lower(history, "")
    with pytest.raises(CannotLowerError, match="the run did not fail fenced"):
        lower(history, "", "fenced")


def test_the_mutant_is_the_one_that_the_run_was_made_with() -> None:
    def of(system: str) -> History:
        return replace(zombie().history(), about={"system": system})

    assert mutant_of(of("leaseproof")) is None
    assert mutant_of(of("leaseproof:renews-by-id")) == "renews-by-id"
    for other in ("peers.procrastinate:SYSTEM", "leaseproof:gone"):
        with pytest.raises(CannotLowerError, match=f"the run was one of {other}"):
            mutant_of(of(other))


def test_a_script_says_what_its_actors_can_do() -> None:
    with pytest.raises(ExplorerError, match="no actor can 'dance'; known words: claim, renew"):
        Script(actors={"a": "claim dance"}, invariant="fenced")
    with pytest.raises(ExplorerError, match="no invariant is called 'nice'"):
        Script(actors={"a": "claim"}, invariant="nice")


def test_a_player_whose_word_fails_leaves_the_session_that_it_opened_to_nobody(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []

    def fail(player: Player, _: int) -> None:
        def lost(connection: Connection) -> None:
            opened.append(connection)
            if len(opened) == 2:
                raise ValueError("it failed")
            connection.close()
            raise psycopg.OperationalError("the connection is lost")

        player.client.do(lost)

    claim = actors.WORDS["claim"]
    monkeypatch.setitem(actors.WORDS, "claim", claim._replace(act=fail))
    with psycopg.connect(empty_dsn, autocommit=True) as connection, pytest.raises(ValueError):
        play(connection, "a", "claim", limited=False, until="finished", notes=[])
    assert [one.closed for one in opened] == [True, True]


# What each word is for, in the scheduler as it is: all of it is done, and nothing is wrong.
WORDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("claim renew complete", "fenced", {}),
    ("claim transact", "effect-once", {}),
    ("claim fail", "backs-off", {}),
    ("claim release claim snooze", "attempts-bounded", {}),
    ("claim:2 complete complete", "claim-bounded", {"tasks": 2, "claims": 2}),
    ("claim reclaim cancel complete", "legal-steps", {}),
    ("claim fail requeue cancel claim", "legal-steps", {"attempts": 1}),
    ("claim fail discard", "legal-steps", {"attempts": 1}),
    ("enqueue enqueue:2 claim complete enqueue", "limit-held", {"tasks": 0, "cap": 2}),
    ("claim:2 claim complete claim", "limit-held", {"tasks": 2, "limit": 1}),
    ("ask ask claim complete ask", "key-once", {"tasks": 0}),
    ("plan claim complete", "occurrence-once", {"tasks": 0, "missed": "all"}),
)


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize(("words", "invariant", "more"), WORDS)
def test_every_word_does_what_it_says(
    empty_dsn: str, words: str, invariant: str, more: dict[str, Any]
) -> None:
    script = Script(actors={"a": words}, invariant=invariant, **more)
    trace = replay(script.program(), "", empty_dsn)
    assert trace.violation is None, trace
    assert trace.endings["a"].ok, trace
    refused = "enqueue:2" in words  # a statement by itself, and nothing to commit
    assert len(trace.choices) == sum(map(script.steps, words.split())) - refused, trace
    assert eval(str(script), {"Script": Script}) == script


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.timeout(900)  # a whole run, or several, on whatever else the machine does
@pytest.mark.parametrize("bug", ["claim-without-lock", "reclaim-ignores-expiry"])
def test_a_recorded_failure_of_real_processes_is_lowered(bug: str, tmp_path: Path) -> None:
    [one] = lowering.measure([bug], SCENARIOS, tmp_path)
    assert one.counts, one
    assert len(one.actors) == 2
