"""The command line, `scheduler`: data on stdout, messages on stderr, one sentence for a mistake.

Nothing is decided here: each command reads its arguments, calls the package and shows the answer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple
from datetime import datetime, timedelta
from enum import StrEnum
from types import FrameType
from typing import Annotated

import psycopg
import typer

from scheduler import tasks
from scheduler.cli.access import access_commands, audit_command, roles_command
from scheduler.cli.application import ApplicationError, load_registry
from scheduler.cli.dead_letter import dead_letter_commands
from scheduler.cli.dev import dev
from scheduler.cli.doctor import doctor_command
from scheduler.cli.logs import Format, Level, LogFormat, LogLevel, log_to_stderr
from scheduler.cli.schedules import schedule_commands
from scheduler.cli.serve import measured, serve
from scheduler.cli.shared import (
    Database,
    Id,
    Ids,
    Json,
    NotSoError,
    UsageMistakeError,
    brief,
    connected,
    refuse_others,
    url,
)
from scheduler.cli.terminal import OutputError, age, say, show, table
from scheduler.cli.token import token_commands
from scheduler.client import FARTHEST, Unique, enqueue, enqueue_unique
from scheduler.documents import raw_payload
from scheduler.errors import PayloadError, ScheduleError, SchedulerError, UnknownKindError
from scheduler.migrate import applied_version, migrate
from scheduler.priority import Priority
from scheduler.worker import Worker

EXIT_CODES = (
    "Exit codes: 0 done; 1 the database has it otherwise (unreachable, not migrated, permission"
    " denied, no such task, not in that state), or the reader of the output has gone;"
    " 2 wrong usage (options, times, APP, KIND, PAYLOAD_JSON)."
)
DRAINING = b"draining; a second signal ends this worker at once\n"


class PriorityName(StrEnum):
    """The names of `Priority`, as the command line takes them."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


app = typer.Typer(
    help="A leased distributed task scheduler on PostgreSQL.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dead_letter_commands, name="dead-letter")
app.add_typer(access_commands, name="access")
app.command("roles")(roles_command)
app.command("audit")(audit_command)
app.command("doctor")(doctor_command)
app.add_typer(schedule_commands, name="schedules")
app.add_typer(token_commands, name="token")
app.command("serve")(serve)
app.command("dev")(dev)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; `arguments` default to the process's own."""
    try:
        app(arguments, prog_name="scheduler")
    except (
        UsageMistakeError,
        ApplicationError,
        UnknownKindError,
        PayloadError,
        ScheduleError,
    ) as error:
        message, code = str(error), 2
    except (NotSoError, SchedulerError, OutputError) as error:
        message, code = str(error), 1
    except psycopg.Error as error:
        message, code = brief(error), 1
    say(f"error: {message}")
    sys.exit(code)


@app.command("migrate")
def migrate_command(database: Database = None, as_json: Json = False) -> None:
    """Create the scheduler's schema or bring it up to date; safe to run at any time."""
    applied = migrate(url(database))
    show({"applied": applied}, as_json, *(f"applied {name}" for name in applied))
    if not applied:
        say("the schema is up to date")


@app.command()
def worker(
    registry: Annotated[
        str,
        typer.Argument(metavar="APP", help="module:attribute of a Registry.", show_default=False),
    ],
    database: Database = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="Serve only kinds of this queue; may be repeated. Default: all of APP's.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=10_000, help="Handlers run at once.")] = 10,
    prefetch: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=10_000,
            help="Tasks claimed in advance. Default: what the slots finish in 50 ms, at most 490.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Default: host, process id and a nonce.", show_default=False)
    ] = None,
    poll: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between questions when idle.")
    ] = 1.0,
    reclaim_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between looks for expired leases.")
    ] = 5.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="For handlers to end after a signal.")
    ] = 30.0,
    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled",
            help="The database is behind a transaction pooler (PgBouncer): only polls, and leaves"
            " nothing in a session.",
        ),
    ] = False,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Serve metrics for Prometheus on 127.0.0.1 at this port.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run tasks until SIGTERM or SIGINT, then drain: a second signal ends the process at once."""
    kinds = load_registry(registry)
    log_to_stderr(log_level, log_format)
    try:
        running = Worker(
            kinds,
            url(database),
            name=name,
            queues=queue,
            slots=slots,
            prefetch=prefetch,
            poll=_span("--poll", poll),
            reclaim_every=_span("--reclaim-every", reclaim_every),
            grace=_span("--grace", grace),
            pooled=pooled,
            **measured(kinds, metrics_port),
        )
    except ValueError as error:
        raise UsageMistakeError(f"{registry}: {error}") from None
    with connected(database, "scheduler_worker"):
        pass  # say at once what is wrong with the database

    def drain(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        running.stop()
        if sys.stderr is not None:
            with suppress(OSError):  # nobody may be reading; not logged: its lock may be held here
                os.write(sys.stderr.fileno(), DRAINING)

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, drain)
    running.run()


@app.command("enqueue")
def enqueue_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    payload: Annotated[
        str,
        typer.Argument(metavar="PAYLOAD_JSON", help="'-' reads it from stdin.", show_default=False),
    ],
    registry: Annotated[
        str | None,
        typer.Option(
            "--app",
            envvar="SCHEDULER_APP",
            metavar="APP",
            help="module:attribute of the Registry that has the kind.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="ISO_TIME", help="When it is due, with offset.", show_default=False),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long until it is due.", show_default=False),
    ] = None,
    priority: Annotated[
        PriorityName,
        typer.Option(help="A level counts as due a minute earlier than the one below."),
    ] = PriorityName.NORMAL,
    key: Annotated[
        str | None,
        typer.Option(
            "--unique-key",
            metavar="KEY",
            help="Enqueue only if no task of the kind with this key is waiting or running.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Enqueue one task and print its id; under a key, the id of the task that has it."""
    if registry is None:
        raise UsageMistakeError(
            "no application: give --app module:attribute or set SCHEDULER_APP in the environment"
        )
    chosen = load_registry(registry)[kind]
    # As bytes, because an argument that is not UTF-8 is for the model to refuse.
    text = _standard_input() if payload == "-" else os.fsencode(payload)
    value = chosen.load(text)
    run_at = None if at is None else _time(at)
    span = None if delay is None else _span("--delay", delay)
    level = Priority[priority.upper()]
    if key is None:
        with connected(database, "scheduler_enqueue") as connection:
            task = enqueue(connection, chosen, value, run_at=run_at, delay=span, priority=level)
        show({"task": task, "created": True}, as_json, str(task))
        return
    unique = _unique(key)
    with connected(database, "scheduler_enqueue") as connection:
        task, created = enqueue_unique(
            connection, chosen, value, unique, run_at=run_at, delay=span, priority=level
        )
    show({"task": task, "created": created}, as_json, str(task))
    if not created:
        say(f"task {task} has this key already")


