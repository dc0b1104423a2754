"""The application of the start-up bench: a handler that holds its task until the bench lets go.

It imports nothing but the scheduler, as a user's would: what it imports is part of the time.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from scheduler import Attempt, Registry

GATE = "LEASEPROOF_BENCH_GATE"  # the variable that names the file that is locked until then
KIND = "noop"

app = Registry()


@app.kind(KIND, dict[str, int])
def hold(attempt: Attempt, payload: dict[str, int]) -> None:
    """Wait for a shared lock on the gate, which ends for all at once."""
    with Path(os.environ[GATE]).open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
