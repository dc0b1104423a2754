"""How long a failed task waits. The arithmetic that decides runs in SQL (`scheduler.retry_delay`);
`RetryPolicy.delay` states the same function in Python, and the tests hold the two to each other."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from scheduler import checks

LONGEST_DELAY = timedelta(days=365)
MOST_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: `base * factor ** (attempts - 1)`, at most `cap`, less some jitter.

    `jitter` is the share of a delay (0 to 0.5) that may be cut, so that tasks which failed together
    do not come back together. `max_attempts` counts every attempt, crashed ones included; the last
    one's failure makes the task a dead letter.

    Raises ValueError for a policy that could overflow, run backwards or never wait, TypeError for
    what is no number or timedelta.
    """

    max_attempts: int = 10
    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(minutes=10)
    jitter: float = 0.5

    def __post_init__(self) -> None:
        checks.of_type("max_attempts", self.max_attempts, int)
        checks.of_type("base", self.base, timedelta)
        checks.of_type("cap", self.cap, timedelta)
        checks.number("factor", self.factor)
        checks.number("jitter", self.jitter)
        if not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            raise ValueError(f"max_attempts must be 1 to {MOST_ATTEMPTS}, not {self.max_attempts}")
        if not timedelta(0) < self.base <= self.cap <= LONGEST_DELAY:
            raise ValueError(
                f"a retry delay needs 0 < base <= cap <= {LONGEST_DELAY.days} days,"
                f" not base {self.base} and cap {self.cap}"
            )
        if not 1 <= self.factor <= sys.float_info.max:
            raise ValueError(f"factor must be a number of at least 1, not {self.factor}")
        if not 0 <= self.jitter <= 0.5:
            raise ValueError(f"jitter must be from 0 to 0.5, not {self.jitter}")

    def delay(self, attempts: int, task: int, token: int) -> timedelta:
        """The wait after failed attempt number `attempts` of this task under this fencing token."""
        base, cap = self.base.total_seconds(), self.cap.total_seconds()
        if (attempts - 1) * math.log(self.factor) >= math.log(cap / base):
            whole = cap
        else:
            whole = base * self.factor ** (attempts - 1)
        digest = sha256(f"{task}:{token}".encode()).hexdigest()
        return timedelta(seconds=whole * (2**32 - self.jitter * int(digest[:8], 16)) / 2**32)
