"""The commands `scheduler access ...`, `roles` and `audit`: who may enqueue what and how much, and
who did what."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler import access
from scheduler.cli.shared import Database, Json, UsageMistakeError, connected, names_checked, url
from scheduler.cli.terminal import say, show, table, write
from scheduler.roles import create_roles, printed_roles, roles

access_commands = typer.Typer(
    help="Caps of sources, and kinds restricted to sources.", no_args_is_help=True
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)]


@access_commands.command()
def limit(
    source: Source,
    most: Annotated[
        str, typer.Argument(metavar="N|none", help="Tasks outstanding at most.", show_default=False)
    ],
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Cap how many tasks a source may have outstanding; `none` lifts the cap."""
    cap = None if most == "none" else _number(most)
    with connected(database, "scheduler_operator") as connection, names_checked():
        access.limit_source(connection, source, cap)
    shown = "any number of" if cap is None else f"at most {cap}"
    show(
        {"source": source, "max_outstanding": cap},
        as_json,
        f"{source} may have {shown} tasks outstanding",
    )


@access_commands.command()
def restrict(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[SOURCE...]", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Open it to all, instead.")] = False,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Let only these sources enqueue a kind, in place of those so far; pause others' schedules."""
    if every == bool(sources):
        raise UsageMistakeError("give either the sources of the kind or --all")
    allowed = list(dict.fromkeys(sources or []))
    with connected(database, "scheduler_operator") as connection, names_checked():
        paused = access.restrict_kind(connection, kind, allowed)
    who = ", ".join(allowed) if allowed else "every source"
    show(
        {"kind": kind, "sources": allowed, "paused": paused},
        as_json,
        f"{kind} may be enqueued by {who}",
        *(f"paused the schedule {name}, which another source declared" for name in paused),
    )


@access_commands.command("list")
def list_access(database: Database = None, as_json: Json = False) -> None:
    """List capped sources and restricted kinds."""
    with connected(database) as connection:
        capped, restricted = access.sources(connection), access.restrictions(connection)
    caps = [
        (it.name, "none" if it.max_outstanding is None else it.max_outstanding, it.outstanding)
        for it in capped
    ]
    kinds = [(it.kind, ", ".join(it.sources)) for it in restricted]
    show(
        {"sources": capped, "kinds": restricted},
        as_json,
        table(["source", "cap", "outstanding"], caps) if caps else "no source has a cap",
        table(["kind", "only from"], kinds) if kinds else "every kind is open to all",
    )


def audit_command(
    action: Annotated[
        str | None,
        typer.Option(
            help="Only this: enqueue, cancel, requeue, refuse, create-token...", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """List who did what, newest first; `refuse` are requests that the HTTP service refused."""
    with connected(database) as connection, names_checked():
        found = access.audit(connection, action, limit)
    rows = [
        (
            it.at,
            it.action,
            it.source,
            it.role,
            it.tasks,
            it.first_task,
            it.kind or it.schedule,
            it.detail,
        )
        for it in found
    ]
    names = ["at", "action", "source", "role", "tasks", "first", "of", "detail"]
    show({"audit": found}, as_json, table(names, rows) if rows else "nothing")


def roles_command(
    database: Database = None,
    printed: Annotated[
        bool, typer.Option("--print", help="Print the SQL instead, for psql.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the group roles that are missing, and grant each exactly what it needs."""
    if printed:
        if as_json:
            raise UsageMistakeError("--print is SQL, which --json does not change: give one")
        write(printed_roles())
        return
    created = create_roles(url(database))
    show({"created": created}, as_json, *(f"created {role}" for role in created))
    say(f"the grants of {', '.join(roles())} are what this version needs")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UsageMistakeError(f"{text!r} is no cap: give a number of tasks, or none")
    return int(text)
