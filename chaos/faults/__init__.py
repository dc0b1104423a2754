"""Faults that a scenario can inject, by their `kind` in its file."""

from typing import Annotated

from pydantic import Field

from chaos.faults.database import (
    Crash,
    DdlLock,
    ExhaustConnections,
    OldTransaction,
    Restart,
    StaleStatistics,
    TerminateBackends,
)
from chaos.faults.fault import SERVER, Arena, Fault, Injection, Strike
from chaos.faults.network import Bandwidth, BlackHole, Down, Latency, LimitData, ResetPeer, Slicer
from chaos.faults.worker import Kill, Pause, Stampede, Terminate

AnyFault = Annotated[
    Kill
    | Stampede
    | Terminate
    | Pause
    | BlackHole
    | ResetPeer
    | LimitData
    | Down
    | Latency
    | Bandwidth
    | Slicer
    | Crash
    | Restart
    | TerminateBackends
    | ExhaustConnections
    | OldTransaction
    | StaleStatistics
    | DdlLock,
    Field(discriminator="kind"),
]

__all__ = ["SERVER", "AnyFault", "Arena", "Fault", "Injection", "Strike"]
