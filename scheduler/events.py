"""What the scheduler logs: one event a line, as `name key=value ...` or as a JSON object.

The names are stable, to search and alert by; docs/operations.md has the table of them.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class Event:
    """The message of a log record: a name and its fields, put into text only when it is written."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={_text(it)}" for key, it in self.fields.items())])


def event(
    log: logging.Logger,
    level: int,
    name: str,
    /,
    *,
    exc_info: bool | BaseException = False,
    **fields: Any,
) -> None:
    """Log an event with these fields; nothing is formatted unless somebody listens."""
    if log.isEnabledFor(level):
        log.log(level, Event(name, fields), exc_info=exc_info, stacklevel=2)


def one_line(text: object) -> str:
    """A text, an error's for one, without its line ends."""
    return " ".join(str(text).split())


class JsonFormatter(logging.Formatter):
    """A record as one JSON object in one line; what is no event is the event `message`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        if isinstance(record.msg, Event):
            line |= {"event": record.msg.name, **record.msg.fields}
        else:
            line |= {"event": "message", "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _text(value: object) -> str:
    """A value that ends at the next space, whatever it is: nothing in it starts a line or field."""
    text = str(value)
    plain = text.isprintable() and not any(c in text for c in ' "=')
    return text if plain and text else json.dumps(text, ensure_ascii=not text.isprintable())
