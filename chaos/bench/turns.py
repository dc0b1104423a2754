"""Every cell once, then every cell again: what else the machine does meanwhile falls upon all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chaos.bench.result import Key, Measurement
from chaos.bench.tell import Tell


def in_turn(
    cells: Sequence[Key], repeats: int, tell: Tell, measure: Callable[[Key], Mapping[str, float]]
) -> list[Measurement]:
    """Measure all of them so often; `measure` returns the figures of one."""
    done: list[Measurement] = []
    for repeat in range(1, repeats + 1):
        for key in cells:
            tell(len(done), len(cells) * repeats, key, done[-1] if done else None)
            done.append(Measurement(key, repeat, measure(key), {}))
    return done
