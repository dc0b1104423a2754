"""Planted bugs: our scheduler with one thing changed, in its SQL or in its code.

Each stands for a bug that real queues had, and names the invariant that must catch it. A mutant is
applied inside the process that runs it, a worker or whoever migrates the database; the source tree
is never touched, and nothing is written that a process that is killed would leave behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from scheduler import statements
from scheduler.migrate import migrations


class Edit(NamedTuple):
    """In `sql/<file>.sql`, which is a statement or a migration, `old` becomes `new` everywhere."""

    file: str
    old: str
    new: str


class Patch(NamedTuple):
    """`target` is `module:name` or `module:Class.name`; `make` makes its replacement of it."""

    target: str
    make: Callable[[Any], Any]


class Shown(NamedTuple):
    """The scenario, in `scenarios`, that shows a planted bug, and at which share of its length."""

    scenario: str
    scale: float


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug. Most are one edit; where two things guard the same, both have to go.

    row: which kind of fault it stands for, as numbered in docs/how-queues-break.md, if any there.
    """

    name: str
    row: int | None
    invariant: str
    stands_for: str
    shown_by: Shown
    edits: tuple[Edit, ...] = ()
    patches: tuple[Patch, ...] = ()


class Change(Protocol):
    """What can be planted: a mutant, or a variant that is no bug."""

    @property
    def name(self) -> str:
        """Its name, for errors."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What it changes in SQL."""

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What it changes in code."""


class _Text(NamedTuple):
    """A file as far as `statement` needs one."""

    text: bytes

    def read_bytes(self) -> bytes:
        """What stands in it."""
        return self.text


class _Directory(NamedTuple):
    """The directory of statements as far as `statement` needs it; some files with other texts."""

    genuine: Path
    changed: Mapping[str, bytes]

    def __truediv__(self, name: str) -> Path | _Text:
        changed = self.changed.get(name)
        return self.genuine / name if changed is None else _Text(changed)


@contextmanager
def planted(change: Change | None) -> Iterator[None]:
    """While inside, this process's scheduler is the changed one, and migrates to its schema.

    Raises ValueError if a clause does not stand in its file: a mutant that changes nothing would
    be counted as a bug that nobody caught. So does AttributeError if a patch finds no target.
    """
    if change is None:
        yield
        return
    with ExitStack() as undo:
        _plant_texts(changed(change), undo)
        for patch in change.patches:
            _plant(patch, undo)
        yield


def _plant_texts(changed: Mapping[str, bytes], undo: ExitStack) -> None:
    genuine = statements.SQL
    migrate = sys.modules["scheduler.migrate"]  # the package gives this name to its function
    undo.callback(statements.statement.cache_clear)
    undo.callback(setattr, statements, "SQL", genuine)
    undo.callback(vars(migrate).update, migrations=migrations)
    statements.SQL = cast(Path, _Directory(genuine, changed))
    statements.statement.cache_clear()
    vars(migrate)["migrations"] = lambda: [
        one._replace(text=changed.get(f"migrations/{one.version:04}_{one.name}.sql", one.text))
        for one in migrations()
    ]


def _plant(patch: Patch, undo: ExitStack) -> None:
    module, _, path = patch.target.partition(":")
    *parents, name = path.split(".")
    place: Any = import_module(module)
    for parent in parents:
        place = getattr(place, parent)
    genuine = getattr(place, name)
    undo.callback(setattr, place, name, genuine)
    setattr(place, name, patch.make(genuine))


def changed(change: Change) -> dict[str, bytes]:
    """The new texts of the files that are changed, by name."""
    texts: dict[str, str] = {}
    for file, old, new in change.edits:
        name = f"{file}.sql"
        text = texts.get(name) or (statements.SQL / name).read_text()
        if old not in text:
            raise ValueError(f"{change.name}: its clause does not stand in {name}")
        texts[name] = text.replace(old, new)
    return {name: text.encode() for name, text in texts.items()}
