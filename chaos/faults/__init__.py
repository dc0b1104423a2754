"""Faults that a scenario can inject, by their `kind` in its file."""

from typing import Annotated

from pydantic import Field

from chaos.faults.clock import WrongClock
from chaos.faults.database import (
    Crash,
    DdlLock,
    ExhaustConnections,
    OldTransaction,
    Restart,
    StaleStatistics,
    Stall,
    TerminateBackends,
)
from chaos.faults.failover import Failover
from chaos.faults.fault import SERVER, Arena, Fault, Injection, Strike
from chaos.faults.network import Bandwidth, BlackHole, Down, Latency, LimitData, ResetPeer, Slicer
from chaos.faults.operator import Cancel, Discard, Requeue
from chaos.faults.replies import LoseCommits, LoseReplies
from chaos.faults.rows import RowLock
from chaos.faults.worker import Freeze, Kill, Pause, Stampede, Terminate

AnyFault = Annotated[
    Kill
    | Stampede
    | Terminate
    | Pause
    | Freeze
    | WrongClock
    | BlackHole
    | ResetPeer
    | LimitData
    | Down
    | Latency
    | Bandwidth
    | Slicer
    | LoseReplies
    | LoseCommits
    | Crash
    | Restart
    | Stall
    | TerminateBackends
    | ExhaustConnections
    | OldTransaction
    | StaleStatistics
    | DdlLock
    | RowLock
    | Cancel
    | Requeue
    | Discard
    | Failover,
    Field(discriminator="kind"),
]

__all__ = ["SERVER", "AnyFault", "Arena", "Fault", "Injection", "Strike"]
