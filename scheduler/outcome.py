"""How a handler ended, and what its error says: the same in a slot and in a process of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from scheduler.finish import LONGEST_ERROR
from scheduler.kinds import Kind

MOST_CAUSES = 5  # exceptions behind an exception that a task's error names
MOST_FRAMES = 6  # of a traceback in a task's error: where the handler was, and the innermost

_NOT_THEIRS = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a handler ended, before the database has heard of it.

    `committed`: its own transaction completed the task. `lost`: nothing may be written. `seconds`:
    for how long it ran.
    """

    what: Literal["completed", "failed", "snoozed", "released", "committed", "lost"]
    error: str = ""
    delay: timedelta = timedelta(0)
    seconds: float = 0.0


def refuse_unfinished(kind: Kind[Any], returned: object) -> None:
    """A coroutine, generator or future that a handler returns is work not done: no completion."""
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    elif not (
        inspect.isawaitable(returned)
        or inspect.isasyncgen(returned)
        or isinstance(returned, Future)
    ):
        return
    raise TypeError(
        f"the handler of kind {kind.name!r} returned {type(returned).__name__}, for which nobody"
        " waits: do the work in the function, or register an `async def`"
    )


def describe(error: BaseException, redact: Callable[[str], str] = str) -> str:
    """An exception as text for the task's last error: its message first, then what caused it, then
    where in the handler it arose. Each part is redacted before it is cut: half a secret would not
    be found any more."""
    lines = redact("".join(_said(error)))[: LONGEST_ERROR // 2]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        said = redact("".join(_said(cause))).strip()
        lines += f"caused by {said[: LONGEST_ERROR // 10]}\n"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    frames = traceback.extract_tb(error.__traceback__)
    # The way to the handler is the same for all and tells nobody anything.
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)] or frames
    shown = theirs if len(theirs) <= MOST_FRAMES else [theirs[0], *theirs[1 - MOST_FRAMES :]]
    return lines + "\n" + redact("".join(traceback.format_list(shown)))


def _said(error: BaseException) -> list[str]:
    """What an exception says of itself, even if it cannot be asked."""
    try:
        return traceback.format_exception_only(error)
    except Exception:  # noqa: BLE001 - an exception's own methods may raise anything
        return [f"{type(error).__name__}\n"]
