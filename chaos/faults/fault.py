"""What a fault is: plain data, and three functions over a running fleet and a finished history.

A fault that was injected has proved nothing yet. It must have bitten: its `bite` looks at the
history afterwards for the effect that the fault is there to have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.cluster.toxiproxy import Proxy
from chaos.fleet import Fleet, Seat
from chaos.history.events import Commit


@dataclass(frozen=True, slots=True)
class Arena:
    """What faults act on: the fleet, and each seat's own network proxy if the run has proxies."""

    fleet: Fleet
    proxies: dict[int, Proxy]


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that was injected: into which process, and from when to when (microseconds)."""

    target: str
    began: int
    ended: int


class Fault(BaseModel, ABC):
    """One kind of fault as a scenario file states it. All are aimed at workers that hold a lease.

    count: how many times it is injected. lasts: seconds from injection to heal; 0 if it is over at
    once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    needs_proxy: ClassVar[bool] = False  # whether each worker must have a proxy to the database

    kind: str
    count: int = Field(ge=1, le=10_000)
    lasts: float = Field(default=0.0, ge=0, le=3600)

    @abstractmethod
    def inject(self, arena: Arena, seat: Seat) -> None:
        """Make it happen to the worker on this seat."""

    @abstractmethod
    def heal(self, arena: Arena, seat: Seat) -> None:
        """Undo it."""

    @abstractmethod
    def bite(self, injection: Injection, commits: Sequence[Commit]) -> str | None:
        """The effect that this injection had, as a phrase; None if it had none."""


def leases_taken(injection: Injection, commits: Sequence[Commit], until: int | None) -> int:
    """How many leases were reclaimed from the target after the injection (and before `until`)."""
    mine = f"{injection.target}/"
    return sum(
        ended.outcome == "reclaimed" and ended.owner.startswith(mine)
        for commit in commits
        if commit.at >= injection.began and (until is None or commit.at < until)
        for ended in commit.ended
    )
