"""The commands `scheduler dead-letter ...`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated

import typer
from psycopg import Connection

from scheduler import dead_letter
from scheduler.checks import LARGEST_ID
from scheduler.cli.deliver import deliver, hook_commands
from scheduler.cli.follow import follow_letters
from scheduler.cli.shared import (
    Database,
    Json,
    UsageMistakeError,
    checked,
    connected,
    names_checked,
    refuse_others,
)
from scheduler.cli.terminal import say, show, table, write
from scheduler.dead_letter_follow import Follower
from scheduler.documents import json_text, raw_payload

dead_letter_commands = typer.Typer(
    help="Look after tasks whose attempts are exhausted.", no_args_is_help=True
)
dead_letter_commands.command("deliver")(deliver)
dead_letter_commands.add_typer(hook_commands, name="hooks")

IdsOrAll = Annotated[
    list[int] | None,
    typer.Argument(min=1, max=LARGEST_ID, metavar="[TASK...]", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters, instead of ids.")]
OnlyKind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Only those of this kind.", show_default=False),
]


@dead_letter_commands.command("list")
def list_letters(
    kind: OnlyKind = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 100,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first."""
    with connected(database) as connection, names_checked():
        found = dead_letter.summaries(connection, kind, limit + 1)
        letters = islice(dead_letter.dead_letters(connection, kind), limit if as_json else 0)
        document = {"dead_letters": [raw_payload(letter) for letter in letters]}
    rows = [(it.id, it.kind, it.attempts, it.finished_at, it.error) for it in found[:limit]]
    names = ["task", "kind", "attempts", "died", "error"]
    show(document, as_json, table(names, rows))
    if len(found) > limit:
        say(f"there are more than these {limit}: raise --limit, or export them all")


@dead_letter_commands.command()
def requeue(
    ids: IdsOrAll = None,
    every: All = False,
    kind: OnlyKind = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Make dead letters due now, with all their attempts again."""
    _settle("requeued", dead_letter.requeue, ids, every, kind, database, as_json)


@dead_letter_commands.command()
def discard(
    ids: IdsOrAll = None,
    every: All = False,
    kind: OnlyKind = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Give dead letters up for good; payload and error stay readable with `scheduler history`."""
    _settle("discarded", dead_letter.discard, ids, every, kind, database, as_json)


@dead_letter_commands.command()
def export(
    kind: OnlyKind = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on with each new one, until Ctrl-C or the reader ends."),
    ] = False,
    database: Database = None,
) -> None:
    """Write dead letters to stdout as JSON lines, oldest first."""
    if follow:
        with names_checked():
            follower = Follower(kind)
        follow_letters(follower, database)
        return
    with checked(database) as connection, names_checked():
        for letter in dead_letter.dead_letters(connection, kind):
            write(json_text(raw_payload(letter)))


def _settle(
    done: str,
    act: Callable[[Connection, Sequence[int]], list[int]],
    ids: list[int] | None,
    every: bool,
    kind: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    if every == bool(ids):
        raise UsageMistakeError("give either ids of tasks or --all")
    if kind is not None and not every:
        raise UsageMistakeError("--kind goes with --all, ids stand for themselves")
    with connected(database, "scheduler_operator") as connection, names_checked():
        wanted = ids or dead_letter.ids(connection, kind)
        settled = act(connection, wanted)
    show({done: settled}, as_json, *(f"{done} {task}" for task in settled))
    if ids:
        refuse_others(ids, settled, "not dead letters")
    elif not settled:
        say("there are no dead letters")
