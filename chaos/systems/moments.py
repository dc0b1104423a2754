"""A worker that is to be struck in the middle of a write waits there for a moment.

A renewal or a reclaim is one statement of milliseconds: whoever looks at workers from outside comes
too late. So the harness asks for it, with a file, and the worker stays where its statement is
committed and nothing of it has heard so yet. To what is outside, a process that is killed or
stopped there is like one that was struck while the reply was under way.

Files go from one to the other by being renamed, so each step is one's own or has not happened:

1. The harness asks: it makes `<worker>.<moment>`.
2. The worker comes by, takes that for `<worker>.<moment>.here`, and stays for OFFERED seconds, or a
   fifth of a lease if that is less: it renews after a third, and nobody would excuse a lease that
   it lost by waiting here. Nor does it stay twice within one lease.
3. The harness takes that for `<worker>.<moment>.held`: the worker stays until it is let go.
4. The harness strikes, and lets it go: it removes the file.

Nobody waits without a bound: not for a harness that never comes, nor for one that died.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from chaos.history.journal import Journal
from scheduler.statements import numbered
from scheduler.wire import WorkerConnection

DIRECTORY = "moments"  # beside the journals
COMING, HERE, HELD = ".coming", ".here", ".held"

# After a renewal, or after a reclaim that took leases back.
Moment = Literal["in-renewal", "in-reclaim"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

OFFERED = 0.3  # seconds for which a worker waits to be taken up, at most
HELD_AT_MOST = 5.0  # seconds
LOOK_EVERY = 0.005  # seconds

_STATEMENTS: dict[str, Moment] = {"renew": "in-renewal", "reclaim": "in-reclaim"}

C = TypeVar("C", bound=WorkerConnection)


class Failpoints:
    """Those of one worker, which stays after a committed renewal or reclaim if the harness asks."""

    def __init__(self, journals: Path, name: str, journal: Journal, lease: float) -> None:
        self._directory = journals.parent / DIRECTORY
        self._name = name
        self._journal = journal
        self._lease = lease
        self._stayed = -lease  # when it last stayed, on the monotonic clock

    def on(self, connection: C) -> C:
        """The connection, after whose renewals and reclaims the worker can be struck."""
        # psycopg sends, and waits for what comes back, in this method only.
        vars(connection)["wait"] = partial(self._wait, connection.wait)
        return connection

    def _wait(self, wait: Any, step: Any, *others: Any, **named: Any) -> Any:
        cursor = moment = None
        if getattr(step, "__name__", "") == "_execute_gen":
            told = step.gi_frame.f_locals
            cursor, moment = told["self"], _moment(told["query"])
        reply = wait(step, *others, **named)
        if cursor is not None and moment is not None and cursor.rowcount > 0:
            self._stay(moment)
        return reply

    def _stay(self, moment: Moment) -> None:
        asked = self._directory / f"{self._name}.{moment}"
        coming, here, held = (asked.with_name(asked.name + to) for to in (COMING, HERE, HELD))
        if time.monotonic() < self._stayed + self._lease:
            return
        try:
            asked.rename(coming)
        except FileNotFoundError:
            return
        self._stayed = time.monotonic()
        self._journal.note(moment, 0, 0, "")  # before it can be struck
        coming.rename(here)
        _while_there(here, min(OFFERED, self._lease / 5))
        try:
            here.unlink()
        except FileNotFoundError:
            _while_there(held, HELD_AT_MOST)


def _moment(query: object) -> Moment | None:
    """The one that follows this statement, if any."""
    for name, moment in _STATEMENTS.items():
        if query == numbered(name).text:
            return moment
    return None


def _while_there(file: Path, most: float) -> None:
    until = time.monotonic() + most
    while file.exists() and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
