"""Notes for how long a worker process was kept from a processor by the machine.

On a machine with more to do than it can, a worker that nothing was done to may lose its lease all
the same. That is no fault of the scheduler's, and only the worker's own kernel counters can tell it
from one: a stopped process, a busy interpreter and a scheduler that forgets to renew do not move
them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Thread

from chaos.history.events import STARVED
from chaos.history.journal import Journal

# Of the thread that reads it: nanoseconds on a processor, and then nanoseconds that it was ready to
# run and had to wait for one (Documentation/scheduler/sched-stats.rst of Linux).
_COUNTERS = "/proc/thread-self/schedstat"
_LOOK_EVERY = 0.1  # seconds
WORTH_A_NOTE = 50_000  # microseconds


def note_starvation(journal: Journal) -> None:
    """Begin to note `starved`, from a thread of its own, until the process ends.

    The thread does next to nothing, so that it waits for a processor as a renewal would have to.
    Where the kernel does not count, nothing is noted, and nothing is excused. Nor where libfaketime
    is loaded: it would have the thread spin instead of wait, and make the lack that it looks for.
    """
    if Path(_COUNTERS).exists() and "faketime" not in os.environ.get("LD_PRELOAD", ""):
        Thread(target=_watch, args=[journal], name="chaos-starvation", daemon=True).start()


def _watch(journal: Journal) -> None:
    counters = os.open(_COUNTERS, os.O_RDONLY | os.O_CLOEXEC)  # of this thread, from here on
    noted = _waited(counters)
    while True:
        time.sleep(_LOOK_EVERY)
        waited = _waited(counters)
        if waited - noted >= WORTH_A_NOTE:
            journal.note(STARVED, 0, 0, "", str(waited - noted))
            noted = waited


def _waited(counters: int) -> int:
    """In microseconds, so far."""
    return int(os.pread(counters, 100, 0).split()[1]) // 1000
