"""Faults of the network between one worker and the database, through its own Toxiproxy proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from chaos.faults.fault import Arena, Fault, Injection, leases_taken
from chaos.fleet import Seat
from chaos.history.events import Commit


class BlackHole(Fault):
    """Swallow all bytes of a worker that holds a lease, both ways, its connections left open.

    It bit if a lease was taken from the worker while it was cut off: it is alive, and a zombie.
    """

    needs_proxy: ClassVar[bool] = True
    kind: Literal["black-hole"]

    def inject(self, arena: Arena, seat: Seat) -> None:
        """Cut the worker off."""
        arena.proxies[seat.number].black_hole()

    def heal(self, arena: Arena, seat: Seat) -> None:
        """Let bytes through again; what was swallowed is gone, and its connections with it."""
        arena.proxies[seat.number].heal()

    def bite(self, injection: Injection, commits: Sequence[Commit]) -> str | None:
        """A lease of the worker was reclaimed while it was cut off."""
        taken = leases_taken(injection, commits, until=injection.ended)
        return f"was cut off while {taken} of its leases were reclaimed" if taken else None
