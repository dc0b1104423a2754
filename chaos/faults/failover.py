"""The primary dies for good, and its standby takes over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import psycopg
from pydantic import Field

from chaos.cluster import ClusterError
from chaos.cluster.standby import Standby
from chaos.faults.database import DatabaseFault
from chaos.faults.fault import SERVER, Arena, Injection, Strike
from chaos.history.events import RUNNING, History
from chaos.history.lost import lost

AWAIT = 5.0  # seconds for which a failover waits for a claim that it will undo
LOOK_AGAIN = 0.2


class Failover(DatabaseFault):
    """Cut the standby off for `lasts` seconds, SIGKILL the primary under load, promote the standby.

    What the primary commits meanwhile (and until there is a claim among it, for a few seconds more)
    is lost: with an asynchronous standby that is what clients were told of, with a synchronous one
    only commits whose clients still waited. Workers and clients find the promoted server by
    themselves; the old primary is never seen by them again.

    It bit if leases were held across it, something was lost, and workers then claimed and ended
    attempts on the promoted server. With a synchronous standby nothing may have been under way, so
    there a loss is not asked for.
    """

    needs_durability: ClassVar[bool] = True
    needs_standby: ClassVar[bool] = True
    once: ClassVar[bool] = True
    kind: Literal["failover"]
    count: Literal[1] = 1
    lasts: float = Field(gt=0, le=3600)

    def inject(self, arena: Arena) -> Strike | None:
        """Cut the standby off, while leases are held and no other fault needs the server."""
        if arena.standby is None or SERVER in arena.busy or not arena.leases():
            return None
        return super().inject(arena)

    def strike(self, arena: Arena) -> Callable[[], int] | None:
        """Cut the standby off; fail over to it to heal.

        Quick tasks' leases may be over by the time that the standby is cut off, and on a busy
        machine it may be behind: it is what the standby has that a failover keeps. If no lease is
        held there, it follows the primary again and nothing was done.
        """
        assert arena.standby is not None
        standby = arena.standby
        standby.cut()
        try:
            held = arena.system.holders(standby.dsn(arena.database))
        except psycopg.Error:
            standby.rejoin()
            raise
        if not held:
            standby.rejoin()
            return None

        def heal() -> int:
            if not standby.synchronous:
                await_a_claim_to_undo(arena, standby)
            return fail_over(arena, standby)

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """Leases were held across it, and work went on; asynchronously, commits were lost."""
        if not history.failovers:
            return None
        failover = history.failovers[0]
        held = set()
        claimed: set[tuple[int, int, str | None]] = set()
        worked = 0
        for commit in history.commits:
            after = commit.at >= failover.opened
            for task, row in commit.changes:
                if row is not None and row.state == RUNNING:
                    if after:
                        claimed.add((task, row.token, row.owner))
                    else:
                        held.add(task)
                elif not after:
                    held.discard(task)
            if after:
                worked += sum(
                    (ended.task, ended.token, ended.owner) in claimed for ended in commit.ended
                )
        if not held or not worked or not (failover.lost or failover.synchronous):
            return None
        gone = lost(history)
        outcomes = Counter(gone.ends.values())
        return (
            f"{len(held)} leases were held across it; {len(failover.lost)} commits were lost, with"
            f" {len(gone.tasks)} enqueues, {len(gone.claims)} claims and"
            f" {outcomes['completed']} completions; then {worked} attempts ended"
        )


def await_a_claim_to_undo(arena: Arena, standby: Standby) -> None:
    """Wait, though not for long, until a worker runs something under a lease that will be lost.

    It will be a former holder that is alive and writes: what a fence is there for. On a busy
    machine `lasts` may be over before anything was claimed under it. A lease that is seen twice is
    one whose handler takes its time; a quick one is over before the primary is.
    """
    known = _held(arena.system.holders(standby.dsn(arena.database)))
    deadline = time.monotonic() + AWAIT
    seen: set[tuple[str, int]] = set()
    while time.monotonic() < deadline:
        held = _held(arena.leases() or {}) - known
        if held & seen:
            return
        seen = held
        time.sleep(LOOK_AGAIN)


def _held(leases: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
    return {(worker, task) for worker, tasks in leases.items() for task in tasks}


def fail_over(arena: Arena, standby: Standby) -> int:
    """Kill the primary, and let the standby take its place. It has seen nothing yet.

    Clients are kept out of the promoted server until it is witnessed, and out of the old primary
    for ever: its log is read to the end behind a port that they do not know. Raises ClusterError if
    a part of this fails, since half a failover can be neither healed nor tried again.
    """
    primary, database = arena.server, arena.database
    try:
        standby.keep_out()
        primary.crash()
        died = time.time_ns() // 1000
        standby.promote()
        arena.log.follow(
            standby.dsn(database),
            standby.switch_point(),
            lambda: primary.in_private(database),
            died=died,
            synchronous=standby.synchronous,
        )
        standby.let_in()
    except psycopg.Error as error:
        raise ClusterError(f"the failover to {standby} could not be finished: {error}") from error
    arena.server, arena.standby = standby, None
    return 0
