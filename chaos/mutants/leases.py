"""Planted bugs in how leases are renewed and taken back."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from chaos.mutants.mutant import Edit, Mutant, Patch, Shown
from scheduler.lease import Attempt
from scheduler.watchdog import Watchdog


def _unless_late(lose: Callable[..., None]) -> Callable[..., None]:
    def patched(watchdog: Watchdog, attempt: Attempt, how: str) -> None:
        if how != "not renewed in time":
            lose(watchdog, attempt, how)

    return patched


def _and_its_keeper(stop: Callable[..., None]) -> Callable[..., None]:
    def patched(worker: Any) -> None:
        stop(worker)
        worker._keeper.stop()

    return patched


_HANDLERS = Lock()


def _one_at_a_time(does: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*arguments: Any) -> Any:
        with _HANDLERS:
            return does(*arguments)

    return patched


ALL = (
    Mutant(
        name="reclaim-ignores-expiry",
        row=36,
        invariant="no-overlap",
        stands_for="recovery resets rows that live workers hold",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(Edit("reclaim", " and lease_expires_at < scheduler.now()", ""),),
    ),
    Mutant(
        name="never-renews",
        row=6,
        invariant="explained-duplicate",
        stands_for="a lease is never renewed, so tasks longer than it run twice",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(Edit("renew", "    order by task.id\n", "    where false\n    order by task.id\n"),),
    ),
    Mutant(
        name="renews-by-id",
        row=5,
        invariant="fenced",
        stands_for="a zombie, who never asks how late it is, renews by id whatever lease there is",
        shown_by=Shown("pause-past-lease", 0.4),
        edits=(
            Edit(
                "renew",
                "task.id = held.id and task.lease_token = held.token"
                " and task.lease_owner = held.owner",
                "task.id = held.id and task.status = 'running'",
            ),
            Edit(
                "renew",
                "select task.id, held.lease\n",
                "select task.id, held.token, held.owner, held.lease\n",
            ),
            Edit(
                "renew",
                "returning task.id, task.lease_token, task.lease_owner,",
                "returning task.id, mine.token, mine.owner,",
            ),
        ),
        patches=(Patch("scheduler.watchdog:Watchdog.lose", _unless_late),),
    ),
    Mutant(
        name="stops-renewing-at-shutdown",
        row=8,
        invariant="explained-duplicate",
        stands_for="a worker that was asked to stop no longer renews what it still runs",
        shown_by=Shown("slow-task-renewal", 0.5),
        patches=(Patch("scheduler.worker:Worker.stop", _and_its_keeper),),
    ),
    Mutant(
        name="stuck-judged-by-age",
        row=10,
        invariant="no-overlap",
        stands_for="a task counts as stuck by its age, not by its lease: long ones run twice",
        shown_by=Shown("slow-task-renewal", 0.3),
        edits=(
            Edit(
                "reclaim",
                "lease_expires_at < scheduler.now()",
                "claimed_at < scheduler.now() - interval '1 second'",
            ),
        ),
    ),
    Mutant(
        name="never-reclaims",
        row=12,
        invariant="reclaimed-in-time",
        stands_for="what a killed worker held stays claimed for ever",
        shown_by=Shown("kill-mid-run", 0.25),
        edits=(
            Edit(
                "reclaim",
                "lease_expires_at < scheduler.now()",
                "lease_expires_at < scheduler.now() and false",
            ),
        ),
    ),
    Mutant(
        name="last-attempt-never-over",
        row=15,
        invariant="attempts-bounded",
        stands_for="killed on its last attempt a task is neither retried nor dead",
        shown_by=Shown("poison-pill", 0.3),
        edits=(
            Edit(
                "reclaim",
                "lease_expires_at < scheduler.now()",
                "lease_expires_at < scheduler.now() and attempts < max_attempts",
            ),
        ),
    ),
    Mutant(
        name="one-row-aborts-the-batch",
        row=16,
        invariant="progress",
        stands_for="one row that a constraint refuses aborts the whole reclaim, every time",
        shown_by=Shown("poison-pill", 0.3),
        edits=(
            Edit(
                "reclaim",
                "set status = case when task.attempts >= task.max_attempts"
                " then 'dead' else 'pending' end,",
                "set status = 'pending',",
            ),
        ),
    ),
    Mutant(
        name="rescued-for-free",
        row=20,
        invariant="attempts-bounded",
        stands_for="each rescue raises the cap, so that a poison task kills workers for ever",
        shown_by=Shown("poison-pill", 0.3),
        edits=(
            Edit(
                "reclaim",
                "        last_error = expired.error,\n",
                "        last_error = expired.error, max_attempts = task.max_attempts + 1,\n",
            ),
        ),
    ),
    Mutant(
        name="ends-with-the-server",
        row=9,
        invariant="no-overlap",
        stands_for="being alive is a lock of a session, which a restart of the server takes away",
        shown_by=Shown("database-restart", 0.6),
        edits=(
            Edit(
                "reclaim",
                "lease_expires_at < scheduler.now()",
                "(lease_expires_at < scheduler.now() or claimed_at < pg_postmaster_start_time())",
            ),
        ),
    ),
    Mutant(
        name="renews-between-handlers",
        row=7,
        invariant="explained-duplicate",
        stands_for="what runs the handlers also renews, and so not while one of them runs",
        shown_by=Shown("slow-task-renewal", 0.3),
        patches=(
            Patch("scheduler.slots:Slots._run", _one_at_a_time),
            Patch("scheduler.keeper:Keeper._renew", _one_at_a_time),
        ),
    ),
)
