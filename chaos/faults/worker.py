"""Faults of worker processes: killed, asked to stop, or stopped for longer than a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import psycopg
from pydantic import Field

from chaos.cluster.processes import wait_for
from chaos.faults.fault import (
    Aim,
    Arena,
    Fault,
    Injection,
    Strike,
    WorkerFault,
    endings,
    nothing_to_heal,
)
from chaos.fleet import Seat
from chaos.history.events import History, worker_of

SETTLES_WITHIN = 2.0  # seconds to wait, at most, until a worker that woke up has a valid lease


class Kill(WorkerFault):
    """SIGKILL a worker; another process takes its seat.

    It bit if a lease that the dead process held had to be taken back from it, or an operator
    cancelled its task first.
    """

    in_the_middle: ClassVar[bool] = True
    kind: Literal["kill"]
    lasts: Literal[0] = 0

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Kill and replace the process. Sees whether it left a lease behind."""
        dead = seat.name
        arena.fleet.kill([seat])
        leases = arena.leases()
        # Where nobody can tell it may have: no reason to try again.
        left = leases is None or dead in leases
        return lambda: left

    def bite(self, injection: Injection, history: History) -> str | None:
        """The dead process's leases were ended by others."""
        taken = self.leases_taken(injection, history)
        if self.aim != "last-attempt" and self.was_there(injection, history):
            taken += sum(
                ended.outcome == "cancelled" and at >= injection.placed
                for at, ended, _ in endings(injection.target, history)
            )
        return f"died holding leases, {taken} ended by others" if taken else None

    def missed(self, injection: Injection, history: History) -> bool:
        """It was done with its tasks when it died: quicker than we."""
        return not injection.seen


class Stampede(Fault):
    """SIGKILL all workers at once, and start as many new ones at once.

    It bit if leases had to be taken back from two of the dead at least, and the crowd that came
    after them went to work.
    """

    kind: Literal["stampede"]
    lasts: Literal[0] = 0

    def inject(self, arena: Arena) -> Strike | None:
        """Kill and replace every process, once two workers hold leases."""
        if sum(arena.fleet.find(name) is not None for name in arena.leases() or ()) < 2:
            return None
        seats = [seat for seat in arena.fleet.seats if seat.number not in arena.busy]
        target = " ".join(seat.name for seat in seats)
        arena.fleet.kill(seats)
        leases = arena.leases()
        left = len(seats) if leases is None else len(set(target.split()) & leases.keys())
        return Strike(target, "all seats", lambda: left)

    def bite(self, injection: Injection, history: History) -> str | None:
        """Leases of several dead were reclaimed, and workers that were not among them claimed."""
        dead = injection.target.split()
        robbed = sum(
            any(
                at >= injection.began and ended.outcome == "reclaimed"
                for at, ended, _ in endings(name, history)
            )
            for name in dead
        )
        new = {
            note.worker
            for note in history.notes
            if note.what == "claimed" and note.at >= injection.began and note.worker not in dead
        }
        if robbed < 2 or not new:
            return None
        return f"{robbed} of {len(dead)} died holding leases; {len(new)} new ones claimed"

    def missed(self, injection: Injection, history: History) -> bool:
        """No two of the dead left a lease behind: they were quicker than we."""
        return injection.seen < 2


