"""Puts the service together: routes, limits, metrics, and the files of its web page.

JSON is under `/api/v1`. Under `/` are the files of `static/`, which come with the package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.kinds import Registry
from scheduler.service import (
    problems,
    routes_dead_letters,
    routes_enqueue,
    routes_schedules,
    routes_status,
    routes_tasks,
    snapshot,
    throughput,
)
from scheduler.service.database import Database
from scheduler.service.kept import Kept
from scheduler.service.limits import BodyLimit, RateLimit
from scheduler.service.metrics import Metrics, RequestMetrics
from scheduler.service.readiness import Readiness
from scheduler.service.refusals import RefusalAudit, RefusalLog
from scheduler.service.state import Service

STATIC = Path(__file__).parent / "static"
RATE = 50.0  # requests a second for each token
CONNECTIONS = 10

# For the page: nothing from elsewhere, in no frame. Answers of the API are for nobody's cache.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none';"
        " object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    registry: Registry,
    dsn: str,
    *,
    rate: float = RATE,
    connections: int = CONNECTIONS,
) -> FastAPI:
    """The service for the kinds of one application, on one database.

    `rate` is how many requests a second each token may make, twice that at once; `connections` the
    most that are open to the database.
    """
    database = Database(dsn, connections)
    snapshots = Kept(database, lambda connection, _: snapshot.ask(connection))
    refusals = RefusalAudit(database)
    service = Service(
        registry=registry,
        database=database,
        rates=RateLimit(rate, max(1, int(rate * 2))),
        snapshots=snapshots,
        throughput=Kept(database, throughput.last_hour),
        readiness=Readiness(database),
        metrics=Metrics(snapshots, sorted(registry.kinds)),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database.open()
        refusals.start()
        try:
            yield
        finally:
            refusals.close()
            database.close()

    app = _Described(
        title="Leaseproof",
        version=version("leaseproof"),
        summary="Tasks with leases, on PostgreSQL.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # those pages load their code from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    problems.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit)
    app.add_middleware(RefusalLog, audit=refusals)
    app.add_middleware(_Headers)
    app.add_middleware(RequestMetrics, metrics=service.metrics)
    app.include_router(routes_enqueue.router)
    app.include_router(routes_tasks.router)
    app.include_router(routes_dead_letters.router)
    app.include_router(routes_schedules.router)
    app.include_router(routes_status.router)
    app.include_router(routes_status.metrics_router)
    app.include_router(routes_status.health)

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


class _Described(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description, with the one form that all refusals have."""
        if self.openapi_schema is None:
            described = super().openapi()
            schema = problems.ProblemDocument.model_json_schema(
                ref_template="#/components/schemas/{model}"
            )
            schemas = described["components"]["schemas"]
            schemas |= schema.pop("$defs")
            schemas["ProblemDocument"] = schema
        assert self.openapi_schema is not None
        return self.openapi_schema


class _Headers:
    """Adds the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                # The page's files are asked about each time, or they could be of two versions.
                kept = scope["path"].startswith("/static/")
                headers["Cache-Control"] = "no-cache" if kept else "no-store"
            await send(message)

        await self._app(scope, receive, adding)
