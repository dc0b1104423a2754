"""A run as it is saved: the files of its directory, and the history in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chaos.history.events import History
from chaos.history.store import load

HISTORY, SCENARIO, VERDICTS = "history.jsonl.gz", "scenario.yaml", "verdicts.json"

# For commands that need nothing of a run but its history.
RunOrFile = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's directory, or a history file.")
]


def history_of(run: Path) -> History:
    """The history of a run's directory, or of that file. Raises what `load` raises."""
    return load(run / HISTORY if run.is_dir() else run)
