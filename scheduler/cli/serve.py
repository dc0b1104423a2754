"""The command `scheduler serve`; the extra `http` is imported only when it is asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.application import load_registry
from scheduler.cli.logs import Format, LogFormat, LogLevel, log_to_stderr
from scheduler.cli.shared import Database, NotSoError, UsageMistakeError, connected, url
from scheduler.cli.terminal import say
from scheduler.dial import is_loopback
from scheduler.kinds import Registry

if TYPE_CHECKING:
    from scheduler.service.worker_metrics import Observers


def serve(
    registry: Annotated[
        str | None,
        typer.Option(
            "--app",
            envvar="SCHEDULER_APP",
            metavar="APP",
            help="module:attribute of the Registry whose kinds can be enqueued.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond loopback, put TLS before it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 8080,
    rate: Annotated[
        float, typer.Option(min=0.1, max=1e6, help="Requests a second for each token.")
    ] = 50.0,
    connections: Annotated[
        int, typer.Option(min=1, max=100, help="Open to the database, at most.")
    ] = 10,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Serve the HTTP API, metrics and health checks until SIGTERM or SIGINT.

    Clients need a token: `scheduler token create`.
    """
    if registry is None:
        raise UsageMistakeError(
            "no application: give --app module:attribute or set SCHEDULER_APP in the environment"
        )
    with needing_http():
        from scheduler.service.app import create_app
        from scheduler.service.server import check_role
        from scheduler.service.server import serve as run

    log_to_stderr(LogLevel.INFO, log_format)
    kinds = load_registry(registry)
    dsn = url(database)
    refuse_taken(host, port)
    with connected(database, "scheduler_http") as connection:
        check_role(connection)  # say at once what is wrong with the database
    if not is_loopback(host):
        say("warning: tokens and payloads go over the network in clear: put a TLS proxy before it")
    say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
    run(create_app(kinds, dsn, rate=rate, connections=connections), host, port)


def measured(kinds: Registry, port: int | None) -> Observers:
    """Serve the metrics of a worker to be; returns what to give to it. Without a port, nothing."""
    if port is None:
        return {}
    with needing_http():
        from scheduler.service.worker_metrics import WorkerMetrics, expose
    metrics = WorkerMetrics(kinds)
    try:
        expose(metrics, port)
    except OSError as error:
        raise NotSoError(f"cannot serve metrics on port {port}: {error.strerror}") from None
    return metrics.observers


@contextmanager
def needing_http() -> Iterator[None]:
    """Turn a missing package of the extra into one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageMistakeError(
            f"the package {error.name} is missing: install it with `pip install leaseproof[http]`"
        ) from error


def refuse_taken(host: str, port: int) -> None:
    """Say a mistake in the address as one sentence; the server would log it and exit."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:  # a label that is empty, too long, or no text
        raise UsageMistakeError(f"{host!r} is no name of a host") from None
    except OSError as error:
        raise NotSoError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
