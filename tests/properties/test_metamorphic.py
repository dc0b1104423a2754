"""Metamorphic laws: the clocks of workers, how many there are, how much each claims and how slow
the network is change nothing about what becomes of the tasks.

What must become of them is known from their payloads alone, so that a law cannot hold because two
runs are wrong alike; and each is broken by a bug under which the plain run is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.cluster.postgres import Postgres
from chaos.cluster.toxiproxy import Toxiproxy
from chaos.systems import Order
from tests.properties.crew import (
    AHEAD,
    BACK,
    BEHIND,
    DRIFTS,
    FINISHED,
    FORWARD,
    PLAIN,
    RIGHT,
    Crew,
    Evidence,
    Setup,
)
from tests.properties.outcomes import LONG_WORK, WORK, Outcome, expected

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crew(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Workers for all tests here, as each sets them up."""
    made = Crew(server, tmp_path_factory.mktemp("crew"))
    made.install()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(crew: Crew) -> list[Outcome]:
    """What becomes of the work if one worker with a right clock does it."""
    return crew.run(PLAIN).outcomes


def test_a_worker_with_a_wrong_clock_and_one_more_make_no_difference(crew: Crew) -> None:
    varied = crew.run(Setup(clocks=(AHEAD, RIGHT), slots=5), work=WORK)
    assert varied.outcomes == crew.run(PLAIN, work=WORK).outcomes == expected(WORK)


def network(setup: Setup, request: pytest.FixtureRequest) -> Toxiproxy | None:
    """A Toxiproxy, if it takes one."""
    return request.getfixturevalue("toxiproxy") if setup.delay else None


def was_reclaimed(task: Outcome) -> bool:
    """Whether an attempt of it ended by its lease: no worker dies in these runs."""
    return "reclaimed" in task.ends


class Law(NamedTuple):
    """A set-up, and how to tell that it was felt."""

    setup: Setup
    felt: Callable[[Evidence], bool]


HALF_AN_HOUR = 1800
LAWS = {
    "clocks an hour ahead and behind": Law(
        Setup(clocks=(AHEAD, BEHIND)),
        lambda felt: max(felt.ahead, -felt.behind) > HALF_AN_HOUR,
    ),
    "clocks that step back by two hours": Law(
        Setup(clocks=(BACK, BACK)),
        lambda felt: felt.ahead > HALF_AN_HOUR and felt.behind < -HALF_AN_HOUR,
    ),
    "clocks that drift": Law(Setup(clocks=(DRIFTS, DRIFTS)), lambda felt: felt.ahead > 0.1),
    "two workers": Law(Setup(clocks=(RIGHT,) * 2), lambda felt: felt.workers == 2),
    "four workers": Law(Setup(clocks=(RIGHT,) * 4), lambda felt: felt.workers > 2),
    "batches of five": Law(Setup(slots=5), lambda felt: felt.claim == 5),
    "batches of fifty": Law(Setup(slots=50), lambda felt: felt.claim > 10),
    "fifty prefetched": Law(Setup(prefetch=49), lambda felt: felt.claim > 10),
    "a slow and unsteady network": Law(
        Setup(slots=5, delay=60, jitter=40), lambda felt: felt.reply > 0.05
    ),
}


@pytest.mark.chaos_long
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_the_outcomes_are_those_of_the_plain_run(
    crew: Crew, plain: list[Outcome], request: pytest.FixtureRequest, law: Law
) -> None:
    varied = crew.run(law.setup, network(law.setup, request))
    assert varied.outcomes == plain == expected(LONG_WORK)
    assert law.felt(varied.evidence), varied.evidence


SETUPS = st.builds(
    Setup,
    clocks=st.lists(
        st.sampled_from((RIGHT, AHEAD, BEHIND, FORWARD, BACK, DRIFTS)), min_size=1, max_size=4
    ).map(tuple),
    slots=st.sampled_from((1, 5, 50)),
    prefetch=st.sampled_from((0, 4, 49)),
    delay=st.sampled_from((0, 10, 30)),
    jitter=st.sampled_from((0, 10)),
)


@pytest.mark.chaos_long
@pytest.mark.timeout(900)  # a failure is shrunk for as long as the machine needs
def test_the_outcomes_are_those_of_the_plain_run_whatever_is_changed_together(
    crew: Crew, plain: list[Outcome], toxiproxy: Toxiproxy
) -> None:
    @settings(max_examples=6, deadline=None, database=None)
    @given(SETUPS)
    def law(setup: Setup) -> None:
        assert crew.run(setup, toxiproxy).outcomes == plain == expected(LONG_WORK)

    law()


class Broken(NamedTuple):
    """A bug, the set-up that shows it, and what some task's outcome is then. within: how many
    seconds to wait for what the bug leaves undone."""

    bug: str
    setup: Setup
    shows: Callable[[Outcome], bool]
    work: Sequence[Order] = WORK
    within: float = FINISHED


BROKEN = [
    Broken(
        "CLAIMS_BY_ITS_OWN_CLOCK",
        Setup(clocks=(AHEAD,)),
        lambda task: task.name.startswith("put off") and task.status == "completed",
    ),
    Broken("LEASES_BY_ITS_OWN_CLOCK", Setup(clocks=(BEHIND,), slots=5), was_reclaimed, LONG_WORK),
    Broken("RENEWS_BY_ITS_OWN_CLOCK", Setup(clocks=(BEHIND,), slots=5), was_reclaimed, LONG_WORK),
    Broken(
        "BACKS_OFF_BY_ITS_OWN_CLOCK",
        Setup(clocks=(AHEAD,), slots=5),
        lambda task: task.status == "pending" and task.ends == ("failed",),
        within=5,
    ),
    Broken(
        "COUNTS_FOR_ITSELF",
        Setup(clocks=(RIGHT,) * 4),
        lambda task: len(task.ends) > task.attempts,
    ),
    Broken("LOSES_THE_LAST_OF_A_BATCH", Setup(slots=50), was_reclaimed, within=8),
    Broken("FORGETS_LATE_CLAIMS", Setup(slots=50, delay=600), was_reclaimed, within=12),
]


@pytest.mark.chaos_long
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.bug)
def test_a_planted_bug_breaks_a_law_and_leaves_the_plain_run_right(
    crew: Crew, request: pytest.FixtureRequest, broken: Broken
) -> None:
    name = f"tests.properties.lawbreakers:{broken.bug}"
    plainly = crew.run(PLAIN, system_name=name, work=broken.work)
    right = expected(broken.work)
    assert plainly.outcomes == right
    varied = crew.run(
        broken.setup,
        network(broken.setup, request),
        system_name=name,
        work=broken.work,
        within=broken.within,
    )
    wrong = [task for task in varied.outcomes if task not in right]
    assert any(broken.shows(task) for task in wrong), wrong
