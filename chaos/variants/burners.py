"""Processes that only burn time, as on a machine that others use, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# They end with whoever started them, however that ended.
_BURN = """\
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def burning(count: int) -> Iterator[list[int]]:
    """While inside, so many processes burn; their pids."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
