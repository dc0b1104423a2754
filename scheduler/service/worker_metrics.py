"""A worker's metrics for Prometheus: give its `observers` to the `Worker`.

Runs, leases and claims as this worker sees them, by its own monotonic clock. How many tasks wait,
and for how long, only the database knows: the service's `/metrics` has that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypedDict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from scheduler.kinds import Registry
from scheduler.lease import Lease
from scheduler.watchdog import Observe, ObserveClaim, ObserveLimited

RUN_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400)
LAG_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
HEADROOM_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


# Attempts remembered that do not run. More than a worker can hold (10,000 slots and as many to
# wait), so only those that are over are forgotten: nobody tells when the last word on one is said.
REMEMBERED = 25_000


OUTCOMES = ("completed", "failed", "dead", "snoozed", "released")
LOST = ("reclaimed", "cancelled", "not renewed in time")  # how, where that can be known beforehand


class Observers(TypedDict, total=False):
    """What a `Worker` is given for it to be measured."""

    observe: Observe
    observe_claim: ObserveClaim
    observe_limited: ObserveLimited


class _Held:
    """What is known of one attempt since its claim."""

    __slots__ = ("due", "granted", "kind", "length", "started")

    def __init__(self, kind: str, length: float, granted: float, late: float) -> None:
        self.kind = kind
        self.length = length  # of the lease, seconds
        self.granted = granted
        self.due = granted - late  # on this worker's clock; how late it was is the database's word
        self.started = granted  # until its handler starts


class WorkerMetrics:
    """The metrics of one worker, in a registry of their own."""

    def __init__(self, kinds: Registry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lengths = {kind.name: kind.lease.total_seconds() for kind in kinds}
        self._monotonic = monotonic
        self._lock = Lock()
        self._active: dict[Lease, _Held] = {}  # their handlers run
        self._others: dict[Lease, _Held] = {}  # oldest first: to run yet, or over
        self.registry = CollectorRegistry()
        kept = self.registry
        self._running = Gauge(
            "leaseproof_worker_running_tasks", "Handlers that run now.", ["kind"], registry=kept
        )
        self._runs = Histogram(
            "leaseproof_run_duration_seconds",
            "Time from a handler's start to its end, by outcome.",
            ["kind", "outcome"],
            buckets=RUN_BUCKETS,
            registry=kept,
        )
        self._headroom = Histogram(
            "leaseproof_lease_headroom_ratio",
            "How much of a lease was left, from 0 to 1, when it was renewed, ended or lost.",
            ["kind"],
            buckets=HEADROOM_BUCKETS,
            registry=kept,
        )
        self._claim_lag = Histogram(
            "leaseproof_claim_lag_seconds",
            "Time from the moment an attempt was due to its claim.",
            ["kind"],
            buckets=LAG_BUCKETS,
            registry=kept,
        )
        self._completion_lag = Histogram(
            "leaseproof_completion_lag_seconds",
            "Time from the moment the attempt that completed a task was due to its completion.",
            ["kind"],
            buckets=LAG_BUCKETS,
            registry=kept,
        )
        self._settled = Counter(
            "leaseproof_settled_attempts",
            "Attempts whose end was written down: completed, failed, dead (failed for the last"
            " time), snoozed, released.",
            ["kind", "outcome"],
            registry=kept,
        )
        self._claimed = Counter(
            "leaseproof_claimed_tasks", "Attempts claimed.", ["kind"], registry=kept
        )
        self._retries = Counter(
            "leaseproof_retries",
            "Attempts claimed that are not a task's first.",
            ["kind"],
            registry=kept,
        )
        self._lost = Counter(
            "leaseproof_lost_leases",
            "Attempts whose lease was gone before they ended, by how.",
            ["kind", "how"],
            registry=kept,
        )
        self._refused = Counter(
            "leaseproof_fenced_writes",
            "Writes of this worker that the fence refused, by which.",
            ["kind", "write"],
            registry=kept,
        )
        self._reclaims = Counter(
            "leaseproof_reclaims",
            "Expired leases, of any worker, that this one took back, by what became of the task.",
            ["kind", "became"],
            registry=kept,
        )
        self._claims = Counter(
            "leaseproof_claims",
            "Questions to the database for due tasks, by whether there were any.",
            ["result"],
            registry=kept,
        )
        self._limited = Counter(
            "leaseproof_limited_claims",
            "Claims that found nothing to take while tasks of this kind were due and it was at its"
            " limit.",
            ["kind"],
            registry=kept,
        )
        self._claim_seconds = Histogram(
            "leaseproof_claim_duration_seconds",
            "Time that a claim took, there and back.",
            registry=kept,
        )

        # A series that begins at its first event has no rate of it: all that can be known begin at
        # 0.
        for kind in self._lengths:
            self._running.labels(kind)
            self._headroom.labels(kind)
            self._claim_lag.labels(kind)
            self._completion_lag.labels(kind)
            self._claimed.labels(kind)
            self._retries.labels(kind)
            for outcome in OUTCOMES:
                self._settled.labels(kind, outcome)
            for became in ("pending", "dead"):
                self._reclaims.labels(kind, became)
            for how in LOST:
                self._lost.labels(kind, how)
        for each in kinds:
            if each.limit is not None:
                self._limited.labels(each.name)
        for result in ("some", "empty"):
            self._claims.labels(result)

    @property
    def observers(self) -> Observers:
        """What to give to the `Worker` to measure."""
        return {
            "observe": self.observe,
            "observe_claim": self.observe_claim,
            "observe_limited": self.observe_limited,
        }

    def observe_limited(self, kinds: list[str]) -> None:
        """The worker's `observe_limited`."""
        for kind in kinds:
            self._limited.labels(kind).inc()

    def observe_claim(self, tasks: int, seconds: float) -> None:
        """The worker's `observe_claim`."""
        self._claims.labels("some" if tasks else "empty").inc()
        self._claim_seconds.observe(seconds)

    def observe(self, what: str, lease: Lease, detail: str) -> None:
        """The worker's `observe`."""
        now = self._monotonic()
        with self._lock:
            match what:
                case "claimed":
                    kind, number, late = detail.rsplit(" ", 2)
                    self._remember(lease, _Held(kind, self._lengths[kind], now, float(late)))
                    self._claimed.labels(kind).inc()
                    self._claim_lag.labels(kind).observe(max(0.0, float(late)))
                    if int(number) > 1:
                        self._retries.labels(kind).inc()
                case "reclaimed":
                    self._reclaims.labels(*detail.rsplit(" ", 1)).inc()
                case _ if held := self._active.get(lease) or self._others.get(lease):
                    self._step(what, lease, held, detail, now)

    def _step(self, what: str, lease: Lease, held: _Held, detail: str, now: float) -> None:
        match what:
            case "started":
                held.started = now
                self._active[lease] = self._others.pop(lease)
                self._running.labels(held.kind).inc()
            case "renewed":
                self._left(held, now)
                held.granted = now
            case "finished":
                self._left(held, now)
                self._remember(lease, self._active.pop(lease))
                self._running.labels(held.kind).dec()
                self._runs.labels(held.kind, detail).observe(now - held.started)
            case "lease-lost":
                self._left(held, now)
                self._lost.labels(held.kind, detail).inc()
            case "settled":
                self._settled.labels(held.kind, detail).inc()
                if detail == "completed":
                    self._completion_lag.labels(held.kind).observe(max(0.0, now - held.due))
            case "refused":
                self._refused.labels(held.kind, detail).inc()

    def _left(self, held: _Held, now: float) -> None:
        left = 1 - (now - held.granted) / held.length
        self._headroom.labels(held.kind).observe(min(1.0, max(0.0, left)))

    def _remember(self, lease: Lease, held: _Held) -> None:
        self._others[lease] = held
        if len(self._others) > REMEMBERED:
            del self._others[next(iter(self._others))]


def expose(metrics: WorkerMetrics, port: int) -> None:
    """Serve them at `/metrics` on the loopback interface, without a token, from a thread of their
    own. Raises OSError if the port is taken."""
    start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
