"""In a worker process: when its first handler began, how many handlers ran, and when those began
whose jobs say when they were enqueued.

Each process that runs handlers has files of its own: a run is counted by writing eight bytes into
one that is mapped into memory, and what was counted outlives the process, however it ends.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

DIRECTORY = "LEASEPROOF_BENCH_DIRECTORY"  # the variable that says where the files go
SUFFIX, STARTS = ".tally", ".starts"
# npm/bench.mjs writes the same.
_FORM = struct.Struct("<dQ")
_START = struct.Struct("<qq")


class Tally(NamedTuple):
    """What one process counted. began: in seconds since 1970, 0 if no handler ran."""

    began: float
    ran: int


class Start(NamedTuple):
    """When a job was about to be enqueued, and when its handler began: both by the monotonic clock
    of the machine, in nanoseconds."""

    sent: int
    began: int


def read_tallies(directory: Path) -> list[Tally]:
    """Those of all processes that ran a handler."""
    return [Tally(*_FORM.unpack(path.read_bytes())) for path in directory.glob(f"*{SUFFIX}")]


def read_starts(directory: Path) -> list[Start]:
    """Those of all processes, in the order in which they were enqueued."""
    paths = directory.glob(f"*{STARTS}")
    return sorted(Start(*one) for path in paths for one in _START.iter_unpack(path.read_bytes()))


_lock = Lock()
_file: mmap.mmap | None = None
_starts: BinaryIO | None = None
_began = 0.0
_ran = 0


def ran(sent: int | None = None) -> None:
    """Count one run of a handler, from any thread. The first call begins the drain. sent: when the
    job was about to be enqueued, if it says so."""
    global _file, _starts, _began, _ran
    began = 0 if sent is None else time.monotonic_ns()
    with _lock:
        if sent is not None:
            if _starts is None:
                path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}{STARTS}"
                _starts = path.open("xb", buffering=0)
            _starts.write(_START.pack(sent, began))
        if _file is None:
            _began = time.time()
            _file = _open(Path(os.environ[DIRECTORY]) / f"{os.getpid()}{SUFFIX}")
        _ran += 1
        _FORM.pack_into(_file, 0, _began, _ran)


async def ran_async(sent: int | None = None) -> None:
    """The same as a coroutine, for systems that run those."""
    ran(sent)


def _open(path: Path) -> mmap.mmap:
    with path.open("xb+") as file:
        file.write(bytes(_FORM.size))
        file.flush()
        return mmap.mmap(file.fileno(), _FORM.size)
