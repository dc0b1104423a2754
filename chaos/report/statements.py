"""Which statement of the system under test stands behind a change that the log shows."""

from __future__ import annotations

from chaos.history.events import Row

# The files of scheduler/sql. Another system's statements are not known by name.
_OURS = {
    "claimed": "claim.sql",
    "renewed": "renew.sql",
    "completed": "complete.sql",
    "failed": "fail.sql",
    "released": "release.sql",
    "snoozed": "snooze.sql",
    "cancelled": "cancel.sql",
    "reclaimed": "reclaim.sql",
    "requeued": "requeue.sql",
    "discarded": "discard.sql",
}


def statement(system: str, what: str, *, transactional: bool = False) -> str:
    """The statement that makes this change in this system; empty if that is not known."""
    if system.partition(":")[0] != "leaseproof":
        return ""
    if what == "completed" and transactional:
        return "complete_in_transaction.sql"
    return _OURS.get(what, "")


def enqueueing(system: str, row: Row) -> str:
    """The statement that created this task; empty if that is not known."""
    if system.partition(":")[0] != "leaseproof":
        return ""
    if row.occurrence is not None:
        return "plan_occurrences.sql"
    return "enqueue.sql" if row.key is None else "enqueue_unique.sql"
