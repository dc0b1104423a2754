"""What a fault is: plain data, how it is injected and healed, and how it shows that it bit.

A fault that was injected has proved nothing yet. It must have bitten: its `bite` looks at the
finished history for the effect that the fault is there to have, or at what the fault itself counted
of it, where no commit can show it (a session that was cut, a client that was refused).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chaos.cluster.server import Server
from chaos.cluster.standby import Standby
from chaos.cluster.toxiproxy import Proxy
from chaos.faults.moments import catch, let_go
from chaos.fleet import Fleet, Seat
from chaos.history.events import DEAD, Ended, History, worker_of
from chaos.history.timelines import Timelines
from chaos.patience import harness_dsn
from chaos.systems import System
from chaos.systems.moments import MOMENTS, OFFERED

SERVER = "server"  # the target of a fault that is not aimed at one worker

# Which workers a fault may strike: those that hold a lease, those that hold one on a task's last
# attempt, those whose handler is in a transaction, those that hold one and have committed a
# renewal, or a reclaim, and not acted on its reply yet, those that hold more leases than they have
# slots (so have claimed what they did not start), or all.
Aim = Literal[
    "lease", "last-attempt", "in-transaction", "in-renewal", "in-reclaim", "unstarted", "anyone"
]


@dataclass(slots=True)
class Arena:
    """What faults act on, and what they aim by.

    leases: which worker holds valid leases on which tasks now; None if nobody can tell. is_last:
    whether a task is in the last attempt that it is allowed. busy: whom the faults now in place
    have struck: seat numbers, and SERVER. system: the queue under test. wanted: only a worker that
    holds one of these tasks will do, or for an operator one of these; none: any. server: the one
    that takes writes; standby: the one that can take over, if any. log: what was committed.
    """

    fleet: Fleet
    server: Server
    system: System
    database: str
    table: str  # where the system has its tasks, with its schema
    leases: Callable[[], Mapping[str, Sequence[int]] | None]
    is_last: Callable[[int], bool]
    draw: random.Random
    log: Timelines
    standby: Standby | None = None
    proxies: dict[int, Proxy] = field(default_factory=dict)
    busy: list[int | str] = field(default_factory=list)
    wanted: frozenset[int] = frozenset()

    @property
    def dsn(self) -> str:
        """The database, for the harness's own use."""
        return harness_dsn(self.server.dsn(self.database), "faults")

    def pick(self, aim: Aim) -> Seat | None:
        """A worker that fits the aim at this moment and is not struck already, drawn at random.

        One that is in a renewal or reclaim stays there until it is let go.
        """
        if aim == "anyone" and not self.wanted:
            names: Sequence[str] = [seat.name for seat in self.fleet.seats]
        else:
            leases = self.leases() or {}
            able = self.system.in_transaction(self.dsn) if aim == "in-transaction" else leases
            names = sorted(
                name
                for name, tasks in leases.items()
                if name in able
                and (aim != "last-attempt" or any(map(self.is_last, tasks)))
                and (aim != "unstarted" or len(tasks) > self.fleet.settings.slots)
                and (not self.wanted or not self.wanted.isdisjoint(tasks))
            )
        found = (self.fleet.find(name) for name in names)
        seats = [seat for seat in found if seat is not None and seat.number not in self.busy]
        if aim == "in-renewal" or aim == "in-reclaim":
            caught = catch(self.fleet.directory, aim, [seat.name for seat in seats], self.draw)
            return self.fleet.find(caught) if caught is not None else None
        return self.draw.choice(seats) if seats else None

    def let_go(self, name: str) -> None:
        """Let a worker go on that was picked and has been struck."""
        let_go(self.fleet.directory, name)


