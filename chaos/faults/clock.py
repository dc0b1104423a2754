"""Faults of a worker's wall clock: it jumps, is off for a while, drifts, and jumps back."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field

from chaos.faults.fault import Arena, Injection, WorkerFault
from chaos.fleet import Seat
from chaos.history.events import History

NOTICEABLE = 100_000  # microseconds by which a clock must be wrong, more than reading it takes


class WrongClock(WorkerFault):
    """Set a worker's wall clock off by `seconds`, or let it run at another rate; then right again.

    It bit if the worker claimed tasks while its own clock was wrong by at least half of what was
    asked for, as its own notes say.
    """

    needs_clocks: ClassVar[bool] = True
    kind: Literal["wrong-clock"]
    seconds: float = Field(default=0, ge=-1e9, le=1e9)
    rate: float = Field(default=1, ge=0.1, le=10)
    lasts: float = Field(gt=0, le=3600)

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Set the clock of this seat's process, and of the next one that sits here meanwhile."""
        clock = arena.fleet.clocks[seat.number]
        clock.set(self.seconds, self.rate)

        def heal() -> int:
            clock.set(0)
            return 0

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """The worker claimed with a clock that was wrong."""
        least = max(NOTICEABLE, abs(self.seconds) * 1e6 / 2)
        wrong = [
            int(note.detail) - note.at
            for note in history.notes
            if note.what == "claimed"
            and note.worker == injection.target
            and injection.placed <= note.at <= injection.ended
            and abs(int(note.detail) - note.at) >= least
        ]
        if not wrong:
            return None
        worst = max(wrong, key=abs) / 1e6
        return f"claimed {len(wrong)} tasks with a clock up to {worst:+.1f} s wrong"
