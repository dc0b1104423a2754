"""What a command writes has a directory of its own."""

from __future__ import annotations

from pathlib import Path

from chaos.directories import new_directory


def test_those_that_begin_at_once_have_a_directory_each(tmp_path: Path) -> None:
    made = [new_directory(tmp_path / "reports", "hunt") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(directory.is_dir() and directory.name.startswith("hunt-") for directory in made)
