"""Programs that some tests need and a machine may lack: skipped aloud, or required."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.cluster import ClusterError


class PartMissingError(ClusterError):
    """A program that only the tests need is not there; the message says how to get it."""


def part(name: str, find: Callable[[], Path]) -> Path:
    """A program that a test needs. Where it cannot be had the test is skipped, and says how to get
    it; with its name in LEASEPROOF_REQUIRE it fails instead."""
    try:
        return find()
    except ClusterError as error:
        if name in os.environ.get("LEASEPROOF_REQUIRE", "").split(","):
            raise
        pytest.skip(str(error))
