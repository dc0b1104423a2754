"""One part of a long list: a CI runs another one each time, and in the end all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from chaos.terminal import USAGE, end

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """The `number`th of so many parts that are about as long, and as mixed, as one another."""

    number: int
    of: int

    def select(self, all_: Sequence[T]) -> list[T]:
        """What of the whole belongs to it; ends the command if nothing does."""
        found = list(all_[self.number - 1 :: self.of])
        if not found:
            end(f"part {self.number}/{self.of} of {len(all_)} is empty: take fewer parts", USAGE)
        return found


def read(text: str) -> Part:
    """A part as it is written, such as `3/10`. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise typer.BadParameter(f"{text!r} is no part: write 3/10 for the third of ten")
    return Part(int(found[1]), int(found[2]))


PartOption = Annotated[
    Part | None,
    typer.Option("--part", parser=read, metavar="K/N", help="Of all these the Kth of N parts."),
]
