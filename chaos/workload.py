"""What the tasks of a run do. The same few behaviours for every system under test.

A handler of any system parses its payload into a `Job` and calls `perform`; the behaviour decides
from the attempt's number alone, so a run can be repeated and its outcome predicted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Behaviour = Literal[
    "quick",
    "slow",
    "flaky",
    "failing",
    "poison",
    "transactional",
    "snoozing",
    "hog",
    "hostile",
]

# What systems choke on: characters that JSON, SQL and terminals quote or refuse.
HOSTILE = "'; drop table tasks; -- %s \\ \" \u202e \ufeff \U0001f4a3 \x1b[2J\r\n$$ {} null "
# Characters that PostgreSQL cannot store are no payload, but any exception may carry them.
HOSTILE_ERROR = f"{HOSTILE}\x00 \udcff "


class PlannedFailure(Exception):  # noqa: N818 - it is planned, not an error of the harness
    """The failure that a flaky or failing task was told to have."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task to enqueue, and the payload it carries.

    number: the job's number in its run. behaviour: what the handler does. seconds: for how long it
    works first. failures: how many attempts fail, hog the interpreter or snooze before one
    succeeds. text: ballast.
    """

    number: int
    behaviour: Behaviour
    seconds: float
    failures: int
    text: str = ""

    def payload(self) -> dict[str, object]:
        """The job as JSON data; `Job(**data)` reads it."""
        return asdict(self)


def digest(payload: object) -> str:
    """A hash of a payload's canonical JSON: the same for equal payloads, whoever stored them."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def perform(
    job: Job,
    attempt: int,
    effect: Callable[[], None],
    snooze: Callable[[], Exception],
    earlier: int,
) -> None:
    """Do what the job says in attempt number `attempt`; `earlier` attempts had begun before it.

    `effect` makes the job's effect happen; `snooze` gives the exception that asks for a later run.
    Raises PlannedFailure, or whatever `snooze` gave.
    """
    if job.seconds and job.behaviour != "hog":
        time.sleep(job.seconds)
    match job.behaviour:
        case "quick" | "slow" | "transactional":
            effect()
        case "flaky":
            if attempt <= job.failures:
                raise PlannedFailure(f"planned failure of attempt {attempt}")
            effect()
        case "hostile":
            if attempt <= job.failures:
                raise PlannedFailure(HOSTILE_ERROR * 1000)
            effect()
        case "hog":
            if attempt <= job.failures:
                hog_interpreter(job.seconds)
            effect()
        case "failing":
            raise PlannedFailure(f"planned failure of attempt {attempt}")
        case "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        case "snoozing":
            if earlier < job.failures:
                raise snooze()
            effect()


def hog_interpreter(seconds: float) -> None:
    """Let no other thread of this process run for about `seconds` of CPU.

    A regular expression holds the interpreter from its first character to its last. This one takes
    twice as long for each `a` more: a short text tells how often one of its kind has to be
    repeated.
    """
    length, took = 10, 0.0
    while took < 0.01:
        length += 1
        text = "a" * length + "b"
        began = time.thread_time()
        re.search("(a+)+$", text)
        took = time.thread_time() - began
    re.search("(a+)+$", text * math.ceil(seconds / took))
