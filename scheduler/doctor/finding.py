"""What a check of the doctor's says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHOWN = 5  # of a list, in one finding


@dataclass(frozen=True, slots=True)
class Finding:
    """`warn` is for what may be meant, `fail` for what breaks a promise. `advice` is what to do."""

    level: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """A check's name and what it found."""

    check: str
    level: str
    found: str
    advice: str


def some(items: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
