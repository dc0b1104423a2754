"""Systems under test, by name: ours, ours with a change planted in it, and anybody else's."""

import importlib
import sys
from pathlib import Path

from chaos.mutants import MUTANTS, Change
from chaos.systems.leaseproof import Leaseproof
from chaos.systems.queue import Queue
from chaos.systems.system import (
    FEATURES,
    Feature,
    Missed,
    NotOfferedError,
    Operation,
    Order,
    RefusedError,
    System,
    Timetable,
    Until,
    WorkerSettings,
)
from chaos.variants import VARIANTS

__all__ = [
    "FEATURES",
    "Feature",
    "Missed",
    "NotOfferedError",
    "Operation",
    "Order",
    "Queue",
    "RefusedError",
    "System",
    "Timetable",
    "UnknownSystemError",
    "Until",
    "WorkerSettings",
    "system",
]


class UnknownSystemError(Exception):
    """No system has this name; the message lists those there are."""


def system(name: str) -> System:
    """The system of this name: `leaseproof`, `leaseproof:<mutant or variant>`, or
    `<module>:<attribute>`.

    A module is imported, in the harness and in each worker process. Raises UnknownSystemError, and
    whatever the module raises.
    """
    if name == "leaseproof":
        return Leaseproof()
    base, _, attribute = name.partition(":")
    changes: dict[str, Change] = {**MUTANTS, **VARIANTS}
    if base == "leaseproof" and attribute in changes:
        return Leaseproof(changes[attribute])
    if base == "leaseproof" or not attribute:
        known = ", ".join(["leaseproof", *(f"leaseproof:{known}" for known in changes)])
        raise UnknownSystemError(
            f"no system {name!r} is known; known systems: {known}, and your own as MODULE:ATTRIBUTE"
        )
    return _imported(base, attribute)


def _imported(module: str, attribute: str) -> System:
    here = str(Path.cwd())
    if here not in sys.path:  # as for `scheduler worker MODULE:ATTRIBUTE`
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the system's own module wants
        raise UnknownSystemError(
            f"no system {module}:{attribute}: there is no module {error.name!r} that Python finds"
        ) from error
    if isinstance(found, type) or not isinstance(found, System):
        raise UnknownSystemError(
            f"{module}:{attribute} should be a system, such as a chaos.systems.Queue, and is"
            f" a {type(found).__name__}"
        )
    return found
