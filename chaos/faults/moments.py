"""Catches workers in the middle of a write; their side is `chaos/systems/moments.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from chaos.systems.moments import DIRECTORY, HELD, HERE, MOMENTS, Moment


def catch(run: Path, moment: Moment, names: Iterable[str], draw: Random) -> str | None:
    """One of these workers that is there now, and stays until it is let go; None if there is none.

    Then all of them are asked to be there, so that one may be when this is called again. `run` is
    the run's directory.
    """
    directory = run / DIRECTORY
    directory.mkdir(exist_ok=True)
    asked = {name: directory / f"{name}.{moment}" for name in names}
    there = [name for name, file in asked.items() if _in(file, HERE).exists()]
    draw.shuffle(there)
    for name in there:
        try:
            _in(asked[name], HERE).rename(_in(asked[name], HELD))
        except FileNotFoundError:
            continue  # it could wait no longer
        # Nobody else need stay, nor whoever is dead by now.
        for state in ("", HERE):
            for file in directory.glob(f"*.{moment}{state}"):
                file.unlink(missing_ok=True)
        return name
    for name, file in asked.items():
        if name not in there:
            file.touch()
    return None


def let_go(run: Path, name: str) -> None:
    """Let a worker go on, if it was caught."""
    for moment in MOMENTS:
        _in(run / DIRECTORY / f"{name}.{moment}", HELD).unlink(missing_ok=True)


def _in(file: Path, state: str) -> Path:
    return file.with_name(file.name + state)
