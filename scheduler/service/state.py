"""What the routes share, kept with the application: kinds, connections, limits, numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from scheduler.kinds import Registry
from scheduler.service.database import Database
from scheduler.service.kept import Kept
from scheduler.service.limits import RateLimit
from scheduler.service.metrics import Metrics
from scheduler.service.readiness import Readiness
from scheduler.service.snapshot import Snapshot
from scheduler.service.throughput import Minute


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one running service."""

    registry: Registry
    database: Database
    rates: RateLimit
    snapshots: Kept[Snapshot]
    throughput: Kept[list[Minute]]
    readiness: Readiness
    metrics: Metrics


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Shared = Annotated[Service, Depends(service_of)]
