"""Who calls, and whether they may: every route but the health checks asks here first.

A token is looked up at each request and never remembered as valid, so that a revoked one is refused
from the commit of its revocation on.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from scheduler.service import tokens
from scheduler.service.problems import Problem
from scheduler.service.refusals import CALLER, note
from scheduler.service.state import Service, service_of
from scheduler.service.tokens import Caller, Scope

_CHALLENGE = {"WWW-Authenticate": "Bearer"}

bearer = HTTPBearer(
    auto_error=False, description="A token made by `scheduler token create`.", scheme_name="token"
)


def authenticate(
    request: Request,
    needed: SecurityScopes,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    service: Annotated[Service, Depends(service_of)],
) -> Caller:
    """The caller, who has all the scopes that the route needs. Raises Problem."""
    if given is None:
        note(request.scope, "missing-token")
        raise Problem("missing-token", "send `Authorization: Bearer ...`", headers=_CHALLENGE)
    caller = _caller(request, given.credentials, service)
    request.scope[CALLER] = caller
    for scope in needed.scopes:
        if not caller.may(scope):
            note(request.scope, "missing-scope", scope=scope)
            raise Problem("missing-scope", f"the token {caller.name} lacks the scope {scope!r}")
    return caller


def _caller(request: Request, secret: str, service: Service) -> Caller:
    if tokens.well_formed(secret):
        digest = tokens.digest(secret)
        try:
            service.rates.take(digest)
        except Problem:
            request.scope[CALLER] = service.rates.known(digest)
            raise
        with service.database.connection() as connection:
            caller = tokens.find(connection, digest)
        if caller is not None:
            service.rates.know(digest, caller)
            return caller
        service.rates.forget(digest)
    note(request.scope, "invalid-token")
    raise Problem("invalid-token", "it is unknown or was revoked", headers=_CHALLENGE)


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
