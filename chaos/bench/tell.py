"""How a bench says where it is."""

from __future__ import annotations

from collections.abc import Callable

from chaos.bench.result import Key, Measurement

# Told before each measurement: how many are done, of how many, which is next, and the last one.
Tell = Callable[[int, int, Key, Measurement | None], None]
