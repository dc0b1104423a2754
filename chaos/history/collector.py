"""Pauses Python's cycle collector while many objects that have no cycles are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector: a history has no cycles, and looking for them can double the time.

    That it is paused for the process's other threads too costs memory at worst.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
