"""Planted bugs in how a worker as a whole lives: what it hears, and how it shuts down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

from chaos.mutants.mutant import Mutant, Patch, Shown


def _once(session: Callable[..., None]) -> Callable[..., None]:
    def patched(keeper: Any) -> None:
        session(keeper)
        keeper._queues = []

    return patched


def _forgetting(drain: Callable[..., None]) -> Callable[..., None]:
    def patched(slots: Any) -> None:
        with suppress(Empty):
            while True:
                attempt = slots._ready.get_nowait()
                if attempt is not None:
                    slots._watchdog.drop(attempt.lease)
        drain(slots)

    return patched


ALL = (
    Mutant(
        name="listens-once",
        row=18,
        invariant="progress",
        stands_for="LISTEN is not sent again on the session that follows a lost one",
        shown_by=Shown("long-poll", 0.5),
        patches=(Patch("scheduler.keeper:Keeper._session", _once),),
    ),
    Mutant(
        name="forgets-the-rest-at-shutdown",
        row=37,
        invariant="explained-duplicate",
        stands_for="a worker that shuts down forgets what it had claimed and not started",
        shown_by=Shown("slow-task-renewal", 0.5),
        patches=(Patch("scheduler.slots:Slots.drain", _forgetting),),
    ),
)
