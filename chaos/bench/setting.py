"""How our workers are set up for a drain: `10`, `1+99`, or `default`."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

from scheduler import Worker, pace

DEFAULT = "default"
_FORM = re.compile(r"([1-9]\d{0,4})(?:\+(\d{1,5}))?")
_PARAMETERS = inspect.signature(Worker).parameters


class Setting(NamedTuple):
    """The slots and prefetch of a worker; their sum is the most that one claim takes."""

    name: str
    slots: int
    prefetch: int

    @property
    def batch(self) -> int:
        """At most how many tasks a claim takes."""
        return self.slots + self.prefetch


def parse_setting(text: str) -> Setting:
    """`SLOTS`, `SLOTS+PREFETCH`, or `default`, with the most that such a worker's pace comes to.

    Raises ValueError for anything else.
    """
    if text == DEFAULT:
        return Setting(DEFAULT, _PARAMETERS["slots"].default, pace.MOST)
    found = _FORM.fullmatch(text)
    if found is None or max(int(found[1]), int(found[2] or 0)) > 10_000:
        raise ValueError(
            f"{text!r} is no setting: write SLOTS, SLOTS+PREFETCH (each at most 10000) or {DEFAULT}"
        )
    return Setting(text, int(found[1]), int(found[2] or 0))
