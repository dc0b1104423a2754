"""In a worker process: when its first handler began, and how many handlers ran.

Each process that runs handlers has a file of its own, mapped into memory: a run is counted by
writing eight bytes there, and what was counted outlives the process, however it ends.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from threading import Lock
from typing import NamedTuple

DIRECTORY = "LEASEPROOF_BENCH_DIRECTORY"  # the variable that says where the files go
SUFFIX = ".tally"
_FORM = struct.Struct("<dQ")  # npm/bench.mjs writes the same


class Tally(NamedTuple):
    """What one process counted. began: in seconds since 1970, 0 if no handler ran."""

    began: float
    ran: int


def read_tallies(directory: Path) -> list[Tally]:
    """Those of all processes that ran a handler."""
    return [Tally(*_FORM.unpack(path.read_bytes())) for path in directory.glob(f"*{SUFFIX}")]


_lock = Lock()
_file: mmap.mmap | None = None
_began = 0.0
_ran = 0


def ran() -> None:
    """Count one run of a handler, from any thread. The first call begins the drain."""
    global _file, _began, _ran
    with _lock:
        if _file is None:
            _began = time.time()
            _file = _open(Path(os.environ[DIRECTORY]) / f"{os.getpid()}{SUFFIX}")
        _ran += 1
        _FORM.pack_into(_file, 0, _began, _ran)


async def ran_async() -> None:
    """The same as a coroutine, for systems that run those."""
    ran()


def _open(path: Path) -> mmap.mmap:
    with path.open("xb+") as file:
        file.write(bytes(_FORM.size))
        file.flush()
        return mmap.mmap(file.fileno(), _FORM.size)
