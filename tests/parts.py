"""Programs and packages that some tests need and a machine may lack: skipped aloud, or required."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from chaos.cluster import ClusterError

T = TypeVar("T")


class PartMissingError(ClusterError):
    """A program that only the tests need is not there; the message says how to get it."""


def part(name: str, find: Callable[[], T], missing: type[Exception] = ClusterError) -> T:
    """What a test needs. Where it cannot be had, which `missing` says, the test is skipped, and
    says how to get it; with its name in LEASEPROOF_REQUIRE it fails instead."""
    try:
        return find()
    except missing as error:
        if name in os.environ.get("LEASEPROOF_REQUIRE", "").split(","):
            raise
        pytest.skip(str(error))
