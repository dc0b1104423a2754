"""A fault bit only if the history shows the effect that it is there to have."""

from __future__ import annotations

import pytest

from chaos.faults import Fault, Injection
from chaos.faults.network import BlackHole
from chaos.faults.worker import Kill, Pause
from chaos.history.events import Commit, Ended

KILL = Kill(kind="kill", count=1)
PAUSE = Pause(kind="pause", count=1, lasts=2)
BLACK_HOLE = BlackHole(kind="black-hole", count=1, lasts=2)
INJECTION = Injection("w1.1", began=1_000, ended=2_000)


def ended(at: int, owner: str = "w1.1/nonce", outcome: str = "reclaimed") -> tuple[Commit, ...]:
    """A history of one attempt's end."""
    return (Commit(0, at, 1, (), (Ended(7, 1, owner, 1, 0, at, outcome, None),), ()),)


@pytest.mark.parametrize("fault", [KILL, PAUSE, BLACK_HOLE], ids=lambda fault: fault.kind)
def test_a_fault_bit_if_a_lease_was_taken_from_its_target(fault: Fault) -> None:
    assert fault.bite(INJECTION, ended(1_500)) is not None


@pytest.mark.parametrize("fault", [KILL, PAUSE, BLACK_HOLE], ids=lambda fault: fault.kind)
@pytest.mark.parametrize(
    "commits",
    [
        (),
        ended(999),
        ended(1_500, outcome="completed"),
        ended(1_500, owner="w2.1/nonce"),
        ended(1_500, owner="w1.11/nonce"),
    ],
    ids=["nothing", "before", "completed", "another worker", "a name that begins alike"],
)
def test_a_fault_did_not_bite_if_no_lease_was_taken_from_its_target_afterwards(
    fault: Fault, commits: tuple[Commit, ...]
) -> None:
    assert fault.bite(INJECTION, commits) is None


def test_a_kill_bites_whenever_its_lease_is_reclaimed_but_a_zombie_must_have_been_away() -> None:
    late = ended(2_000)
    assert KILL.bite(INJECTION, late) is not None
    assert PAUSE.bite(INJECTION, late) is None
    assert BLACK_HOLE.bite(INJECTION, late) is None
