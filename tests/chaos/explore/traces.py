"""Every schedule that a search runs, as it went."""

from __future__ import annotations

from chaos.explore import Bounds, Program
from chaos.explore.run import Trace
from chaos.explore.search import Tally, search
from chaos.explore.stage import Stage


class Noting(Tally):
    """Keeps what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[Trace] = []

    def add(self, trace: Trace) -> None:
        super().add(trace)
        self.traces.append(trace)


def all_traces(dsn: str, program: Program, bounds: Bounds) -> tuple[list[Trace], Tally]:
    """Every schedule that a search runs, in order."""
    tally = Noting()
    with Stage(dsn, program) as stage:
        search(stage, bounds, tally, lambda _: None)
    return tally.traces, tally
