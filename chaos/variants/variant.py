"""Correct variants: our scheduler built or run in another way that is as right.

A mutant must turn the harness red, and a variant must not: whoever judges by the letter of our
statements instead of by what happened cries at these. A variant is planted like a mutant, inside
the process that runs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any

from chaos.mutants import Edit, Patch

log = logging.getLogger("chaos.variants")

_SAYS = "a variant's change ran: "
_MARKS: set[str] = set()  # which changes of code this process has run
_SETTINGS = "scheduler.session:worker_settings"

USUAL = ("kill-mid-run", "graceful-shutdown", "operators", "retry-storm", "pause-past-lease")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing it that is right, too.

    differs, right: what is different, and why it is no bug. edits, code: what changes in SQL and in
    code. leaves: marks that this code leaves besides, when it has come to what it is there for.
    settings: of the database that the explorer uses, and of workers' sessions, over their own.
    workers: fields of a scenario's workers. faults: injected besides a scenario's own. burners: how
    many processes do nothing but take the processor from the run. scenarios: which are run in
    short, in turn. explored: whether programs of the explorer run what it changes.
    """

    name: str
    differs: str
    right: str
    edits: tuple[Edit, ...] = ()
    code: tuple[Patch, ...] = ()
    leaves: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    workers: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[Mapping[str, Any], ...] = ()
    burners: int = 0
    scenarios: tuple[str, ...] = USUAL
    explored: bool = True

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What is planted in code: each patch leaves a mark when it is called."""
        settings = (Patch(_SETTINGS, partial(_with, self.settings)),) if self.settings else ()
        return tuple(
            Patch(target, partial(_marking, target, make))
            for target, make in (*self.code, *settings)
        )

    @property
    def marks(self) -> frozenset[str]:
        """The marks that workers which ran all of it have left."""
        return frozenset([*(patch.target for patch in self.patches), *self.leaves])


def mark(what: str) -> None:
    """Remember that a change ran; a worker's log says so at the first time."""
    if what not in _MARKS:
        _MARKS.add(what)
        log.info("%s%s", _SAYS, what)


def forget_marks() -> None:
    """Begin with another variant."""
    _MARKS.clear()


def marks_here() -> frozenset[str]:
    """The marks that this process left."""
    return frozenset(_MARKS)


def marks_in(run: Path) -> frozenset[str]:
    """The marks that the workers of a run have left in their logs."""
    lines = (
        line
        for file in (run / "workers").glob("*.log")
        for line in file.read_text(errors="replace").splitlines()
    )
    return frozenset(line.partition(_SAYS)[2] for line in lines if _SAYS in line)


def _marking(target: str, make: Callable[[Any], Any], genuine: Any) -> Any:
    replacement = make(genuine)

    @wraps(genuine, updated=())  # what is replaced may be a class
    def marked(*arguments: Any, **named: Any) -> Any:
        mark(target)
        return replacement(*arguments, **named)

    return marked


def _with(
    settings: Mapping[str, str], genuine: Callable[[timedelta], dict[str, str]]
) -> Callable[[timedelta], dict[str, str]]:
    return lambda lease: {**genuine(lease), **settings}
