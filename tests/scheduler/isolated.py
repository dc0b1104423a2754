"""The application that the tests of isolated kinds run: its kinds do what their job says."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from scheduler import Attempt, Registry, RetryPolicy, Snooze
from tests.waiting import wait_for

if "BREAK_ISOLATED" in os.environ:
    raise ImportError("this module is broken on purpose")

LEASE = timedelta(milliseconds=500)

registry = Registry()


class Job(BaseModel):
    """What to do. `file` takes a line with the process's id when the handler starts."""

    what: str
    file: Path
    seconds: float = 0.0
    padding: str = ""


def note(job: Job) -> None:
    """Tell in which process this is."""
    with job.file.open("a") as file:
        file.write(f"{os.getpid()}\n")


def do(attempt: Attempt, job: Job) -> None:
    """What every kind does."""
    note(job)
    match job.what:
        case "hog":
            # A C call that does not let go of the interpreter, as a long regular expression does.
            ctypes.PyDLL(None).usleep(int(job.seconds * 1_000_000))
        case "wait":
            wait_for(job.file.with_suffix(".go").exists, "the word to go on")
        case "raise":
            raise ValueError("went wrong" + job.padding)
        case "snooze" if attempt.token == 1:
            raise Snooze(timedelta(0))
        case "sys.exit":
            sys.exit(3)
        case "leave an orphan":
            if os.fork() == 0:
                note(job)
                time.sleep(60)
            os._exit(7)
        case "segfault":
            signal.raise_signal(signal.SIGSEGV)
        case "tell":
            raise ValueError(f"refused the token {attempt.secret('token')}")
        case "look":
            attempt.raise_if_lost()
            assert (attempt.number, attempt.max_attempts, attempt.kind) == (1, 1, "apart")
            assert attempt.lease_length == LEASE
            assert attempt.owner.startswith("the-worker/")
            assert attempt.due.utcoffset() is not None


@registry.kind(
    "apart",
    Job,
    lease=LEASE,
    retry=RetryPolicy(max_attempts=1),
    isolated=True,
    secrets={"token": "env:ISOLATED_TOKEN"},
)
def apart(attempt: Attempt, job: Job) -> None:
    """In a process of its own."""
    do(attempt, job)


@registry.kind("here", Job, lease=LEASE, retry=RetryPolicy(max_attempts=1))
def here(attempt: Attempt, job: Job) -> None:
    """In the worker's process."""
    do(attempt, job)


@registry.kind("apart-for-long", Job, retry=RetryPolicy(max_attempts=1), isolated=True)
def apart_for_long(attempt: Attempt, job: Job) -> None:
    """In a process of its own, with a lease that outlasts every test."""
    do(attempt, job)
