"""An arena for one fault at a time, without a run around it."""

from __future__ import annotations

import random
from pathlib import Path

from chaos.cluster.postgres import Postgres
from chaos.faults import Arena, Fault, Injection, Strike
from chaos.fleet import Fleet, Seat
from chaos.history.timelines import Timelines
from chaos.systems import WorkerSettings
from chaos.systems.leaseproof import Leaseproof
from tests.chaos.invariants.build import Story


def arena(server: Postgres, database: str = "postgres", *seats: Seat) -> Arena:
    """An arena whose workers hold a lease each, on the task of their seat's number."""
    settings = WorkerSettings(slots=1, prefetch=0, lease=1, poll=1, reclaim_every=1, grace=1)
    fleet = Fleet("leaseproof", settings, Path("unused"), seats=list(seats))
    return Arena(
        fleet,
        server,
        Leaseproof(),
        database,
        "scheduler.tasks",
        lambda: {seat.name: [seat.number] for seat in fleet.seats} or {"somebody": [0]},
        lambda task: task == 1,
        random.Random(1),
        Timelines(server.dsn(database), ()),
    )


def struck(fault: Fault, where: Arena) -> Strike:
    """Inject a fault that finds its target."""
    strike = fault.inject(where)
    assert strike is not None
    return strike


def bit(fault: Fault, strike: Strike) -> bool:
    """Heal a fault, and ask whether it bit by what it saw alone."""
    injection = Injection(strike.target, began=0, placed=0, ended=0, seen=strike.heal())
    return fault.bite(injection, Story().history()) is not None
