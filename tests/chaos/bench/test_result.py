"""The document: what is written can be read, and what is no result is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.bench.result import ResultError, headline, limit_of, load, save, spreads, waits
from tests.chaos.bench.made_up import LIMIT, ONE_COMMIT, OURS, result


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = result({OURS: [100, 120, 110], LIMIT: [200, 190, 210]})
    save(written, tmp_path / "result.json")
    assert load(tmp_path / "result.json") == written


def test_repeats_are_summed_up_by_cell() -> None:
    one = result({OURS: [100, 120, 110], LIMIT: [200, 190, 210]})
    assert headline(one) == "tasks_per_s"
    assert spreads(one, "tasks_per_s")[OURS] == (110, 100, 120, 3)
    assert limit_of(OURS) == LIMIT
    assert limit_of(OURS, ONE_COMMIT.system) == ONE_COMMIT
    assert waits(one)[OURS] == {"IO:WALSync": 0.75, "CPU": 0.25}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "is no result"),
        ({"version": 99}, "has version 99"),
        ({"measurements": [{"key": {}}]}, "is incomplete"),
        ({"measurements": 7}, "is incomplete"),
        ({"extra": 1}, "is incomplete"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "result.json"
    save(result({OURS: [1]}), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ResultError, match=said):
        load(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="cannot be read"):
        load(tmp_path / "none.json")
