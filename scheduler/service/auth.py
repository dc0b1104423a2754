"""Who calls, and whether they may: every route but the health checks asks here first, before the
body is read. To parse one takes a moment in which the event loop serves nobody else: that is for
those whose token is valid.

A token is looked up at each request and never remembered as valid, so that a revoked one is refused
from the commit of its revocation on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from starlette.concurrency import run_in_threadpool

from scheduler.service import tokens
from scheduler.service.limits import HANG_UP
from scheduler.service.problems import Problem
from scheduler.service.refusals import CALLER, client_of, note
from scheduler.service.state import Service, service_of
from scheduler.service.tokens import Caller, Scope

_CHALLENGE = {"WWW-Authenticate": "Bearer"}

bearer = HTTPBearer(
    auto_error=False, description="A token made by `scheduler token create`.", scheme_name="token"
)


class TokenRoute(APIRoute):
    """A route that looks at the token first, and leaves whose it is in the request's scope."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, which reads the body before it asks any dependency, behind the
        look at the token."""
        handle = super().get_route_handler()

        async def known_first(request: Request) -> Response:
            try:
                request.scope[CALLER] = await _caller(request)
            except Problem as problem:
                if _has_body(request) and request.scope.get(CALLER) is None:
                    problem.headers = {**(problem.headers or {}), **HANG_UP}
                raise
            return await handle(request)

        return known_first


async def authenticate(
    request: Request,
    needed: SecurityScopes,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],  # for the description
) -> Caller:
    """The caller, who has all the scopes that the route, a TokenRoute, needs. Raises Problem."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller)
    for scope in needed.scopes:
        if not caller.may(scope):
            note(request.scope, "missing-scope", scope=scope)
            raise Problem("missing-scope", f"the token {caller.name} lacks the scope {scope!r}")
    return caller


async def _caller(request: Request) -> Caller:
    given = await bearer(request)
    if given is None:
        note(request.scope, "missing-token")
        raise Problem("missing-token", "send `Authorization: Bearer ...`", headers=_CHALLENGE)
    if tokens.well_formed(given.credentials):
        digest, service = tokens.digest(given.credentials), service_of(request)
        try:
            service.rates.take(digest, client_of(request.scope))
        except Problem:
            request.scope[CALLER] = service.rates.known(digest)
            raise
        caller = await run_in_threadpool(_found, service, digest)
        if caller is not None:
            return caller
    note(request.scope, "invalid-token")
    raise Problem("invalid-token", "it is unknown or was revoked", headers=_CHALLENGE)


def _found(service: Service, digest: bytes) -> Caller | None:
    with service.database.connection() as connection:
        caller = tokens.find(connection, digest)
    if caller is None:
        service.rates.forget(digest)
    else:
        service.rates.know(digest, caller)
    return caller


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or (
        request.headers.get("content-length", "0") != "0"
    )


def hide(request: Request, task: int) -> Problem:
    """To raise for a task of another source: it does not exist for this caller. Logged, since
    somebody who tries ids should be seen."""
    note(request.scope, "not-visible", task=task)
    return no_task(task)


def no_task(task: int) -> Problem:
    """To raise for a task that does not exist."""
    return Problem("not-found", f"there is no task {task}")


def hide_schedule(request: Request, name: str) -> Problem:
    """The same for a schedule of another source."""
    note(request.scope, "not-visible", schedule=name)
    return no_schedule(name)


def no_schedule(name: str) -> Problem:
    """To raise for a schedule that does not exist."""
    return Problem("not-found", f"there is no schedule {name}")


def refuse_narrow(request: Request, caller: Caller) -> None:
    """Raise Problem if the token is for some kinds only, and the answer is about all of them."""
    if caller.kinds is not None:
        note(request.scope, "kind-not-allowed", kind="all")
        raise Problem("kind-not-allowed", f"the token {caller.name} is not for all kinds")


def refuse_kind(request: Request, caller: Caller, kind: str) -> None:
    """Raise Problem unless the token may have to do with this kind."""
    if not caller.has_kind(kind):
        note(request.scope, "kind-not-allowed", kind=kind)
        raise Problem("kind-not-allowed", f"the token {caller.name} is not for kind {kind}")


AnyCaller = Annotated[Caller, Security(authenticate)]
Enqueuer = Annotated[Caller, Security(authenticate, scopes=[Scope.ENQUEUE.value])]
Reader = Annotated[Caller, Security(authenticate, scopes=[Scope.READ.value])]
Canceller = Annotated[Caller, Security(authenticate, scopes=[Scope.CANCEL.value])]
Operator = Annotated[Caller, Security(authenticate, scopes=[Scope.OPERATE.value])]
Meter = Annotated[Caller, Security(authenticate, scopes=[Scope.METRICS.value])]
