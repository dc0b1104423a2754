"""What the service answers when it refuses: problem+json (RFC 9457), always in this one form.

The last word of a problem's `type` is stable; clients may decide by it. Titles and details are for
people. No answer has a trace, a statement, a server's message or anything of a token in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from scheduler.errors import AccessError
from scheduler.events import event, one_line

log = logging.getLogger("scheduler.service")

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:problem-type:leaseproof:"
SLUG = "leaseproof.problem"  # where in a request's scope the refusal's name is left for the metrics
RETRY_SECONDS = 1  # after which it makes sense to ask again when the database did not answer

# Each problem's name: its status and title.
PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed-request": (400, "The request is not what this server understands"),
    "missing-token": (401, "A bearer token is needed"),
    "invalid-token": (401, "The bearer token is not valid"),
    "missing-scope": (403, "The token lacks a scope"),
    "kind-not-allowed": (403, "The token or its source may not have to do with this kind"),
    "not-found": (404, "There is no such thing here"),
    "method-not-allowed": (405, "This method is not for this path"),
    "body-too-slow": (408, "The body took too long to arrive"),
    "key-taken": (409, "Another source's task has this unique key"),
    "task-is-over": (409, "The task is over"),
    "schedule-cannot-run": (409, "The schedule cannot run now"),
    "body-too-large": (413, "The body is too large"),
    "invalid-request": (422, "The request does not say what can be meant"),
    "unknown-kind": (422, "This server has no such kind"),
    "invalid-payload": (422, "The payload is refused"),
    "invalid-time": (422, "The time is refused"),
    "rate-limited": (429, "Too many requests"),
    "cap-reached": (429, "The source has as many tasks outstanding as it may"),
    "internal-error": (500, "The server failed; its log says why"),
    "not-permitted-to-server": (
        500,
        "The server's database role lacks a right; its log says which",
    ),
    "database-unavailable": (503, "The database does not answer"),
    "database-too-slow": (503, "The database took too long"),
}


class FieldError(BaseModel):
    """One thing wrong in a request."""

    at: str
    message: str


class ProblemDocument(BaseModel):
    """A refusal (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] | None = None


class Problem(HTTPException):
    """Raised anywhere below a request to refuse it.

    An HTTPException, because the framework passes those on wherever they are raised, also while it
    reads a body.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: list[FieldError] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        status, _ = PROBLEMS[slug]
        super().__init__(status, detail, headers)
        self.slug = slug
        self.errors = errors

    def response(self) -> JSONResponse:
        """The answer to send."""
        status, title = PROBLEMS[self.slug]
        document = ProblemDocument(
            type=TYPE + self.slug,
            title=title,
            status=status,
            detail=self.detail,
            errors=self.errors,
        )
        return JSONResponse(
            document.model_dump(exclude_none=True),
            status,
            headers=dict(self.headers or {}),
            media_type=MEDIA_TYPE,
        )


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: its refusals, in the one form they have."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Make the application answer every error as a problem."""
    app.add_exception_handler(Exception, _unexpected)
    app.add_exception_handler(psycopg.Error, _database)
    app.add_exception_handler(AccessError, _access)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


def of_database(error: psycopg.Error) -> Problem | None:
    """The problem that a database error is to the client; None for one that nobody expects."""
    retry = {"Retry-After": str(RETRY_SECONDS)}
    match error:
        case psycopg.errors.QueryCanceled() | psycopg.errors.LockNotAvailable():
            detail = "the statement was given up; ask for less, or again in a moment"
            return Problem("database-too-slow", detail, headers=retry)
        case psycopg.errors.InsufficientPrivilege():
            return Problem("not-permitted-to-server", "grant scheduler_http to the server's role")
        case psycopg.OperationalError() | psycopg.errors.ReadOnlySqlTransaction():
            detail = (
                "nothing was done, or the answer was lost: a unique key makes it safe to repeat"
            )
            return Problem("database-unavailable", detail, headers=retry)
    return None


def _answer(request: Request, problem: Problem) -> JSONResponse:
    request.scope[SLUG] = problem.slug
    return problem.response()


async def _database(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, psycopg.Error)
    problem = of_database(error)
    if problem is None:
        return await _unexpected(request, error)
    event(
        log,
        logging.WARNING,
        "database-error",
        problem=problem.slug,
        method=request.method,
        path=request.url.path,
        sqlstate=error.sqlstate,
        error=one_line(error),
    )
    return _answer(request, problem)


async def _access(request: Request, error: Exception) -> JSONResponse:
    """What the server's own role may not do; what a token may not is a problem already."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return await _database(request, cause)
    return await _unexpected(request, error)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    event(
        log,
        logging.ERROR,
        "internal-error",
        exc_info=error,
        method=request.method,
        path=request.url.path,
    )
    return _answer(request, Problem("internal-error", "it is not your request's fault"))


async def _http(request: Request, error: Exception) -> JSONResponse:
    """Our own problems, and what the framework refuses before a route is reached."""
    assert isinstance(error, HTTPException)
    if isinstance(error, Problem):
        return _answer(request, error)
    match error.status_code:
        case 404:
            problem = Problem("not-found", "no route has this path")
        case 405:
            allowed = _allowed(request)
            detail = f"the path takes {allowed}"
            problem = Problem("method-not-allowed", detail, headers={"Allow": allowed})
        case _:
            problem = Problem("malformed-request", "the body cannot be read as JSON")
    return _answer(request, problem)


def _allowed(request: Request) -> str:
    """The methods of a path, from the description: the framework names those of one route only."""
    paths: dict[str, dict[str, object]] = request.app.openapi()["paths"]
    for template in sorted(paths, key=lambda template: "{" in template):
        if compile_path(template)[0].fullmatch(request.url.path):
            return ", ".join(sorted(method.upper() for method in paths[template]))
    return "GET"  # a file of the page


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What the models refuse: where, and why, without the value, which may be anybody's secret."""
    assert isinstance(error, RequestValidationError)
    found = [
        FieldError(
            at=".".join(str(part) for part in one["loc"])[:200], message=str(one["msg"])[:500]
        )
        for one in error.errors()[:20]
    ]
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return _answer(request, Problem("malformed-request", "the body is not JSON", errors=found))
    return _answer(request, Problem("invalid-request", found[0].message, errors=found))
