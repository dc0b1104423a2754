"""A thread whose failure is not lost: it repeats one function, and says what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType


def next_beat(due: float, every: float, began: float) -> float:
    """When the next turn is due, after one that was due at `due` and began at `began`.

    Beats that were missed are skipped and the others stay where they are: clients that began
    together still meet after some of them were held up, and meeting is what they are for.
    """
    return due + every * (1 + int((began - due) / every))


class Background(Thread):
    """Calls `turn` every `every` seconds until it returns False or the context is left.

    An exception ends the thread and is raised again by `check`, and on leaving the context.
    """

    def __init__(self, name: str, every: float, turn: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._every = every
        self._turn = turn
        self._over = Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """The thread's body."""
        due = time.monotonic()
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                began = time.monotonic()
                if not self._turn():
                    return
                due = next_beat(due, self._every, began)
        except Exception as error:  # noqa: BLE001 - kept, and raised by check() in the main thread
            self._error = error

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Background:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self.join()
        if error is None:
            self.check()
