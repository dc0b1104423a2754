"""The command `scheduler doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.application import load_registry
from scheduler.cli.shared import Database, Json, url
from scheduler.cli.terminal import say, show, table
from scheduler.doctor import examine


def doctor_command(
    registry: Annotated[
        str | None,
        typer.Option(
            "--app",
            envvar="SCHEDULER_APP",
            metavar="APP",
            help="module:attribute of a Registry, to look at its kinds too.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Examine the database, its settings, rights and queue; exit code 1 if something fails."""
    found = examine(url(database), None if registry is None else load_registry(registry))
    rows = [(it.check, it.level, it.found, it.advice) for it in found]
    failed = any(it.level == "fail" for it in found)
    document = {"healthy": not failed, "checks": found}
    show(document, as_json, table(["check", "state", "found", "what to do"], rows))
    if registry is None:
        say("kinds and their leases were not looked at: give --app module:attribute")
    raise typer.Exit(1 if failed else 0)
