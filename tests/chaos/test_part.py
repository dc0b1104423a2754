"""One part of a long list: `--part`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import typer
from typer.testing import CliRunner

from chaos.cli import app
from chaos.hunt.found import Hunted
from chaos.mutants import MUTANTS, Mutant
from chaos.part import Part, read


def test_the_parts_make_the_whole_and_nothing_is_in_two_of_them() -> None:
    everything = list(range(23))
    parts = [read(f"{number}/10").select(everything) for number in range(1, 11)]
    assert sorted(one for part in parts for one in part) == everything
    assert {len(part) for part in parts} == {2, 3}


@pytest.mark.parametrize("text", ["", "3", "0/10", "11/10", "3/0", "-1/2", "1/2/3", "a/b", "1/2 "])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 3/10"):
        read(text)


@pytest.mark.parametrize("command", [["hunt"], ["hunt", "--generated"], ["variants"]])
def test_a_part_with_nothing_in_it_is_a_mistake_and_no_success(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--part", "9999/9999"])
    assert done.exit_code == 2, done.output
    assert "is empty: take fewer parts" in " ".join(done.output.split())


def test_a_hunt_of_a_part_hunts_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def explore(wanted: Sequence[Mutant], *_: object, **__: object) -> list[Hunted]:
        asked.extend(mutant.name for mutant in wanted)
        raise KeyboardInterrupt

    monkeypatch.setattr("chaos.hunt.cli._explore", explore)
    for number in (1, 2):
        arguments = ["hunt", "--killers", "explorer", "--part", f"{number}/2"]
        assert CliRunner().invoke(app, arguments).exit_code == 130
    assert sorted(asked) == sorted(MUTANTS)
    assert asked[: len(asked) // 2] != list(MUTANTS)[: len(asked) // 2]


def test_a_part_is_told_as_it_is_written() -> None:
    assert read("3/10") == Part(3, 10)
