"""Directories for what a command writes, each named for its moment."""

from __future__ import annotations

import time
from pathlib import Path


def new_directory(reports: Path, name: str) -> Path:
    """An empty directory; nobody else has it, though they may begin at once. Raises OSError."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        directory = reports / f"{name}-{stamp}{suffix}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise OSError(f"{reports} has a hundred {name} of this second already")
