"""Faults of a worker process: killed, or stopped for longer than its lease and then continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chaos.faults.fault import Arena, Fault, Injection, leases_taken
from chaos.fleet import Seat
from chaos.history.events import Commit


class Kill(Fault):
    """SIGKILL a worker that holds a lease; another process takes its seat.

    It bit if a lease that the dead process held had to be taken back from it.
    """

    kind: Literal["kill"]
    lasts: Literal[0] = 0

    def inject(self, arena: Arena, seat: Seat) -> None:
        """Kill and replace the process."""
        arena.fleet.kill(seat)

    def heal(self, arena: Arena, seat: Seat) -> None:
        """Nothing to undo: the seat has a new process."""

    def bite(self, injection: Injection, commits: Sequence[Commit]) -> str | None:
        """The dead process's leases were reclaimed."""
        taken = leases_taken(injection, commits, until=None)
        return f"died holding leases, {taken} reclaimed" if taken else None


class Pause(Fault):
    """SIGSTOP a worker that holds a lease, and SIGCONT it when the lease is over.

    It bit if a lease was taken from the process while it was stopped: it woke up as a zombie.
    """

    kind: Literal["pause"]

    def inject(self, arena: Arena, seat: Seat) -> None:
        """Stop the process."""
        arena.fleet.pause(seat)

    def heal(self, arena: Arena, seat: Seat) -> None:
        """Continue it."""
        arena.fleet.resume(seat)

    def bite(self, injection: Injection, commits: Sequence[Commit]) -> str | None:
        """A lease of the stopped process was reclaimed."""
        taken = leases_taken(injection, commits, until=injection.ended)
        return f"woke up as a zombie of {taken} leases" if taken else None
