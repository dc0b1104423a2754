"""Runs the service in this process until a signal ends it."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI
from psycopg import Connection

from scheduler.errors import AccessError
from scheduler.statements import fetch

SHUTDOWN_SECONDS = 10  # for requests that are under way
STARTUP_FAILURE = 3  # as uvicorn has it
MOST_CONNECTIONS = 500  # of clients; more are told 503 at once


def serve(app: FastAPI, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end and return."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=False,  # the metrics count requests, and each refusal has its own line
            log_config=None,  # as the caller set it up
            server_header=False,
            proxy_headers=False,  # anybody could say of himself to be another
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = server.should_exit = True

    # Until uvicorn has handlers of its own, this ends it as soon as it has started. And after a
    # graceful end uvicorn raises the signal again, for whoever handled it before: that is how this
    # process is meant to end, and no death by a signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run()
    if not (server.started or told):
        sys.exit(STARTUP_FAILURE)


def check_role(connection: Connection) -> None:
    """Raise AccessError unless the login role may enqueue for the sources of the tokens."""
    [(may,)] = fetch(connection, "serves_others", {})
    if not may:
        raise AccessError(
            f"the role {connection.info.user} may not enqueue for the sources of others: make it a"
            " member of scheduler_http (`grant scheduler_http to ...`)"
        )
