"""Figures of a run: what happened when, how long things took, and who did what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from chaos.history.events import Phases
from chaos.report.attempts import OUTCOMES, Attempt
from chaos.report.lanes import seat
from chaos.report.text import quantile

BINS = 120


class Bin(NamedTuple):
    """A short stretch of the run: how many claims and completions, and how long claims waited."""

    begin: int
    claims: int
    completions: int
    wait_p50: int | None
    wait_p99: int | None


class Distribution(NamedTuple):
    """Sorted microseconds, what they measure, and what that means."""

    name: str
    meaning: str
    values: tuple[int, ...]


class Doings(NamedTuple):
    """What a worker's lane shows, in numbers."""

    worker: str
    processes: int
    outcomes: dict[str, int]
    zombies: int


def bins(attempts: Sequence[Attempt], phases: Phases) -> tuple[int, list[Bin]]:
    """The run in up to `BINS` stretches, and how long each is, in microseconds."""
    width = max(1_000, -(-(phases.ended - phases.began) // BINS))
    waits: dict[int, list[int]] = {}
    done: Counter[int] = Counter()
    for one in attempts:
        waits.setdefault((one.claimed - phases.began) // width, []).append(
            max(0, one.claimed - one.due)
        )
        if one.outcome == "completed" and one.over is not None:
            done[(one.over - phases.began) // width] += 1
    found = []
    for index in range(-(-(phases.ended - phases.began) // width)):
        ranked = sorted(waits.get(index, ()))
        found.append(
            Bin(
                phases.began + index * width,
                len(ranked),
                done[index],
                quantile(ranked, 50) if ranked else None,
                quantile(ranked, 99) if ranked else None,
            )
        )
    return width, found


def distributions(attempts: Sequence[Attempt]) -> list[Distribution]:
    """Reclaim delay, lease headroom, zombie window, repeated effect."""
    delays = [
        one.committed - one.until
        for one in attempts
        if one.outcome == "reclaimed" and one.committed is not None
    ]
    headroom = [one.headroom for one in attempts if one.headroom is not None]
    zombies = [one.zombie[1] - one.zombie[0] for one in attempts if one.zombie is not None]
    effects = sorted((one.task, one.effect) for one in attempts if one.effect is not None)
    again = [
        second - first for (task, first), (other, second) in pairwise(effects) if task == other
    ]
    return [
        Distribution(
            "reclaim delay", "from a lease's expiry until it was taken back", _ranked(delays)
        ),
        Distribution(
            "lease headroom",
            "how far a lease was from running out when its holder renewed or ended it,"
            " at the closest",
            _ranked(headroom),
        ),
        Distribution(
            "zombie window",
            "for how long a handler ran on after its lease was over, alone or beside another",
            _ranked(zombies),
        ),
        Distribution(
            "repeated effect",
            "how long after an effect outside the database another attempt had it again",
            _ranked(again),
        ),
    ]


def doings(attempts: Sequence[Attempt], names: Sequence[str]) -> list[Doings]:
    """One for each lane."""
    processes: dict[str, set[str]] = {name: set() for name in names}
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    zombies: Counter[str] = Counter()
    for one in attempts:
        name = seat(one.worker)
        processes[name].add(one.worker)
        outcomes[name][one.outcome] += 1
        zombies[name] += one.zombie is not None
    return [
        Doings(
            name,
            len(processes[name]),
            {outcome: outcomes[name][outcome] for outcome in OUTCOMES},
            zombies[name],
        )
        for name in names
    ]


def _ranked(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(values))
