"""The service itself: status, metrics, health, and what a token may do."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from scheduler import tasks
from scheduler.migrate import applied_version
from scheduler.service import models
from scheduler.service.auth import AnyCaller, Meter, TokenRoute, refuse_narrow
from scheduler.service.problems import Problem, described
from scheduler.service.state import Shared

router = APIRouter(prefix="/api/v1", tags=["status"], route_class=TokenRoute)
metrics_router = APIRouter(tags=["operation"], route_class=TokenRoute)
health = APIRouter(tags=["operation"])


@router.get("/status", responses=described(401, 403, 429, 500, 503))
def status(caller: Meter, service: Shared) -> models.StatusDocument:
    """The whole queue in numbers, of all sources: so it takes the scope `metrics`."""
    snapshot, age = service.snapshots.get()
    with service.database.connection() as connection:
        clock, version = tasks.clock_source(connection), applied_version(connection)
    kinds = [models.KindStatus.model_validate(it, from_attributes=True) for it in snapshot.kinds]
    kinds = [it for it in kinds if caller.has_kind(it.kind)]
    waits = [it.oldest_due_seconds for it in kinds if it.oldest_due_seconds is not None]
    return models.StatusDocument(
        schema_version=version,
        clock=clock,
        age_seconds=age,
        oldest_due_seconds=max(waits, default=None),
        kinds=kinds,
    )


@router.get("/throughput", responses=described(401, 403, 429, 500, 503))
def throughput(request: Request, caller: Meter, service: Shared) -> models.ThroughputDocument:
    """What attempts came to, and how long tasks had waited, in each of the last sixty minutes; of
    all kinds together, so a token that is for some kinds is refused."""
    refuse_narrow(request, caller)
    minutes, age = service.throughput.get()
    return models.ThroughputDocument.model_validate(
        {"age_seconds": age, "minutes": minutes}, from_attributes=True
    )


@router.get("/token", responses=described(401, 429, 500, 503))
def token(caller: AnyCaller) -> models.TokenDocument:
    """What the token that asks may do: for a page that shows no button which would be refused."""
    return models.TokenDocument.model_validate(
        {
            "name": caller.name,
            "source": caller.source,
            "scopes": sorted(caller.scopes),
            "kinds": caller.kind_list(),
        }
    )


@metrics_router.get(
    "/metrics",
    response_class=Response,
    responses={
        **described(401, 403, 429, 500, 503),
        200: {
            "description": "Prometheus's text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
def metrics(request: Request, caller: Meter, service: Shared) -> Response:
    """The server's metrics, for Prometheus: of all kinds, so a token that is for some kinds is
    refused."""
    refuse_narrow(request, caller)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@health.get("/health/live")
async def live() -> models.Health:
    """Whether this process answers. It needs no token and asks nobody."""
    # In the event loop: while the database is away all threads may be waiting for it, and a process
    # that says it is dead is killed.
    return models.Health()


@health.get("/health/ready", responses=described(503))
def ready(service: Shared) -> models.Health:
    """Whether the database answers, with a schema that this version knows. It needs no token, so
    its answer is kept for a second: whoever asks without end does not ask the database."""
    if not service.readiness.ready():
        raise Problem("database-unavailable", "not ready: the server's log says why")
    return models.Health()
