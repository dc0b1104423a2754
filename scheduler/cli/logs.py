"""How the long-running commands log: on stderr, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Annotated

import typer

from scheduler.events import JsonFormatter


class LogLevel(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


Level = Annotated[LogLevel, typer.Option("--log-level", help="What is logged on stderr.")]
Format = Annotated[
    LogFormat, typer.Option("--log-format", help="Lines for people, or a JSON object each.")
]


def log_to_stderr(level: LogLevel, form: LogFormat) -> None:
    """Set logging up, unless the application has done so."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if form is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
