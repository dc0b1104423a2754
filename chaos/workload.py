"""What the tasks of a run do. The same few behaviours for every system under test.

A handler of any system parses its payload into a `Job` and calls `perform`; the behaviour decides
from the attempt's number alone, so a run can be repeated and its outcome predicted.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Behaviour = Literal["quick", "slow", "flaky", "failing", "poison", "transactional", "snoozing"]


class PlannedFailure(Exception):  # noqa: N818 - it is planned, not an error of the harness
    """The failure that a flaky or failing task was told to have."""


@dataclass(frozen=True, slots=True)
class Job:
    """One task to enqueue, and the payload it carries.

    number: the job's number in its run. behaviour: what the handler does. seconds: for how long it
    works first. failures: how many attempts fail, kill their worker or snooze before one succeeds.
    """

    number: int
    behaviour: Behaviour
    seconds: float
    failures: int

    def payload(self) -> dict[str, object]:
        """The job as JSON data."""
        return asdict(self)


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
    if job.seconds:
        time.sleep(job.seconds)
    match job.behaviour:
        case "quick" | "slow" | "transactional":
            effect()
        case "flaky":
            if attempt <= job.failures:
                raise PlannedFailure(f"planned failure of attempt {attempt}")
            effect()
        case "failing":
            raise PlannedFailure(f"planned failure of attempt {attempt}")
        case "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        case "snoozing":
            if earlier < job.failures:
                raise snooze()
            effect()
