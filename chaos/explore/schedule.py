"""Schedules: one interleaving as a short string, such as `a a b! +60s a`.

a      the next step of actor a: one statement is executed, or one transaction committed
a!     a crashes: its connection is cut before its next step reaches the server
a!!    a crashes: its connection is cut after the server got its next step and all that went
       with it (in autocommit mode a statement and its commit travel together)
a?     a's next step is done and the reply is lost: a lives on and sees a broken connection
a^     the server terminates a's session; a sees that at once
+60s   the database's clock moves (units: ms, s, m, h)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from chaos.explore.errors import ScheduleError

STEP, CRASH, CRASH_AFTER, LOST_REPLY, TERMINATE = "", "!", "!!", "?", "^"
ACTOR = re.compile(r"[a-z][a-z0-9_]*")

_STEP = re.compile(r"([a-z][a-z0-9_]*)(!!|!|\?|\^|)")
_ADVANCE = re.compile(r"\+([1-9][0-9]*)(ms|s|m|h)")
_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


class Step(NamedTuple):
    """Something that happens to one actor; `what` is the suffix of the notation above."""

    actor: str
    what: str = STEP

    def __str__(self) -> str:
        return self.actor + self.what


class Advance(NamedTuple):
    """The database's clock moves."""

    by: timedelta

    def __str__(self) -> str:
        for unit, length in _UNITS.items():
            if self.by % length == timedelta(0):
                return f"+{self.by // length}{unit}"
        raise ScheduleError(f"the clock moves by whole milliseconds, not by {self.by}")


Choice = Step | Advance
Schedule = tuple[Choice, ...]


def show(schedule: Iterable[Choice]) -> str:
    """The schedule as a string that `parse` reads."""
    return " ".join(map(str, schedule))


def parse(text: str) -> Schedule:
    """Read a schedule. Raises ScheduleError for a word that is no step."""
    return tuple(map(_parse, text.split()))


def _parse(word: str) -> Choice:
    if step := _STEP.fullmatch(word):
        return Step(step[1], step[2])
    if advance := _ADVANCE.fullmatch(word):
        return Advance(int(advance[1]) * _UNITS[advance[2]])
    raise ScheduleError(
        f"{word!r} is no step: write an actor's name, with !, !!, ? or ^ after it for a fault,"
        " or +60s to move the clock"
    )
