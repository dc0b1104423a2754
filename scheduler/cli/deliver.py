"""The commands `scheduler dead-letter deliver` and `scheduler dead-letter hooks ...`."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Annotated

import typer

from scheduler import dead_letter_hooks
from scheduler.cli.application import load_function
from scheduler.cli.logs import Format, Level, LogFormat, LogLevel, log_to_stderr
from scheduler.cli.shared import (
    Database,
    Json,
    NotSoError,
    UsageMistakeError,
    connected,
    names_checked,
    url,
)
from scheduler.cli.terminal import say, show, table
from scheduler.deliver import Deliverer, Tell
from scheduler.webhook import Webhook

hook_commands = typer.Typer(
    help="Look after what dead-letter hooks are yet to be told.", no_args_is_help=True
)

Hook = Annotated[str, typer.Argument(metavar="HOOK", show_default=False)]


def deliver(
    hook: Annotated[str, typer.Option(help="The hook's name; several may have one.")] = "default",
    to: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="SCHEDULER_HOOK_URL",
            metavar="URL",
            help="POST each as signed JSON. As a variable if the URL is itself a secret.",
            show_default=False,
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="REFERENCE",
            help="What messages are signed with: env:NAME or file:/path.",
            show_default=False,
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="Call module:function with each instead.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Tell a hook of each dead letter from its first start on, until SIGTERM or SIGINT."""
    log_to_stderr(log_level, log_format)
    with names_checked():
        tell = _tell(to, secret, call)
        with connected(database, "scheduler_operator") as connection:
            dead_letter_hooks.register(connection, hook)  # say at once what is wrong
    running = Deliverer(url(database), hook, tell)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        running.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    running.run()


@hook_commands.command("list")
def list_hooks(database: Database = None, as_json: Json = False) -> None:
    """List hooks, how many letters wait for each, and how many were given up."""
    with connected(database) as connection:
        found = dead_letter_hooks.hooks(connection)
    rows = [(it.hook, it.waiting, it.given_up, it.last_error) for it in found]
    show({"hooks": found}, as_json, table(["hook", "waiting", "given up", "last error"], rows))


@hook_commands.command()
def retry(hook: Hook, database: Database = None, as_json: Json = False) -> None:
    """Try again to deliver what was given up."""
    with connected(database, "scheduler_operator") as connection, names_checked():
        count = dead_letter_hooks.retry(connection, hook)
    show({"due_again": count}, as_json, f"{count} are due again")


@hook_commands.command()
def forget(hook: Hook, database: Database = None) -> None:
    """Remove a hook and what it was not told. Its deliverers must have been stopped."""
    with connected(database, "scheduler_operator") as connection, names_checked():
        existed = dead_letter_hooks.forget(connection, hook)
    if not existed:
        raise NotSoError(f"there is no hook {hook}")


def _tell(to: str | None, secret: str | None, call: str | None) -> Tell:
    if (to is None) == (call is None):
        raise UsageMistakeError("give either --url, with --secret, or --call")
    if call is not None:
        return load_function(call)
    if to is None or secret is None:
        raise UsageMistakeError("a webhook needs --secret, which its messages are signed with")
    webhook = Webhook(to, secret)
    if webhook.in_clear:
        say("warning: payloads and errors go over the network in clear: use https")
    return webhook