class Strike(NamedTuple):
    """A fault in place.

    target: the process it struck, or SERVER. place: that process's seat, or SERVER. heal: undoes
    it, and says how much of its effect the fault itself saw (see each fault).
    """

    target: str
    place: int | str
    heal: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that was injected and healed. Times in microseconds.

    The fault was being put in place from `began`, was in place from `placed`, and until `ended` for
    certain. `seen` is what it counted itself.
    """

    target: str
    began: int
    placed: int
    ended: int
    seen: int


class Fault(BaseModel, ABC):
    """One kind of fault as a scenario file states it.

    count: how many times it is injected. lasts: seconds from injection to heal; 0 if it is over at
    once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    needs_proxy: ClassVar[bool] = False  # whether each worker must have a proxy to the database
    needs_clocks: ClassVar[bool] = False  # whether each worker must have a wall clock of its own
    needs_durability: ClassVar[bool] = False  # whether commits must survive the server's death
    needs_standby: ClassVar[bool] = False  # whether the server must have a standby
    once: ClassVar[bool] = False  # whether a run can have only one of it
    outlasts_lease: ClassVar[bool] = False  # whether it can only bite if it outlasts a lease

    kind: str
    count: int = Field(ge=1, le=10_000)
    lasts: float = Field(ge=0, le=3600)

    @abstractmethod
    def inject(self, arena: Arena) -> Strike | None:
        """Choose a target and make it happen; None if there is nothing to strike right now.

        Raises psycopg.OperationalError if the database does not let it, and has then done nothing.
        """

    @abstractmethod
    def bite(self, injection: Injection, history: History) -> str | None:
        """The effect that this injection had, as a phrase; None if it had none."""

    def settle(self, arena: Arena, injection: Injection) -> None:
        """Called when it is healed: waits, a few seconds at most, until `missed` can be told."""

    def missed(self, injection: Injection, history: History) -> bool:
        """Whether it is plain as soon as it is healed that it had no effect: it may be tried again.

        What lasted has shown its effect by then. What was over at once has not, as a rule.
        """
        return self.lasts > 0 and self.bite(injection, history) is None


class WorkerFault(Fault):
    """A fault of one worker, or of its network. `aim` says which workers it may strike.

    in_the_middle: whether it does something to a process that stays in the middle of a write. What
    is done to the network there comes too late, and what is asked of the process waits.
    """

    in_the_middle: ClassVar[bool] = False
    aim: Aim = "lease"

    @model_validator(mode="after")
    def _can_be_aimed_so(self) -> Self:
        if self.aim in MOMENTS and not self.in_the_middle:
            raise ValueError(f"only kill, pause and freeze can be aimed {self.aim}")
        return self

    def inject(self, arena: Arena) -> Strike | None:
        """Strike a worker that fits the aim."""
        seat = arena.pick(self.aim)
        if seat is None:
            return None
        target = seat.name
        try:
            heal = self.strike(arena, seat)
        finally:
            arena.let_go(target)
        return Strike(target, seat.number, heal)

    @abstractmethod
    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Make it happen to the worker on this seat; returns what heals it (see `Strike`)."""

    def leases_taken(self, injection: Injection, history: History, until: int | None = None) -> int:
        """How many leases were reclaimed from the target since the injection (and before `until`).

        If the aim was a last attempt, only those count whose task was dead-lettered by that.
        """
        if not self.was_there(injection, history):
            return 0
        return sum(
            ended.outcome == "reclaimed" and (self.aim != "last-attempt" or state == DEAD)
            for at, ended, state in endings(injection.target, history)
            if at >= injection.began and (until is None or at < until)
        )

    def was_there(self, injection: Injection, history: History) -> bool:
        """Whether the target says that it was in the renewal or reclaim in which it was aimed at,
        if that was the aim."""
        earlier = OFFERED * 1e6 + history.phases.lag
        return self.aim not in MOMENTS or any(
            note.what == self.aim
            and note.worker == injection.target
            and injection.began - earlier <= note.at <= injection.placed
            for note in history.notes
        )


def endings(worker: str, history: History) -> Iterator[tuple[int, Ended, str | None]]:
    """Each end of an attempt of this worker process: when, how, and the state of its task then."""
    for commit in history.commits:
        ends = [ended for ended in commit.ended if worker_of(ended.owner) == worker]
        if ends:
            rows = {change.task: change.row for change in commit.changes}
            for ended in ends:
                row = rows.get(ended.task)
                yield commit.at, ended, row.state if row is not None else None


def nothing_to_heal() -> int:
    """Heals a fault that was over at once, and has seen nothing."""
    return 0
