"""The command `scheduler dev`: a database, a worker, the API and the page, until Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from types import FrameType
from typing import Annotated, NoReturn

import psycopg
import typer

from scheduler.cli.application import load_registry
from scheduler.cli.embedded import throwaway_database
from scheduler.cli.logs import LogFormat, LogLevel, log_to_stderr
from scheduler.cli.serve import needing_http, refuse_taken
from scheduler.cli.shared import NotSoError, UsageMistakeError
from scheduler.cli.terminal import say, write
from scheduler.migrate import migrate
from scheduler.roles import create_roles
from scheduler.worker import Worker

HOST = "127.0.0.1"
GRACE = timedelta(seconds=5)

log = logging.getLogger("scheduler")


def dev(
    registry: Annotated[
        str,
        typer.Argument(metavar="APP", help="module:attribute of a Registry.", show_default=False),
    ],
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 8080,
) -> None:
    """Try an application: a new database, a worker, the API and the page, on this machine only.

    Prints a link to the page. Ctrl-C ends it all, and removes the database.
    """
    with needing_http():
        from scheduler.service import tokens
        from scheduler.service.app import create_app
        from scheduler.service.server import serve

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # The terminal was closed.
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    log_to_stderr(LogLevel.INFO, LogFormat.TEXT)
    refuse_taken(HOST, port)
    try:
        with throwaway_database() as dsn:
            os.environ["SCHEDULER_DATABASE"] = dsn  # where the application's own code looks
            kinds = load_registry(registry)
            migrate(dsn)
            create_roles(dsn)
            with psycopg.connect(dsn) as connection:
                secret = tokens.create(connection, "dev", "dev", list(tokens.Scope))
            try:
                worker = Worker(kinds, dsn, grace=GRACE)
            except ValueError as error:
                raise UsageMistakeError(f"{registry}: {error}") from None
            with _working(worker):
                say("A database, a worker, the API and a page run here until Ctrl-C.\nThe page:")
                write(f"http://{HOST}:{port}/#token={secret}")
                say(f"Other commands find them by:\nexport SCHEDULER_DATABASE='{dsn}'")
                serve(create_app(kinds, dsn), HOST, port)
    except KeyboardInterrupt:
        raise NotSoError("ended before all had started; its database goes with it") from None


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Until the server handles them: any of these signals ends it all, and a further one does not
    keep the database from being removed."""
    for each in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: of a signal that is on its way Python would complain.
        signal.signal(each, lambda *_: None)
    raise KeyboardInterrupt


@contextmanager
def _working(worker: Worker) -> Iterator[None]:
    """Run the worker beside; a worker that fails ends it all."""
    failures: list[BaseException] = []
    over = Event()

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
            failures.append(error)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=run, name="worker")
    thread.start()
    try:
        yield
    finally:
        over.set()
        worker.stop()
        thread.join()
        if failures:
            raise NotSoError(f"the worker failed: {failures[0]}") from failures[0]
