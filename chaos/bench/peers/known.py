"""The systems that are measured, ours first."""

from __future__ import annotations

from chaos.bench.peers import (
    absurd,
    chancy,
    graphile_worker,
    ours,
    pg_boss,
    pgqueuer,
    procrastinate,
)

KNOWN = tuple(
    module.PEER
    for module in (ours, pgqueuer, procrastinate, absurd, chancy, graphile_worker, pg_boss)
)
