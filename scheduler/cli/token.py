"""The commands `scheduler token ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.shared import (
    Database,
    Json,
    NotSoError,
    UsageMistakeError,
    connected,
    names_checked,
)
from scheduler.cli.terminal import say, show, table
from scheduler.roles import OWNER
from scheduler.service import tokens
from scheduler.service.tokens import Scope

token_commands = typer.Typer(help="Look after the HTTP service's tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@token_commands.command()
def create(
    name: Name,
    scope: Annotated[
        list[Scope],
        typer.Option(
            help="What it may do; may be repeated. `operate`: dead letters, schedules, and"
            " tasks of all sources. `metrics`: the whole queue in numbers.",
            show_default=False,
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            help="As whom it enqueues, and whose tasks it sees.",
            show_default=False,
        ),
    ] = None,
    all_sources: Annotated[
        bool,
        typer.Option(
            "--all-sources",
            help="Instead of a source: it sees the tasks of all, and may only have the scopes"
            " `read` and `metrics`.",
        ),
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only tasks of this kind; may be repeated. Default: all.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Make a token and print its secret, which is shown this once."""
    if (source is None) != all_sources:
        raise UsageMistakeError("give either --source NAME or --all-sources")
    with connected(database, OWNER) as connection, names_checked():
        secret = tokens.create(connection, name, source, scope, kind)
    show({"name": name, "secret": secret}, as_json, secret)
    say("keep it now: it is stored as a digest only and cannot be shown again")


@token_commands.command("list")
def list_tokens(database: Database = None, as_json: Json = False) -> None:
    """List tokens, revoked ones too; never their secrets."""
    with connected(database, "scheduler_operator") as connection:
        found = tokens.tokens(connection)
    rows = [
        (
            it.name,
            "(all)" if it.source is None else it.source,
            " ".join(it.scopes),
            "all" if it.kinds is None else " ".join(it.kinds),
            it.created_at,
            it.revoked_at,
        )
        for it in found
    ]
    names = ["name", "source", "scopes", "kinds", "created", "revoked"]
    show({"tokens": found}, as_json, table(names, rows))


@token_commands.command()
def revoke(name: Name, database: Database = None, as_json: Json = False) -> None:
    """Revoke a token for good: it is refused at once."""
    with connected(database, "scheduler_operator") as connection, names_checked():
        done = tokens.revoke(connection, name)
    if not done:
        raise NotSoError(f"there is no token {name!r} to revoke")
    show({"revoked": name}, as_json, f"revoked {name}")
