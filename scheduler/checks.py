"""What a caller may give, looked at before the database is asked. Each check returns what it was
given, or raises TypeError for what is of another type and ValueError for what cannot be meant."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")

LARGEST_ID = 2**63 - 1
LONGEST_WORKER = 200  # characters: each row of the run log has a worker's name
LONGEST_WAIT = timedelta(days=1)
MOST_SLOTS = 10_000
LONGEST_SHOWN = 200  # characters of a wrong value in a message


def of_type(what: str, value: object, wanted: type[T], hint: str = "") -> T:
    """The value, if it is of this type; True and False are no numbers."""
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    raise TypeError(f"{what} must be of type {wanted.__name__}, not {shown(value)}{hint}")


def number(what: str, value: object) -> None:
    """A whole number or a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be a number, not {shown(value)}")


def text(what: str, value: Any, longest: int) -> str:
    """A text that PostgreSQL can store, of 1 to `longest` characters."""
    if isinstance(value, str) and 1 <= len(value) <= longest and storable(value):
        return value
    raise ValueError(
        f"{what} has a name of 1 to {longest} characters that PostgreSQL can store,"
        f" not {shown(value)}"
    )


def texts(what: str, values: Iterable[Any], longest: int) -> list[str]:
    """Several such texts. One text by itself would be taken for a list of its letters."""
    if isinstance(values, str | bytes):
        raise ValueError(f"the names are a list of names, not {shown(values)} by itself")  # noqa: TRY004 - one error for all that cannot be meant
    return [text(what, value, longest) for value in values]


def ids(tasks: Iterable[Any]) -> list[int]:
    """Ids of tasks. The database would read any number in a text or near a fraction as an id."""
    if isinstance(tasks, str | bytes):
        raise TypeError(f"a list of ids of tasks is needed, not {shown(tasks)}")
    checked = []
    for task in tasks:
        if not 1 <= of_type("a task's id", task, int) <= LARGEST_ID:
            raise ValueError(f"a task's id is from 1 to {LARGEST_ID}, not {shown(task)}")
        checked.append(task)
    return checked


def slots(count: object, prefetch: object) -> None:
    """How many handlers a worker runs at once, and how many tasks more it claims."""
    ahead = 0 if prefetch is None else of_type("prefetch", prefetch, int)
    if not (1 <= of_type("slots", count, int) <= MOST_SLOTS and 0 <= ahead <= MOST_SLOTS):
        raise ValueError(
            f"slots must be from 1 to {MOST_SLOTS} and prefetch from 0 to {MOST_SLOTS}"
        )


def waits(least: timedelta, **lengths: object) -> None:
    """Lengths of time, by name, for which a worker waits."""
    for what, value in lengths.items():
        if not isinstance(value, timedelta):
            raise TypeError(f"{what} must be a timedelta, not {value!r}")
        if not least <= value <= LONGEST_WAIT:
            raise ValueError(f"{what} must be from {least} to {LONGEST_WAIT}, not {value}")


def worker_name(name: object) -> None:
    """A worker's name, should it have been given one."""
    if name is not None and not (
        isinstance(name, str) and name.isprintable() and len(name) <= LONGEST_WORKER
    ):
        raise ValueError(
            f"a worker's name must be printable text of at most {LONGEST_WORKER} characters,"
            f" not {shown(name)}"
        )


def dsn(value: str) -> str:
    """What psycopg can read as the address of a database."""
    try:
        conninfo_to_dict(of_type("dsn", value, str))
    except (psycopg.ProgrammingError, UnicodeEncodeError):
        # libpq's own words quote the value, which may have a password in it.
        raise ValueError(
            "the dsn is neither a connection URL (postgresql://user@host/database) nor keywords"
            " (host=... dbname=...)"
        ) from None
    return value


def storable(value: str) -> bool:
    """Whether PostgreSQL can store it: no NUL, and no half of a surrogate pair."""
    return "\0" not in value and value.encode("utf-8", "replace").decode() == value


def shown(value: object) -> str:
    """A wrong value, as a message shows it."""
    whole = repr(value)
    return whole if len(whole) <= LONGEST_SHOWN else f"{whole[:LONGEST_SHOWN]}..."