@app.command()
def status(database: Database = None, as_json: Json = False) -> None:
    """Show how many tasks there are, by kind and status, and how long the oldest due one waits."""
    with connected(database) as connection:
        counts = tasks.counts(connection)
        clock, version = tasks.clock_source(connection), applied_version(connection)
    waits = [count.oldest_due_seconds for count in counts if count.oldest_due_seconds is not None]
    oldest = max(waits, default=None)
    document = {
        "schema_version": version,
        "clock": clock,
        "oldest_due_seconds": oldest,
        "tasks": counts,
    }
    rows = [(c.kind, c.status, c.count, age(c.oldest_due_seconds)) for c in counts]
    show(
        document,
        as_json,
        table(["kind", "status", "tasks", "longest wait"], rows),
        f"longest wait: {age(oldest) or 'nothing is due'}",
        f"schema version: {version}",
        f"clock: {clock}",
    )


@app.command()
def history(task: Id, database: Database = None, as_json: Json = False) -> None:
    """Show a task and its finished attempts."""
    with connected(database) as connection:
        found, runs = tasks.get(connection, task), tasks.runs(connection, task)
    if found is None:
        raise NotSoError(f"there is no task {task}")
    fields = asdict(found)
    if found.status not in ("pending", "running"):
        del fields["next_run_at"]  # of the past, and of no meaning any more
    names = ["attempt", "token", "owner", "claimed", "finished", "outcome", "error"]
    rows = [(*astuple(run)[:-1], (run.error or "").partition("\n")[0]) for run in runs]
    show(
        {"task": raw_payload(found), "runs": runs},
        as_json,
        table(["task", ""], list(fields.items())),
        table(names, rows) if rows else "no attempt has finished",
    )


@app.command()
def cancel(ids: Ids, database: Database = None, as_json: Json = False) -> None:
    """Cancel tasks that are waiting or running."""
    with connected(database, "scheduler_operator") as connection:
        was = tasks.cancel(connection, ids)
    document = {"cancelled": [{"task": task, "was": status} for task, status in was.items()]}
    show(document, as_json, *(f"cancelled {task}, was {was[task]}" for task in was))
    refuse_others(ids, was, "neither waiting nor running, or do not exist")


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise UsageMistakeError("PAYLOAD_JSON is '-', but standard input is closed")
    return sys.stdin.buffer.read()


def _unique(key: str) -> Unique:
    try:
        return Unique(key)
    except ValueError as error:
        raise UsageMistakeError(f"--unique-key: {error}") from None


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageMistakeError(
            f"--at {text!r} is not an ISO 8601 time, for example 2030-01-31T09:00:00+00:00"
        ) from None


def _span(option: str, seconds: float) -> timedelta:
    if not 0 <= seconds <= FARTHEST.total_seconds():  # refuses nan, too
        raise UsageMistakeError(
            f"{option} must be from 0 to {FARTHEST.total_seconds():.0f} seconds, not {seconds}"
        )
    return timedelta(seconds=seconds)
