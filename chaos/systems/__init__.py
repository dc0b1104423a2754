"""Systems under test, by name: ours, and ours with a bug planted in it."""

from chaos.systems.leaseproof import Leaseproof
from chaos.systems.mutants import MUTANTS
from chaos.systems.system import Order, System, WorkerSettings

__all__ = ["Order", "System", "UnknownSystemError", "WorkerSettings", "system"]


class UnknownSystemError(Exception):
    """No system has this name; the message lists those there are."""


def system(name: str) -> System:
    """The system of this name: `leaseproof`, or `leaseproof:<mutant>`."""
    if name == "leaseproof":
        return Leaseproof()
    base, _, mutant = name.partition(":")
    if base == "leaseproof" and mutant in MUTANTS:
        return Leaseproof(MUTANTS[mutant])
    known = ", ".join(["leaseproof", *(f"leaseproof:{known}" for known in MUTANTS)])
    raise UnknownSystemError(f"no system {name!r} is known; known systems: {known}")
