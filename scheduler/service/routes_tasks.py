"""Tasks: looked at and cancelled. How they are enqueued is in `routes_enqueue`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from psycopg import Connection
from starlette.convertors import Convertor, register_url_convertor

from scheduler import tasks
from scheduler.documents import json_text, raw_payload
from scheduler.service import models
from scheduler.service.auth import Canceller, Reader, TokenRoute, hide, no_task
from scheduler.service.listing import task_page
from scheduler.service.problems import Problem, described
from scheduler.service.state import Shared
from scheduler.service.tokens import Caller
from scheduler.tasks import Task


class _Id(Convertor[int]):
    """A task's id in a path: digits, so that no other path under /tasks is taken for one, and so
    few that reading them costs nothing."""

    regex = "[0-9]{1,19}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("task_id", _Id())

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], route_class=TokenRoute)

Before = Annotated[
    int | None, Query(ge=1, le=models.LARGEST_ID, description="The `next` of the page before.")
]
After = Annotated[
    int, Query(ge=0, le=models.LARGEST_ID, description="The `next` of the page before.")
]


@router.get("", responses=described(401, 403, 422, 429, 500, 503))
def list_tasks(
    caller: Reader,
    service: Shared,
    kind: models.KindFilter = None,
    status: models.StatusFilter = None,
    queue: models.QueueFilter = None,
    source: models.SourceFilter = None,
    before: Before = None,
    limit: models.PageSize = 50,
) -> models.TaskPage:
    """Tasks, newest first, a page at a time: those of the token's source. With the scope `operate`,
    and for a token without a source, those of all sources."""
    if not caller.sees_all_sources:
        if source not in (None, caller.source):
            return models.TaskPage(tasks=[], next=None)
        source = caller.source
    with service.database.connection() as connection:
        found = task_page(
            connection,
            kind=kind,
            status=status,
            queue=queue,
            source=source,
            kinds=caller.kind_list(),
            before=before,
            limit=limit + 1,
        )
    shown = found[:limit]
    return models.TaskPage(tasks=shown, next=shown[-1].id if len(found) > limit else None)


@router.get(
    "/{task:task_id}",
    response_model=models.TaskDetail,
    responses=described(401, 403, 404, 422, 429, 500, 503),
)
def get_task(request: Request, task: models.TaskPath, caller: Reader, service: Shared) -> Response:
    """A task as it stands, with its payload."""
    with service.database.connection() as connection:
        found = _visible(connection, request, caller, task)
    # As text: read into numbers and written again, those of the payload could be rounded.
    return Response(json_text(raw_payload(found)), media_type="application/json")


@router.get("/{task:task_id}/runs", responses=described(401, 403, 404, 422, 429, 500, 503))
def list_runs(
    request: Request,
    task: models.TaskPath,
    caller: Reader,
    service: Shared,
    after: After = 0,
    limit: models.PageSize = 50,
) -> models.RunPage:
    """A task's finished attempts, oldest first, a page at a time."""
    with service.database.connection() as connection:
        _visible(connection, request, caller, task)
        found = tasks.runs(connection, task, after=after, limit=limit + 1)
    shown = [models.Run.model_validate(run, from_attributes=True) for run in found[:limit]]
    return models.RunPage(runs=shown, next=shown[-1].lease_token if len(found) > limit else None)


@router.post("/{task:task_id}/cancel", responses=described(401, 403, 404, 409, 422, 429, 500, 503))
def cancel_task(
    request: Request, task: models.TaskPath, caller: Canceller, service: Shared
) -> models.Cancelled:
    """Cancel a task that is waiting or running. A running handler is told at its worker's next
    renewal; whatever it still writes is refused."""
    with service.database.connection() as connection:
        # A task's source and kind never change, so what is seen here holds for what follows.
        found = _visible(connection, request, caller, task)
        was = tasks.cancel(connection, [task], source=caller.source).get(task)
    if was is None:
        raise Problem("task-is-over", f"task {task} is over, it cannot be cancelled")
    return models.Cancelled.model_validate({"id": found.id, "was": was})


def _visible(connection: Connection, request: Request, caller: Caller, task: int) -> Task:
    found = tasks.get(connection, task)
    if found is None:
        raise no_task(task)
    if not caller.sees(found.kind, found.source):
        raise hide(request, task)
    return found
