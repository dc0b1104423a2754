"""Recurring tasks: listed for readers; paused, resumed and run now by operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request, Response
from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from scheduler import schedules
from scheduler.errors import AccessError, ScheduleError
from scheduler.schedules import Standing
from scheduler.service import models
from scheduler.service.auth import Operator, Reader, TokenRoute, hide_schedule, no_schedule
from scheduler.service.problems import Problem, described
from scheduler.service.state import Service, Shared
from scheduler.service.tokens import Caller

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"], route_class=TokenRoute)

REFUSALS = described(401, 403, 404, 422, 429, 500, 503)


@router.get("", responses=described(401, 403, 422, 429, 500, 503))
def list_schedules(
    caller: Reader, service: Shared, after: models.AfterName = None, limit: models.PageSize = 50
) -> models.SchedulePage:
    """Schedules by name, a page at a time: those of the token's source. With the scope `operate`,
    and for a token without a source, those of all sources."""
    source = None if caller.sees_all_sources else caller.source
    with service.database.connection() as connection:
        found = schedules.page(
            connection, source=source, kinds=caller.kind_list(), after=after, limit=limit + 1
        )
    shown = [_document(standing) for standing in found[:limit]]
    return models.SchedulePage(schedules=shown, next=shown[-1].name if len(found) > limit else None)


@router.post("/{name}/pause", responses=REFUSALS)
def pause_schedule(
    request: Request, name: models.ScheduleName, caller: Operator, service: Shared
) -> models.ScheduleDocument:
    """Let a schedule plan nothing until it is resumed; what is planned already still runs. Safe to
    repeat."""
    return _change(schedules.pause_schedules, request, name, caller, service)


@router.post("/{name}/resume", responses=REFUSALS)
def resume_schedule(
    request: Request, name: models.ScheduleName, caller: Operator, service: Shared
) -> models.ScheduleDocument:
    """Let a paused schedule go on from now; what was due meanwhile is not caught up. Its source
    must be allowed to enqueue its kind. Safe to repeat."""
    return _change(schedules.resume_schedules, request, name, caller, service)


@router.post(
    "/{name}/run",
    status_code=201,
    responses={
        **REFUSALS,
        **described(409),
        200: {
            "model": models.Enqueued,
            "description": "The occurrence that waits or runs already.",
        },
    },
)
def run_schedule(
    request: Request,
    response: Response,
    name: models.ScheduleName,
    caller: Operator,
    service: Shared,
) -> models.Enqueued:
    """Run a schedule's task now, also while it is paused. Safe to repeat: while an occurrence waits
    or runs it is that one, and 200 says so. The token's source and the schedule's own must both be
    allowed to enqueue its kind."""
    with service.database.connection() as connection:
        _visible(connection, request, caller, name)
        with _refusals():
            found = schedules.run_schedule(connection, name, source=caller.source)
    if found is None:
        raise no_schedule(name)
    if not found.created:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/tasks/{found.task}"
    return models.Enqueued(id=found.task, created=found.created)


def _change(
    act: Callable[..., list[str]],
    request: Request,
    name: str,
    caller: Caller,
    service: Service,
) -> models.ScheduleDocument:
    with service.database.connection() as connection:
        _visible(connection, request, caller, name)
        with _refusals():
            act(connection, [name], source=caller.source)
        return _document(_visible(connection, request, caller, name))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ScheduleError as error:
        raise Problem("schedule-cannot-run", str(error)) from None
    except AccessError as error:
        if isinstance(error.__cause__, InsufficientPrivilege):
            raise  # it is the server's role that may not
        raise Problem("kind-not-allowed", str(error)) from None


def _visible(connection: Connection, request: Request, caller: Caller, name: str) -> Standing:
    found = schedules.page(connection, name=name)
    if not found:
        raise no_schedule(name)
    if not caller.sees(found[0].kind, found[0].source):
        raise hide_schedule(request, name)
    return found[0]


def _document(standing: Standing) -> models.ScheduleDocument:
    return models.ScheduleDocument.model_validate(standing, from_attributes=True)
