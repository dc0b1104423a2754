"""The server's metrics for Prometheus: the queue, as the database has it, and the requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import psycopg
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.events import event, one_line
from scheduler.service.kept import Kept
from scheduler.service.problems import PROBLEMS, SLUG
from scheduler.service.snapshot import COUNTED, KindCounts, Snapshot

log = logging.getLogger("scheduler.service")

ENQUEUE_PATHS = ("/api/v1/tasks", "/api/v1/tasks/batch")
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self, snapshots: Kept[Snapshot], kinds: list[str]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(QueueCollector(snapshots, kinds))
        self.requests = Histogram(
            "leaseproof_http_request_duration_seconds",
            "Time from a request's arrival to the end of its answer.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.enqueue_refusals = Counter(
            "leaseproof_enqueue_refusals",
            "Requests to enqueue that were refused, by the problem they were told.",
            ["reason"],
            registry=self.registry,
        )
        # From 0: the rate of a series that begins at its first event is none.
        for reason in PROBLEMS:
            self.enqueue_refusals.labels(reason)


class QueueCollector(Collector):
    """Reads the queue when it is scraped, from the snapshot that all share.

    When the database does not answer the queue's numbers are left out, since old ones would look
    like a queue that stands still, and `leaseproof_database_up` is 0. The application's own kinds
    have series even when they have no tasks: an alert cannot see a series that is not there.
    """

    def __init__(self, snapshots: Kept[Snapshot], kinds: list[str]) -> None:
        self._snapshots = snapshots
        self._kinds = kinds

    def describe(self) -> list[Metric]:
        """Nothing, so that registration does not ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The queue's numbers."""
        try:
            snapshot, age = self._snapshots.get()
        except psycopg.Error as error:
            event(log, logging.WARNING, "metrics-without-database", error=one_line(error))
            yield _up(False)
            return
        yield _up(True)
        yield GaugeMetricFamily(
            "leaseproof_snapshot_age_seconds",
            "How old this answer's numbers of the queue are.",
            value=age,
        )
        yield from _totals(snapshot)
        counts = snapshot.kinds
        absent = set(self._kinds) - {count.kind for count in counts}
        counts = counts + [_none(kind) for kind in sorted(absent)]
        tasks = GaugeMetricFamily(
            "leaseproof_tasks", "Live tasks by kind and status.", labels=["kind", "status"]
        )
        due = GaugeMetricFamily(
            "leaseproof_due_tasks", "Pending tasks whose time has come.", labels=["kind"]
        )
        estimated = GaugeMetricFamily(
            "leaseproof_counts_estimated",
            "1 if there are so many that how many are pending, due or dead is an estimate; else 0.",
            labels=["kind", "status"],
        )
        oldest = GaugeMetricFamily(
            "leaseproof_oldest_due_age_seconds",
            "How long the oldest due task has waited; 0 if none is due.",
            labels=["kind"],
        )
        expired = GaugeMetricFamily(
            "leaseproof_expired_leases",
            "Running tasks whose lease is over and that nobody has taken back yet.",
            labels=["kind"],
        )
        running = GaugeMetricFamily(
            "leaseproof_oldest_running_age_seconds",
            "How long ago the oldest attempt that is still held was claimed; 0 if none is.",
            labels=["kind"],
        )
        for count in counts:
            tasks.add_metric([count.kind, "pending"], count.pending)
            tasks.add_metric([count.kind, "running"], count.running)
            tasks.add_metric([count.kind, "dead"], count.dead)
            due.add_metric([count.kind], count.due)
            estimated.add_metric([count.kind, "pending"], count.pending_estimated)
            estimated.add_metric([count.kind, "due"], count.due_estimated)
            estimated.add_metric([count.kind, "dead"], count.dead_estimated)
            oldest.add_metric([count.kind], count.oldest_due_seconds or 0.0)
            expired.add_metric([count.kind], count.expired)
            running.add_metric([count.kind], count.oldest_running_seconds or 0.0)
        yield from (tasks, due, estimated, oldest, expired, running)


def _none(kind: str) -> KindCounts:
    return KindCounts(kind, 0, False, 0, False, 0, 0, 0, False, None, None)


class RequestMetrics:
    """Measures every request; the outermost layer, so that nothing escapes it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            # Only what the server itself knows may become a label: a client could make up
            # paths and methods without end, and each would be a series.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path_format", "none")
            self._metrics.requests.labels(method, route, str(status)).observe(
                time.perf_counter() - began
            )
            if method == "POST" and scope["path"] in ENQUEUE_PATHS and status >= 400:
                self._metrics.enqueue_refusals.labels(scope.get(SLUG, "internal-error")).inc()


def _totals(snapshot: Snapshot) -> Iterator[Metric]:
    """What is not counted by kind, or only for some kinds."""
    yield CounterMetricFamily(
        "leaseproof_enqueued_tasks",
        "Tasks put into the table by whatever client, planned ones too, since the database's"
        " statistics were reset; rolled back ones count.",
        value=snapshot.totals.enqueued,
    )
    yield CounterMetricFamily(
        "leaseproof_dead_letters",
        "Deaths of tasks since the database's statistics were reset.",
        value=snapshot.totals.deaths,
    )
    limits = GaugeMetricFamily(
        "leaseproof_running_limit_tasks",
        "How many tasks of a limited kind may run at once.",
        labels=["kind"],
    )
    for kind, limit in snapshot.limits.items():
        limits.add_metric([kind], limit)
    hooks = GaugeMetricFamily(
        "leaseproof_dead_letter_deliveries",
        f"Dead letters that a hook has yet to be told of, waiting or given up; of each {COUNTED} at"
        " most are counted.",
        labels=["hook", "state"],
    )
    for hook in snapshot.hooks:
        hooks.add_metric([hook.hook, "waiting"], hook.waiting)
        hooks.add_metric([hook.hook, "given-up"], hook.given_up)
    yield from (limits, hooks)


def _up(up: bool) -> Metric:
    return GaugeMetricFamily(
        "leaseproof_database_up", "Whether the database answered this scrape.", value=float(up)
    )
