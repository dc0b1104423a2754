"""How far a run is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """How far a run is, for people to look at while it goes on."""

    total: int
    phase: str = "load"
    done: int = 0
    reclaimed: int = 0
    injected: Counter[str] = field(default_factory=Counter)
