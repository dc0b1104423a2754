"""Where attempts are drawn: a lane a worker, as many rows as it ran attempts at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chaos.report.attempts import Attempt

MOST_ROWS = 16  # of a lane; what goes beyond is drawn over other rows
_PROCESS = re.compile(r"(.+)\.\d+")
_NUMBERS = re.compile(r"(\d+)")


class Lanes(NamedTuple):
    """names: from the top. tops: where each lane begins; the last entry is where all end.

    rows: for each attempt its row, counted from the top over all lanes. crowded: whether some lane
    had more attempts at once than rows.
    """

    names: tuple[str, ...]
    tops: tuple[int, ...]
    rows: tuple[int, ...]
    crowded: bool

    def stretch(self, worker: str) -> tuple[int, int] | None:
        """From which row to which the lane of this worker goes; None if it has none."""
        try:
            index = self.names.index(seat(worker))
        except ValueError:
            return None
        return self.tops[index], self.tops[index + 1]


def seat(worker: str) -> str:
    """The lane of a process: `w3.2`, the second process in the place of `w3`, is drawn with it."""
    match = _PROCESS.fullmatch(worker)
    return match[1] if match else worker


def lanes(attempts: Sequence[Attempt], struck: Iterable[str] = ()) -> Lanes:
    """Give each attempt the first row of its lane that is free; `struck` workers get a lane too."""
    names = sorted({seat(one.worker) for one in attempts} | set(map(seat, struck)), key=_natural)
    free: dict[str, list[int]] = {name: [] for name in names}
    rows = [0] * len(attempts)
    crowded = False
    for index in sorted(range(len(attempts)), key=lambda index: attempts[index].claimed):
        one = attempts[index]
        ends = free[seat(one.worker)]
        row = next((row for row, end in enumerate(ends) if end <= one.claimed), len(ends))
        if row == MOST_ROWS:
            row = min(range(MOST_ROWS), key=ends.__getitem__)
            crowded = True
        if row == len(ends):
            ends.append(0)
        ends[row] = max(ends[row], one.end)
        rows[index] = row
    tops = [0]
    for name in names:
        tops.append(tops[-1] + max(1, len(free[name])))
    begins = dict(zip(names, tops, strict=False))
    placed = tuple(begins[seat(one.worker)] + rows[at] for at, one in enumerate(attempts))
    return Lanes(tuple(names), tuple(tops), placed, crowded)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """`w2` before `w10`."""
    parts = _NUMBERS.split(name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
