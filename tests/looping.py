"""Coroutines in tests, each in a thread of its own: a browser of `tests/browser.py` keeps an event
loop running in that of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns, or raises."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(coroutine)).result()
