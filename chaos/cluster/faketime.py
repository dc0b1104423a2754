"""Wall clocks of processes that go wrong on command, by libfaketime.

The library is loaded when a process starts, and stays in the children that it forks. It reads the
time that it is to pretend from a file, each time it is asked, so a clock can be set while its
process runs. The monotonic clock is left alone: nobody can set that on a real machine either.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from chaos.cluster import ClusterError


def find_library() -> Path:
    """libfaketime, from its wheel. Raises ClusterError.

    Not the distribution's: up to 0.9.10 it breaks sleeping by the monotonic clock, as Python does
    since 3.11, when that clock is left alone (github.com/wolfcw/libfaketime/issues/426).
    """
    spec = find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        for library in Path(spec.origin).parent.glob("**/libfaketime.so.1"):
            return library
    raise ClusterError("wrong clocks need libfaketime for this machine: `pip install libfaketime`.")


class Clock:
    """The wall clock of the processes that run under `environment`."""

    def __init__(self, file: Path) -> None:
        """A clock that is right until it is `set`; its reading is kept in `file`."""
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(find_library()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, seconds: float, rate: float = 1) -> None:
        """Put the clock ahead by so many seconds (behind, if negative) and let it run at a rate.

        With another rate than 1 it goes wrong from the start of its process on, so at once by as
        much as it would have by now.
        """
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+f} x{rate:f}\n")
        new.replace(self._file)  # a reader sees the old reading or the new, never half of one