class Terminate(WorkerFault):
    """SIGTERM a worker: it drains, ends, and another process takes its seat.

    It bit if the process itself ended attempts that it held, and was gone after `lasts` seconds.
    """

    kind: Literal["terminate"]
    lasts: float = Field(default=2.0, gt=0, le=3600)

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Ask the process to stop. Sees, in the end, whether it did."""
        leaving = seat.name
        arena.fleet.terminate(seat)
        return lambda: seat.name != leaving or seat.pid is None

    def bite(self, injection: Injection, history: History) -> str | None:
        """The process ended attempts of its own, and then itself."""
        if not injection.seen:
            return None
        drained = sum(
            at >= injection.placed and ended.outcome != "reclaimed"
            for at, ended, _ in endings(injection.target, history)
        )
        return f"ended {drained} attempts while it shut down" if drained else None


class Pause(WorkerFault):
    """SIGSTOP a worker, and SIGCONT it when its lease is over.

    It bit if a lease was taken from the process while it was stopped: it woke up as a zombie. Or if
    it took one back itself afterwards, from a handler of its own that ran on. (Whether it renews or
    takes back first when it wakes, nobody can tell beforehand.)
    terminated: it was asked to stop meanwhile (SIGTERM), and hears of that when it wakes.
    """

    outlasts_lease: ClassVar[bool] = True
    in_the_middle: ClassVar[bool] = True
    kind: Literal["pause"]
    lasts: float = Field(gt=0, le=3600)
    terminated: bool = False

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Stop the process; continue it to heal."""
        paused = seat.name
        arena.fleet.pause(seat)

        def heal() -> int:
            if seat.name == paused:  # and not another, since that one was killed by somebody
                if self.terminated:
                    arena.fleet.terminate(seat)
                arena.fleet.resume(seat)
            return 0

        return heal

    def settle(self, arena: Arena, injection: Injection) -> None:
        """A worker that is alone renews its leases, or takes them back, only when it wakes: wait
        until it has a valid one, so that `missed` does not judge too early."""
        if len(arena.fleet.seats) == 1 and not self.terminated:
            wait_for(lambda: _has_lease(arena, injection.target), SETTLES_WITHIN)

    def bite(self, injection: Injection, history: History) -> str | None:
        """A lease of the stopped process was reclaimed: by others before it woke up, or by itself
        afterwards while its handler ran on."""
        taken = self.leases_taken(injection, history, until=injection.ended)
        if taken:
            return f"woke up as a zombie of {taken} leases"
        own = self._taken_from_itself(injection, history)
        return f"woke up and took {own} leases from its own handlers" if own else None

    def _taken_from_itself(self, injection: Injection, history: History) -> int:
        """How many leases the target took from handlers of its own: they ran out while it was
        stopped, and the handler, begun before, ran on without."""
        if not self.was_there(injection, history):
            return 0
        name, taken = injection.target, 0
        told = {
            (note.what, note.task, note.token): note.at
            for note in history.notes
            if note.worker == name == worker_of(note.owner)
        }
        expires: dict[tuple[int, int], int | None] = {}
        for commit in history.commits:
            for ended in commit.ended:
                lease = ended.task, ended.token
                ran_out = expires.get(lease)
                started = told.get(("started", *lease))
                finished = told.get(("finished", *lease))
                taken += (
                    ended.outcome == "reclaimed"
                    and ("reclaimed", *lease) in told
                    and ran_out is not None
                    and injection.began < ran_out <= injection.ended
                    and started is not None
                    and started < injection.placed
                    and (finished is None or finished > commit.at)
                )
            for task, row in commit.changes:
                if row is not None and row.owner is not None and worker_of(row.owner) == name:
                    expires[task, row.token] = row.expires
        return taken


def _has_lease(arena: Arena, name: str) -> bool:
    """Whether this worker has a valid lease, or nobody can tell."""
    leases = arena.leases()
    return leases is None or name in leases


class Freeze(WorkerFault):
    """SIGSTOP a worker for good; another process takes its seat, while the system keeps the
    sessions of the stopped one open.

    It bit if a lease had to be taken back from it.
    """

    in_the_middle: ClassVar[bool] = True
    kind: Literal["freeze"]
    lasts: Literal[0] = 0
    aim: Aim = "in-transaction"

    def inject(self, arena: Arena) -> Strike | None:
        """Stop a worker that fits the aim, and look whether it stands where it was aimed at."""
        seat = arena.pick(self.aim)
        if seat is None:
            return None
        arena.fleet.pause(seat)
        arena.let_go(seat.name)
        if self.aim == "in-transaction":
            try:
                there = arena.system.in_transaction(arena.dsn)
            except psycopg.Error:
                arena.fleet.resume(seat)
                raise
            if seat.name not in there:
                arena.fleet.resume(seat)  # it was quicker than we
                return None
        target = seat.name
        return Strike(target, seat.number, self.strike(arena, seat))

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Leave the process as it is, and replace it."""
        arena.fleet.freeze(seat)
        return nothing_to_heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """The leases of the stopped process were reclaimed."""
        taken = self.leases_taken(injection, history)
        return f"stands still for good, {taken} of its leases reclaimed" if taken else None
