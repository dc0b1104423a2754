"""Faults that a scenario can inject, by their `kind` in its file."""

from typing import Annotated

from pydantic import Field

from chaos.faults.fault import Arena, Fault, Injection
from chaos.faults.network import BlackHole
from chaos.faults.worker import Kill, Pause

AnyFault = Annotated[Kill | Pause | BlackHole, Field(discriminator="kind")]

__all__ = ["AnyFault", "Arena", "Fault", "Injection"]
