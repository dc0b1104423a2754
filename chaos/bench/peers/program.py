"""The command line of a system's program in Python, the gate before its workers, and the clock
around its enqueues and between them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chaos.bench.peers.peer import Options
from chaos.bench.peers.tally import DIRECTORY

ENQUEUED = "enqueued in "  # begins the line that says in how many seconds
READY = ".ready"  # the suffix of the file of each process that is at the gate


class Rhythm(NamedTuple):
    """How a client enqueues one by one: so many jobs before the clock begins, so many by the clock,
    so many a second (0: each at once when the call before it has returned)."""

    warm: int
    tasks: int
    rate: float


def main(
    prepare: Callable[[str, int, Options], None],
    work: Callable[[str, Options], None],
    enqueue: Callable[[str, Options, Rhythm], None],
) -> None:
    """`prepare URL OPTIONS TASKS`, `work URL OPTIONS` or `enqueue URL OPTIONS WARM TASKS RATE`;
    OPTIONS is JSON."""
    what, url, options, *rest = sys.argv[1:]
    if what == "prepare":
        prepare(url, int(rest[0]), json.loads(options))
    elif what == "enqueue":
        warm, tasks, rate = rest
        enqueue(url, json.loads(options), Rhythm(int(warm), int(tasks), float(rate)))
    else:
        work(url, json.loads(options))


@contextmanager
def enqueueing() -> Iterator[None]:
    """Around the enqueue of all jobs, in `prepare`: say how long it took."""
    began = time.perf_counter()
    yield
    _say(time.perf_counter() - began)


def in_rhythm(rhythm: Rhythm) -> Iterator[int]:
    """In `enqueue`, when the client has connected: the clock just before each call, when that is
    due. The body of the loop is the call, and the end of the loop says how long they took."""
    for seconds in _waits(rhythm):
        if seconds > 0:
            time.sleep(seconds)
        yield time.monotonic_ns()


async def in_rhythm_async(rhythm: Rhythm) -> AsyncIterator[int]:
    """The same for a client whose calls are awaited."""
    for seconds in _waits(rhythm):
        if seconds > 0:
            await asyncio.sleep(seconds)
        yield time.monotonic_ns()


def _waits(rhythm: Rhythm) -> Iterator[float]:
    """Until each call is due, in seconds; a late one does not make the next one late."""
    began = clock = time.perf_counter()
    for number in range(rhythm.warm + rhythm.tasks):
        now = time.perf_counter()
        if number == rhythm.warm:
            clock = now
        yield began + number / rhythm.rate - now if rhythm.rate else 0.0
    _say(time.perf_counter() - clock)


def _say(seconds: float) -> None:
    sys.stdout.write(f"{ENQUEUED}{seconds}\n")


def gate() -> None:
    """Say that all code is loaded, and wait until the bench lets everyone go."""
    (Path(os.environ[DIRECTORY]) / f"{os.getpid()}{READY}").touch()
    sys.stdin.buffer.read()  # until its other end is closed
