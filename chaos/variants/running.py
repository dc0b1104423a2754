"""Variants of how workers are run: batches, leases, the machine, its disk and its clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from psycopg import Connection

from chaos.mutants import Patch
from chaos.variants.variant import Variant

_MONTH = 30 * 86_400.0


def _asking_for(share: float, at: int, ask: Callable[..., Any]) -> Callable[..., Any]:
    """`ask` for this share of the limit, which is its argument number `at`."""

    def patched(*arguments: Any) -> Any:
        given = list(arguments)
        given[at] = max(1, int(share * given[at]))
        return ask(*given)

    return patched


def _claims(share: float) -> tuple[Patch, ...]:
    return (
        Patch("scheduler.worker:claim", partial(_asking_for, share, 3)),
        Patch("scheduler.worker:complete_and_claim", partial(_asking_for, share, 4)),
    )


def _one_by_one(settle: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def patched(connection: Connection, ended: Sequence[Any], *others: Any) -> list[Any]:
        return [left for one in ended for left in settle(connection, [one], *others)]

    return patched


def _skewed(**wrong: float) -> dict[str, Any]:
    return {"kind": "wrong-clock", "count": 2, "lasts": 3, **wrong}


ALL = (
    Variant(
        name="one-task-a-claim",
        differs="a worker claims one task at a time, however many slots are free",
        right="a claim may take less than it could; what is left is claimed next",
        code=_claims(0.0),
        scenarios=("kill-mid-run", "limited-kind", "priorities", "retry-storm"),
        explored=False,
    ),
    Variant(
        name="half-a-batch",
        differs="a worker claims at most half of what it has room for",
        right="a claim may take less than it could; what is left is claimed next",
        code=_claims(0.5),
        scenarios=("kill-mid-run", "graceful-shutdown", "thundering-start", "operators"),
        explored=False,
    ),
    Variant(
        name="large-batches",
        differs="a worker has 12 slots and claims as many tasks again in advance",
        right="a claim may take what its worker has room for",
        workers={"slots": 12, "prefetch": 12},
        scenarios=("kill-mid-run", "graceful-shutdown", "slow-task-renewal", "stale-statistics"),
        explored=False,
    ),
    Variant(
        name="outcomes-one-by-one",
        differs="each outcome is written by a statement of its own",
        right="the batches are a matter of speed: each row of them is fenced by itself",
        code=(Patch("scheduler.worker:settle", _one_by_one),),
        scenarios=("kill-mid-run", "retry-storm", "reply-lost", "capped-source"),
        explored=False,
    ),
    Variant(
        name="tiny-leases",
        differs="leases of half a second, which a slow moment of the machine outlasts",
        right="whoever loses its lease so is fenced, and what is done twice has that explanation",
        workers={"lease": 0.5},
        # None whose transactional tasks idle as long: the server ends those, as is documented.
        scenarios=("pause-past-lease", "operators", "graceful-shutdown", "retry-storm"),
        explored=False,
    ),
    Variant(
        name="huge-leases",
        differs="leases of an hour",
        right="nobody dies in these runs, so no lease has to be waited for",
        workers={"lease": 3600.0},
        scenarios=("retry-storm", "row-lock", "stale-statistics", "database-restart"),
        explored=False,
    ),
    Variant(
        name="slow-machine",
        differs="four processes that only burn time share the processors with the run",
        right="whoever is late is late: the bounds allow for what the machine itself lagged",
        burners=4,
        scenarios=("kill-mid-run", "pause-past-lease", "graceful-shutdown", "retry-storm"),
        explored=False,
    ),
    Variant(
        name="slow-disk",
        differs="each commit of a worker takes 20 ms longer",
        right="a commit counts when it is there, however long that took",
        # Without fsync the server leaves the delay out: this scenario's is durable.
        settings={"commit_delay": "20000", "commit_siblings": "0"},
        scenarios=("database-crash",),
        explored=False,
    ),
    Variant(
        name="heavy-skew",
        differs="workers' clocks are off by a month, forward and back, or run five times as fast",
        right="no decision rests on a worker's wall clock",
        faults=(_skewed(seconds=_MONTH), _skewed(seconds=-_MONTH), _skewed(rate=5.0)),
        scenarios=("kill-mid-run", "retry-storm", "priorities", "graceful-shutdown"),
        explored=False,
    ),
)
