"""Waits for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, seconds: float = 90.0) -> T:
    """The first truthy answer of `condition`; fails the test if there is none in time. The time is
    more than a busy machine needs: it ends a test that would hang, and judges nothing."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.01)
    return answer
