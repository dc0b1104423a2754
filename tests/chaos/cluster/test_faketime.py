"""Wrong clocks: a real process whose wall clock is set while it runs, and nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cluster.faketime import Clock

# Answers each line with what its clocks say after a nap, and how long the nap took.
CHILD = """
import time
while input():
    before = time.monotonic()
    time.sleep(0.05)
    print(time.time(), time.monotonic(), time.monotonic() - before, flush=True)
"""


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def child(clock: Clock) -> Iterator[subprocess.Popen[str]]:
    """A process under the clock."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, **clock.environment},
    )
    with process:
        yield process
        process.kill()


def ask(child: subprocess.Popen[str]) -> tuple[float, float, float]:
    """How far its wall clock and its monotonic clock are from ours, and how long it slept."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("?\n")
    wall, monotonic, slept = map(float, child.stdout.readline().split())
    return wall - time.time(), monotonic - time.monotonic(), slept


def test_a_clock_can_be_set_and_set_right_while_its_process_runs(
    clock: Clock, child: subprocess.Popen[str]
) -> None:
    assert ask(child)[0] == pytest.approx(0, abs=10)
    clock.set(3600)
    assert ask(child)[0] == pytest.approx(3600, abs=10)
    clock.set(-3600)
    assert ask(child)[0] == pytest.approx(-3600, abs=10)
    clock.set(0)
    assert ask(child)[0] == pytest.approx(0, abs=10)


def test_the_monotonic_clock_and_sleeping_are_left_alone(
    clock: Clock, child: subprocess.Popen[str]
) -> None:
    clock.set(-86_400)
    _, monotonic, slept = ask(child)
    assert monotonic == pytest.approx(0, abs=10)
    assert 0.04 < slept < 10


def test_a_clock_that_runs_too_fast_gets_further_and_further_away(
    clock: Clock, child: subprocess.Popen[str]
) -> None:
    clock.set(0, rate=10)
    first, second = ask(child)[0], ask(child)[0]
    assert second > first + 0.05 * 5  # it slept for at least 0.05 s in between
