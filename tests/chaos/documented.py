"""What docs/how-queues-break.md says, for tests to compare with."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def failure_modes() -> dict[int, list[str]]:
    """The table of docs/how-queues-break.md: the cells of each row by its number."""
    rows = {}
    for line in (ROOT / "docs" / "how-queues-break.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdecimal():
            rows[int(cells[0])] = cells
    return rows
