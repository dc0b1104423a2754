"""Tables whose commits are witnessed, and how their rows are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from chaos.history.events import Effect, Ended, Row


class WitnessError(Exception):
    """The log cannot be witnessed, or says something that the history has no word for."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A table to watch and how to read its rows.

    `table` is schema-qualified. `read` turns a row, column name to PostgreSQL's text, into an
    event. `key` names the id column of a task table, whose `read` gives a `Row`; a table without a
    key is append-only, and its `read` gives an `Ended` or an `Effect`.
    """

    table: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, str | None]], Row | Ended | Effect]
    key: str | None = None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats
# As PostgreSQL stores them, which counts from the year 2000.
_INFINITE = {
    "infinity": 2**63 - 1 + 946_684_800_000_000,
    "-infinity": -(2**63) + 946_684_800_000_000,
}


def micros(text: str | None) -> int | None:
    """PostgreSQL's ISO text of a timestamp, as whole microseconds since the Unix epoch.

    Text without an offset is taken as UTC. Infinity becomes a number larger than any timestamp's,
    minus infinity a smaller one. Raises ValueError if it is not a timestamp.
    """
    if text is None:
        return None
    if text in _INFINITE:
        return _INFINITE[text]
    days = 0
    if text[4:5] != "-" or text.endswith(" BC"):
        # Beyond Python's years 1 to 9999: read the same day of a year within, whole cycles away.
        year, rest = text.split("-", 1)
        number = 1 - int(year) if rest.endswith(" BC") else int(year)
        cycles, within = divmod(number, _CYCLE_YEARS)
        text = f"{within + _CYCLE_YEARS:04}-{rest.removesuffix(' BC')}"
        days = (cycles - 1) * _CYCLE_DAYS
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    since = read - _EPOCH
    return ((since.days + days) * 86_400 + since.seconds) * 1_000_000 + since.microseconds
