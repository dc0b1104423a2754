"""Text from a history, made fit to be shown: no character that a page or XML could trip over.

Errors, kinds and names of workers are whatever somebody put there. Here they lose what no reader
should meet (control characters, half characters, marks that turn the direction of writing) and what
is too long. That keeps files well-formed; it is `escape` that keeps text from being markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

MOST = 300  # characters of an error or a sentence

# Control characters but for tab and newline; surrogates; what XML forbids; marks of direction.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff]"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(value: object, most: int = MOST) -> str:
    """The text of a value, cut after `most` characters, with U+FFFD for each unfit one."""
    text = str(value)
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", cut)


def when(micros: int) -> str:
    """The UTC time of day of microseconds since the epoch, to the millisecond: `12:00:05.200`."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%H:%M:%S.%f")[:-3]
    except OverflowError:
        return "a time that no calendar holds"


def lasting(micros: float) -> str:
    """A length of time in the unit that suits it: `35 ms`, `3.20 s`."""
    if abs(micros) < 1_000:
        return f"{micros:.0f} µs"
    if abs(micros) < 1_000_000:
        return f"{micros / 1e3:.3g} ms"
    return f"{micros / 1e6:.2f} s"


def quantile(ranked: Sequence[int], percent: int) -> int:
    """The value that so many percent of the sorted values do not pass."""
    return ranked[(len(ranked) - 1) * percent // 100]
