"""Planted bugs that break one law each: each is right as long as the work is set up plainly.

They are systems under test, found by worker processes as `tests.properties.lawbreakers:NAME`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from chaos.mutants import MUTANTS, Edit, Mutant, Patch, Shown
from chaos.mutants.own_clock import with_own_clock
from chaos.systems.leaseproof import Leaseproof
from scheduler import Attempt

PATIENCE = 0.5  # seconds after which an impatient worker no longer wants a claim's reply

Claim = Callable[..., list[Attempt]]
_OWN_CLOCK = "%(own_clock)s::timestamptz"


def _bug(invariant: str, stands_for: str, *changes: Edit | Patch) -> Leaseproof:
    edits = tuple(change for change in changes if isinstance(change, Edit))
    patches = tuple(change for change in changes if isinstance(change, Patch))
    shown_by = Shown("none", 0)  # a law shows them, not a scenario
    return Leaseproof(Mutant("lawbreaker", None, invariant, stands_for, shown_by, edits, patches))


def _but_the_last(claim: Claim) -> Claim:
    def patched(*arguments: Any) -> list[Attempt]:
        attempts = claim(*arguments)
        return attempts if len(attempts) == 1 else attempts[:-1]

    return patched


def _if_in_time(claim: Claim) -> Claim:
    def patched(*arguments: Any) -> list[Attempt]:
        began = time.monotonic()
        attempts = claim(*arguments)
        return attempts if time.monotonic() - began < PATIENCE else []

    return patched


CLAIMS_BY_ITS_OWN_CLOCK = Leaseproof(MUTANTS["claims-by-its-own-clock"])
LEASES_BY_ITS_OWN_CLOCK = _bug(
    "no-overlap",
    "the worker's clock decides when the lease that it is given ends",
    Edit("claim", "lease_expires_at = scheduler.now()", f"lease_expires_at = {_OWN_CLOCK}"),
    Patch("scheduler.dispatch:fetch", with_own_clock),
)
RENEWS_BY_ITS_OWN_CLOCK = _bug(
    "no-overlap",
    "the worker's clock decides when the lease that it renews ends",
    Edit("renew", "scheduler.now()", _OWN_CLOCK),
    Patch("scheduler.lease:fetch", with_own_clock),
)
BACKS_OFF_BY_ITS_OWN_CLOCK = Leaseproof(MUTANTS["backs-off-by-its-own-clock"])
COUNTS_FOR_ITSELF = _bug(
    "attempts-bounded",
    "each worker counts its own attempts of a task, so that the cap is one for each",
    Edit(
        "claim",
        "attempts = task.attempts + 1,",
        "attempts = 1 + (select count(*) from scheduler.run_log as log"
        " where log.task_id = task.id and log.outcome = 'failed'"
        " and split_part(log.lease_owner, '/', 1) = split_part(%(owner)s, '/', 1)),",
    ),
)
LOSES_THE_LAST_OF_A_BATCH = _bug(
    "attempts-bounded",
    "the last of the tasks that one claim took is never started",
    Patch("scheduler.worker:claim", _but_the_last),
)
FORGETS_LATE_CLAIMS = _bug(
    "attempts-bounded",
    "what a claim took whose reply came late is neither run nor given back",
    Patch("scheduler.worker:claim", _if_in_time),
)
