"""What handlers are told to do, they do."""

from __future__ import annotations

import time
from threading import Event, Thread

import pytest

from chaos.workload import HOSTILE_ERROR, Job, PlannedFailure, hog_interpreter, perform


def longest_wait(during: Event, over: Event) -> float:
    """The longest that this thread had to wait for a nap of a millisecond."""
    longest = 0.0
    during.set()
    while not over.is_set():
        began = time.monotonic()
        time.sleep(0.001)
        longest = max(longest, time.monotonic() - began)
    return longest


def test_a_hog_lets_no_other_thread_run() -> None:
    began, over = Event(), Event()
    waits: list[float] = []
    other = Thread(target=lambda: waits.append(longest_wait(began, over)))
    other.start()
    began.wait()
    before = time.thread_time()
    hog_interpreter(0.4)
    hogged = time.thread_time() - before
    over.set()
    other.join()
    # Most of it in one go: what it tries out first is short.
    assert waits[0] > hogged / 2 > 0.1


def attempt(job: Job, number: int) -> int:
    """Perform a job; how many effects it had."""
    effects: list[int] = []
    perform(job, number, lambda: effects.append(1), Exception, 0)
    return len(effects)


def test_a_hog_hogs_in_its_first_attempts_only() -> None:
    job = Job(0, "hog", 0.2, failures=1)
    began = time.thread_time()
    assert attempt(job, 2) == 1
    quick = time.thread_time() - began
    assert attempt(job, 1) == 1
    assert time.thread_time() - began > quick + 0.1


def test_a_hostile_job_fails_with_what_cannot_be_stored_and_succeeds_later() -> None:
    job = Job(0, "hostile", 0, failures=1)
    with pytest.raises(PlannedFailure, match="drop table") as caught:
        attempt(job, 1)
    assert "\0" in str(caught.value)
    assert "\udcff" in HOSTILE_ERROR
    assert attempt(job, 2) == 1
