"""Writes a run's report into its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaos.history.events import History
from chaos.invariants.verdict import Verdict
from chaos.report.facts import as_json
from chaos.report.junit import as_junit
from chaos.report.told import tell

HTML, JSON, JUNIT = "report.html", "report.json", "junit.xml"


def write(history: History, verdicts: Sequence[Verdict], directory: Path) -> Path:
    """Write `report.html`, and beside it `report.json` and `junit.xml`; return the page's path.

    Raises OSError if a file cannot be written.
    """
    from chaos.report.page import page  # a second that commands without a report save

    told = tell(history, verdicts)
    name = directory.resolve().name
    (directory / JSON).write_text(as_json(told), encoding="utf-8")
    (directory / JUNIT).write_text(as_junit(told), encoding="utf-8")
    path = directory / HTML
    path.write_text(page(told, name), encoding="utf-8")
    return path
