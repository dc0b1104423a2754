"""Writes down how attempts ended, many in one statement."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty

import psycopg
from psycopg import Connection

from scheduler import finish
from scheduler.events import event
from scheduler.lease import Attempt, Lease, second_look
from scheduler.outcome import Outcome
from scheduler.watchdog import Observe, Watchdog

log = logging.getLogger("scheduler")

End = tuple[Attempt, Outcome]
Complete = Callable[[Connection, Sequence[Lease]], set[int]]  # as `finish.complete`


def settle(
    connection: Connection,
    ended: Sequence[End],
    watchdog: Watchdog,
    observe: Observe,
    complete: Complete = finish.complete,
) -> list[End]:
    """Write down how attempts ended; returns those that must be written later, because somebody
    has their row locked. All others are the worker's no more, whether they counted or not.

    complete: how completions are written, at once; what is written again by itself, because the
    database refused one of them, goes by `finish.complete`.

    If the database fails in the middle nothing is forgotten: what was written is found to be so
    when it is written again.
    """
    waiting = []
    for attempt, outcome in ended:
        if outcome.what in ("committed", "lost"):
            if outcome.what == "committed":
                _tell_end(attempt, outcome, "completed", observe)
            watchdog.drop(attempt.lease)
        else:
            waiting.append((attempt, outcome))
    if not waiting:
        return []
    written = write_batches(connection, waiting, complete)
    # Two attempts of one task may both end here, a zombie and its successor, and `written` tells
    # them not apart.
    ends = Counter(attempt.task for attempt, _ in waiting)
    missing = [
        attempt.lease
        for attempt, _ in waiting
        if attempt.task not in written or ends[attempt.task] > 1
    ]
    looks = second_look(connection, missing) if missing else {}
    unwritten = []
    for attempt, outcome in waiting:
        look = looks.get(attempt.lease)
        if look is not None and look.held:
            unwritten.append((attempt, outcome))  # merely locked, by our own renewal perhaps
            continue
        # `completed` under our own fence is ours: a COMMIT whose reply was lost.
        if look is None or look.outcome in (outcome.what, "completed"):
            _tell_end(attempt, outcome, written.get(attempt.task, "settled"), observe)
        else:
            observe("refused", attempt.lease, outcome.what)
            watchdog.lose(attempt, look.outcome or "the task is gone")
        watchdog.drop(attempt.lease)
    return unwritten


def log_losses(watchdog: Watchdog) -> None:
    """Log the leases that were lost since the last call."""
    with suppress(Empty):
        while True:
            attempt, how = watchdog.losses.get_nowait()
            event(
                log,
                logging.WARNING,
                "lease-lost",
                task=attempt.task,
                kind=attempt.kind,
                token=attempt.token,
                owner=attempt.owner,
                how=how,
            )


def write_batches(
    connection: Connection, waiting: Sequence[End], complete: Complete = finish.complete
) -> dict[int, str]:
    """Write outcomes; returns what became of each task written.

    An outcome that the database refuses must not keep the others from being written, again and
    again: then each is written by itself, and the refused one becomes a failure.
    """
    try:
        return _write_together(connection, waiting, complete)
    except (psycopg.DataError, psycopg.IntegrityError):
        became: dict[int, str] = {}
    for attempt, outcome in waiting:
        try:
            became |= _write_together(connection, [(attempt, outcome)], finish.complete)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            refused = f"the database refused to write that it {outcome.what}: {error}"
            became |= finish.fail(connection, [attempt.lease], [refused])
    return became


def _write_together(
    connection: Connection, waiting: Sequence[End], complete: Complete
) -> dict[int, str]:
    """Write each kind of outcome in one statement; returns what became of each task written."""
    ended: defaultdict[str, tuple[list[Lease], list[Outcome]]] = defaultdict(lambda: ([], []))
    for attempt, outcome in waiting:
        leases, outcomes = ended[outcome.what]
        leases.append(attempt.lease)
        outcomes.append(outcome)
    became: dict[int, str] = {}
    for what, (leases, outcomes) in ended.items():
        match what:
            case "completed":
                became |= dict.fromkeys(complete(connection, leases), "completed")
            case "failed":
                became |= finish.fail(connection, leases, [one.error for one in outcomes])
            case "snoozed":
                delays = [one.delay for one in outcomes]
                became |= dict.fromkeys(finish.snooze(connection, leases, delays), "pending")
            case "released":
                became |= dict.fromkeys(finish.release(connection, leases), "pending")
    return became


def _tell_end(attempt: Attempt, outcome: Outcome, became: str, observe: Observe) -> None:
    """One line an attempt; failures are for people to see, the others for debugging.

    `became` is the task's new status, `settled` if that was written by a statement whose reply was
    lost: whether such a failure was the last is not asked again.
    """
    what = "completed" if outcome.what == "committed" else outcome.what
    observe("settled", attempt.lease, "dead" if became == "dead" else what)
    level = logging.DEBUG
    if what == "failed":
        level = logging.ERROR if became == "dead" else logging.WARNING
    if log.isEnabledFor(level):
        event(
            log,
            level,
            "ended",
            task=attempt.task,
            kind=attempt.kind,
            attempt=f"{attempt.number}/{attempt.max_attempts}",
            token=attempt.token,
            owner=attempt.owner,
            outcome=what,
            now=became,
            error=finish.storable(outcome.error).partition("\n")[0],
        )
