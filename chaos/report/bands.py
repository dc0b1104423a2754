"""When a fault was in place, on whom, and what it did: what is drawn as a band across the run."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from chaos.history.events import SERVER_WIDE, History
from chaos.report.text import plain


class Band(NamedTuple):
    """One injection, or a death. `end` is `begin` for what was over at once, like a kill.

    workers: the processes it struck, none if it struck all. bite: what it did, empty if nothing.
    """

    name: str
    workers: tuple[str, ...]
    begin: int
    end: int
    bite: str

    @property
    def at_once(self) -> bool:
        """Whether it is a moment and not a stretch of time."""
        return self.end <= self.begin

    @property
    def whom(self) -> str:
        """Whom it struck, in words."""
        return ", ".join(self.workers) if self.workers else "all"


def bands(history: History) -> list[Band]:
    """The faults that have a time, in its order. Tasks that are faults have none of their own."""
    heals: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    bites: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    silent: dict[str, int] = {}  # when a worker was last heard of
    for note in history.notes:
        silent[note.worker] = max(note.at, silent.get(note.worker, note.at))
    faults = sorted(history.faults, key=lambda fault: (fault.at, fault.action != "heal"))
    for fault in faults:
        if fault.action == "heal":
            heals[fault.name, fault.target].append(fault.at)
        elif fault.action == "bite":
            bites[fault.name, fault.target].append(fault.detail)
    found = []
    for fault in faults:
        if fault.action not in ("inject", "death") or fault.target.endswith(" tasks"):
            continue
        key = (fault.name, fault.target)
        workers = () if fault.target in SERVER_WIDE else tuple(fault.target.split())
        later = [at for at in heals[key] if at >= fault.at]
        if later:
            end = later[0]
            heals[key].remove(end)
        else:
            # Without a heal it lasts as long as the worker's process: a kill ends that at once.
            end = max((silent.get(worker, 0) for worker in workers), default=0)
        if fault.action == "death":
            bite, end = f"the process ended by itself: {fault.detail}", fault.at
        else:
            bite = bites[key].pop(0) if bites[key] else ""
        told = tuple(plain(worker, 80) for worker in workers)
        found.append(Band(plain(fault.name, 40), told, fault.at, max(fault.at, end), plain(bite)))
    return found
