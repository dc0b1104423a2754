"""Tasks: enqueued, for the source of the token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response
from psycopg.errors import InsufficientPrivilege

from scheduler import tasks
from scheduler.client import enqueue, enqueue_many, enqueue_unique
from scheduler.errors import AccessError, CapReachedError, PayloadError, ScheduleError
from scheduler.kinds import Kind
from scheduler.priority import Priority
from scheduler.service import models
from scheduler.service.auth import Enqueuer, TokenRoute, refuse_kind
from scheduler.service.problems import Problem, described
from scheduler.service.state import Service, Shared
from scheduler.service.tokens import Caller

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=TokenRoute)

REFUSALS = described(400, 401, 403, 408, 413, 422, 429, 500, 503)


@router.post(
    "",
    status_code=201,
    responses={
        **REFUSALS,
        **described(409),
        200: {"model": models.Enqueued, "description": "The task that has the key already."},
    },
)
def enqueue_task(
    request: Request,
    response: Response,
    new: models.NewTask,
    caller: Enqueuer,
    service: Shared,
) -> models.Enqueued:
    """Enqueue one task. Under a unique key it is safe to send again, after an error or a lost
    answer: 201 says that the task is new, 200 that it stands already."""
    kind = _kind(request, caller, service, new.kind)
    payload = _payload(kind, new.payload, "")
    due: dict[str, Any] = {
        "run_at": new.run_at,
        "delay": new.delay,
        "priority": Priority[new.priority.upper()],
        "source": caller.source,
    }
    with service.database.connection() as connection, _refusals():
        if new.unique is None:
            task, created = enqueue(connection, kind, payload, **due), True
        else:
            unique = new.unique.meant()
            task, created = enqueue_unique(connection, kind, payload, unique, **due)
        if not created:
            standing = tasks.get(connection, task)
            # Keys are one for all sources of a kind, but what another enqueued is no answer here.
            if standing is None or not caller.sees(standing.kind, standing.source):
                raise Problem("key-taken", f"another source has this key of kind {kind.name}")
    if not created:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/tasks/{task}"
    return models.Enqueued(id=task, created=created)


@router.post("/batch", status_code=201, responses=REFUSALS)
def enqueue_tasks(
    request: Request, new: models.NewTasks, caller: Enqueuer, service: Shared
) -> models.EnqueuedMany:
    """Enqueue tasks of one kind, all or none."""
    kind = _kind(request, caller, service, new.kind)
    payloads = [
        _payload(kind, payload, f"payloads.{position}: ")
        for position, payload in enumerate(new.payloads)
    ]
    with service.database.connection() as connection, _refusals():
        ids = enqueue_many(
            connection,
            kind,
            payloads,
            run_at=new.run_at,
            delay=new.delay,
            priority=Priority[new.priority.upper()],
            source=caller.source,
        )
    return models.EnqueuedMany(ids=ids)


def _kind(request: Request, caller: Caller, service: Service, name: str) -> Kind[Any]:
    refuse_kind(request, caller, name)
    kind = service.registry.kinds.get(name)
    if kind is None:
        raise Problem("unknown-kind", f"no kind {name} is registered with this server")
    return kind


def _payload(kind: Kind[Any], value: object, where: str) -> object:
    """The payload as its kind's model makes it. Raises Problem."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        detail = f"{where}a number that JSON does not have, or lists in lists without end"
        raise Problem("invalid-payload", detail) from None
    try:
        return kind.load(text)
    except PayloadError as error:
        raise Problem("invalid-payload", f"{where}{error}") from None


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except PayloadError as error:
        raise Problem("invalid-payload", str(error)) from None
    except ScheduleError as error:
        raise Problem("invalid-time", str(error)) from None
    except AccessError as error:
        if isinstance(error.__cause__, InsufficientPrivilege):
            raise  # it is the server's role that may not
        raise Problem("kind-not-allowed", str(error)) from None
    except CapReachedError as error:
        raise Problem("cap-reached", str(error)) from None
