"""The commands `scheduler schedules ...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from psycopg import Connection
from pydantic_core import to_jsonable_python

from scheduler import schedules
from scheduler.cli.shared import Database, Json, NotSoError, connected, names_checked
from scheduler.cli.terminal import say, show, table
from scheduler.errors import ScheduleError

schedule_commands = typer.Typer(help="Look after recurring tasks.", no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)]


@schedule_commands.command("list")
def list_command(database: Database = None, as_json: Json = False) -> None:
    """List all schedules by name, and what keeps each from running if anything does."""
    with connected(database) as connection:
        found = schedules.list_schedules(connection)
    document = {"schedules": [{**to_jsonable_python(it), "state": it.state} for it in found]}
    rows = [
        (
            it.name,
            it.application,
            it.kind,
            it.rule,
            it.timezone,
            it.last_occurrence,
            it.next_at,
            it.state,
        )
        for it in found
    ]
    names = ["schedule", "application", "kind", "rule", "zone", "last", "next from", "state"]
    show(document, as_json, table(names, rows))


@schedule_commands.command()
def pause(names: Names, database: Database = None, as_json: Json = False) -> None:
    """Let schedules plan nothing until they are resumed; what is planned already still runs."""
    _change("paused", schedules.pause_schedules, names, database, as_json)


@schedule_commands.command()
def resume(names: Names, database: Database = None, as_json: Json = False) -> None:
    """Let paused schedules go on from now; what was due meanwhile is not caught up."""
    _change("resumed", schedules.resume_schedules, names, database, as_json)


@schedule_commands.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Run a schedule's task now, and print its id: that of the one under way if there is one."""
    with connected(database, "scheduler_operator") as connection, names_checked():
        try:
            found = schedules.run_schedule(connection, name)
        except ScheduleError as error:  # not for what was asked, but for what the database has
            raise NotSoError(str(error)) from None
    if found is None:
        raise NotSoError(f"there is no schedule {name}")
    show({"task": found.task, "created": found.created}, as_json, str(found.task))
    if not found.created:
        say(f"task {found.task} of this schedule waits or runs already")


def _change(
    done: str,
    act: Callable[[Connection, list[str]], list[str]],
    names: list[str],
    database: str | None,
    as_json: bool,
) -> None:
    with connected(database, "scheduler_operator") as connection, names_checked():
        changed = act(connection, names)
    show({done: changed}, as_json, *(f"{done} {name}" for name in changed))
    unknown = [name for name in dict.fromkeys(names) if name not in changed]
    if unknown:
        raise NotSoError(f"there are no schedules of these names: {', '.join(unknown)}")
