"""The command line of a system's program in Python, the gate before its workers, and the clock
around its enqueue."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.bench.peers.peer import Options
from chaos.bench.peers.tally import DIRECTORY

ENQUEUED = "enqueued in "  # begins the line that says in how many seconds
READY = ".ready"  # the suffix of the file of each process that is at the gate


def main(
    prepare: Callable[[str, int, Options], None], work: Callable[[str, Options], None]
) -> None:
    """`prepare URL OPTIONS TASKS` or `work URL OPTIONS`; OPTIONS is JSON."""
    what, url, options, *rest = sys.argv[1:]
    if what == "prepare":
        prepare(url, int(rest[0]), json.loads(options))
    else:
        work(url, json.loads(options))


@contextmanager
def enqueueing() -> Iterator[None]:
    """Around the enqueue of all jobs, in `prepare`: say how long it took."""
    began = time.perf_counter()
    yield
    sys.stdout.write(f"{ENQUEUED}{time.perf_counter() - began}\n")


def gate() -> None:
    """Say that all code is loaded, and wait until the bench lets everyone go."""
    (Path(os.environ[DIRECTORY]) / f"{os.getpid()}{READY}").touch()
    sys.stdin.buffer.read()  # until its other end is closed
