"""How long it takes to judge a history, and how much memory, at several sizes.

Each history is simulated and saved by one fresh process, and loaded and judged by another, so that
the peak of the memory is that of judging alone. The time is that of the processor: what else the
machine does meanwhile is not counted.

An event is what one line of the story tells: a changed row, a row of the run log, an effect, a note
of a worker or client, or a fault. (A commit is the envelope of several.)
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, ParamSpec, TypeVar

from chaos.figures.simulated import simulated
from chaos.history.events import History
from chaos.history.store import load, save
from chaos.invariants.judge import judge, overall

MOST_SECONDS, MOST_MEGABYTES = 15.0, 1000.0  # for loading and judging a million events
MILLION = 1_000_000

P = ParamSpec("P")
R = TypeVar("R")


class Judged(NamedTuple):
    """One history: how many events, what it took to load and judge it, and what came of it.

    Times are processor seconds, except `wall`; the peak of memory is of the process as a whole.
    """

    events: int
    tasks: int
    megabytes_of_file: float
    load: float
    judge: float
    wall: float
    peak_megabytes: float
    outcome: str

    @property
    def seconds(self) -> float:
        """Loading and judging, in seconds of one core."""
        return self.load + self.judge


def measure(sizes: Sequence[int], tell: Callable[[str], None] = lambda text: None) -> list[Judged]:
    """Judge one history of each size, in ascending order."""
    found = []
    with TemporaryDirectory() as directory:
        for size in sorted(sizes):
            file = Path(directory) / f"{size}.jsonl.gz"
            tell(f"simulating a history of {size} events")
            _alone(make, size, file)
            tell(f"judging a history of {size} events")
            found.append(_alone(judge_file, file))
            file.unlink()
    return found


def make(size: int, file: Path) -> None:
    """Simulate a history of so many events, and save it."""
    save(simulated(size), file)


def judge_file(file: Path) -> Judged:
    """Load and judge a saved history in this process."""
    wall, began = time.monotonic(), time.process_time()
    history = load(file)
    loaded = time.process_time()
    verdicts = judge(history)
    judged = time.process_time()
    wall = time.monotonic() - wall
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, of what `ru_maxrss` counts
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return Judged(
        events=events_of(history),
        tasks=len(history.finals),
        megabytes_of_file=file.stat().st_size / 1e6,
        load=loaded - began,
        judge=judged - loaded,
        wall=wall,
        peak_megabytes=peak,
        outcome=overall(history, verdicts),
    )


def events_of(history: History) -> int:
    """How many events a history has (see above)."""
    told = sum(
        len(commit.changes) + len(commit.ended) + len(commit.effects) for commit in history.commits
    )
    return told + len(history.notes) + len(history.faults)


def page(judged: Sequence[Judged]) -> list[str]:
    """The measurements as lines of Markdown: a table, and what it shows."""
    first, last = judged[0], judged[-1]
    lines = [
        "| events | tasks | file | load | judge | both | wall | µs an event | to the first"
        " | peak memory | verdict |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in judged:
        each = one.seconds / one.events
        lines.append(
            f"| {one.events:,} | {one.tasks:,} | {one.megabytes_of_file:.1f} MB"
            f" | {one.load:.2f} s | {one.judge:.2f} s | {one.seconds:.2f} s | {one.wall:.2f} s"
            f" | {each * 1e6:.1f} | {each / (first.seconds / first.events):.2f}"
            f" | {one.peak_megabytes:.0f} MB | {one.outcome} |"
        )
    share = last.events / MILLION
    lines += [
        "",
        f"{last.events:,} events in {last.seconds:.1f} s of one core"
        f" ({MOST_SECONDS * share:.1f} s are allowed) and {last.peak_megabytes:.0f} MB"
        f" ({MOST_MEGABYTES:.0f} MB are allowed): {'held' if held(judged) else 'NOT held'}.",
    ]
    return lines


def held(judged: Sequence[Judged]) -> bool:
    """Whether all passed, and the largest kept to its time and memory."""
    last = judged[-1]
    return (
        all(one.outcome == "pass" for one in judged)
        and last.seconds <= MOST_SECONDS * last.events / MILLION
        and last.peak_megabytes <= MOST_MEGABYTES
    )


def _alone(work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Do it in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments, **named).result()
