"""In which order cells are measured."""

from __future__ import annotations

from chaos.bench.result import OURS, Key, Measurement
from chaos.bench.turns import in_turn


def test_all_cells_are_measured_before_any_of_them_again() -> None:
    one, two = Key(OURS, "default", 1, 1), Key(OURS, "default", 1, 2)
    told: list[tuple[int, int, Key, Measurement | None]] = []
    done = in_turn([one, two], 2, lambda *news: told.append(news), lambda key: {"at": key.at})
    assert done == [
        Measurement(key, repeat, {"at": key.at}, {}) for repeat in (1, 2) for key in (one, two)
    ]
    assert told == [
        (0, 4, one, None),
        (1, 4, two, done[0]),
        (2, 4, one, done[1]),
        (3, 4, two, done[2]),
    ]
