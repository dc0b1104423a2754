"""The doctor's checks of the queue: leases, kinds, the run log."""

from __future__ import annotations

from datetime import timedelta

from psycopg import Connection

from scheduler.doctor.finding import Finding, some
from scheduler.kinds import Registry
from scheduler.statements import fetch

NEAR = 0.8  # of the lease
OVERDUE = timedelta(minutes=1)


def lease_headroom(connection: Connection, registry: Registry) -> Finding:
    """Run time of the last day's completed attempts against the lease, by kind.

    A lease is renewed while its handler runs, so a long run is no fault. But the server ends a
    transaction that idles for a whole lease: a transactional handler that computes or calls others
    for nearly that long between two statements is near its end.
    """
    kinds = {kind.name: kind for kind in registry}
    shown, near = [], []
    for name, count, seconds in fetch(connection, "doctor/run_times", {"kinds": list(kinds)}):
        share = seconds / kinds[name].lease.total_seconds()
        text = f"{name} {share:.2f} ({count} runs)"
        shown.append(text)
        if share > NEAR and kinds[name].style == "transactional":
            near.append(text)
    if near:
        return Finding(
            "warn",
            f"p99 of run time / lease of transactional kinds: {some(near)}",
            "give them a longer lease, or move what takes long out of the transaction",
        )
    return Finding("ok", f"p99 of run time / lease: {some(shown) or 'nothing ran in a day'}")


def unknown_kinds(connection: Connection, registry: Registry) -> Finding:
    """Tasks of a kind that no worker has wait for ever."""
    kinds = [kind.name for kind in registry]
    rows = fetch(connection, "doctor/unknown_kinds", {"kinds": kinds})
    if not rows:
        return Finding("ok", "all that waits is of known kinds")
    return Finding(
        "warn",
        some([f"{kind!r} ({count} tasks)" for kind, count in rows]),
        "let another application's workers run them, register the kinds, or cancel the tasks",
    )


def expired_leases(connection: Connection) -> Finding:
    """Any worker that lives takes expired leases back within seconds."""
    [(expired, sessions)] = fetch(connection, "doctor/expired_leases", {"overdue": OVERDUE})
    shown = f"{expired} expired over {OVERDUE} ago, {sessions} worker sessions"
    if not expired:
        return Finding("ok", shown)
    advice = "see why the workers do not reclaim: their logs" if sessions else "start a worker"
    return Finding("fail", shown, advice)


def run_log_partitions(connection: Connection) -> Finding:
    """What no monthly partition took cannot be pruned with its month."""
    [(count, first)] = fetch(connection, "doctor/run_log_rest", {})
    if not count:
        return Finding("ok", "every row is in its month's")
    return Finding(
        "warn",
        f"{count} rows in run_log_rest, the first of {first:%Y-%m-%d}",
        "run `scheduler migrate` each few months or keep a worker running; these rows stay there",
    )
