"""The comparison of two results, on made-up ones."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chaos.bench.compare import Compared, cautions, compare
from chaos.bench.result import Key, Result, save
from chaos.cli import app
from tests.chaos.bench.made_up import LIMIT, MACHINE, OURS, result

SLOW = [100.0, 101.0, 99.0, 102.0, 98.0]
FAST = [150.0, 149.0, 151.0, 148.0, 152.0]


def speed(a: Result, b: Result, key: Key | None) -> Compared:
    (found,) = (one for one in compare(a, b) if (one.figure, one.key) == ("tasks_per_s", key))
    return found


def test_a_real_difference_is_told_with_its_ratio() -> None:
    found = speed(result({OURS: SLOW}), result({OURS: FAST}), OURS)
    assert found.verdict == "B is better"
    assert found.ratio is not None
    assert 1.45 < found.ratio.low <= found.ratio.estimate <= found.ratio.high < 1.55
    assert speed(result({OURS: FAST}), result({OURS: SLOW}), OURS).verdict == "B is worse"


def test_less_latency_is_better() -> None:
    compared = compare(result({OURS: SLOW}), result({OURS: FAST}))
    (found,) = (one for one in compared if one.figure == "claim_p50")
    assert found.verdict == "B is better"


def test_noise_is_no_difference() -> None:
    found = speed(result({OURS: SLOW}), result({OURS: [99, 100.5, 101.5, 97, 103]}), OURS)
    assert found.verdict == "no difference shown"


def test_three_repeats_are_too_few_to_tell_of_one_cell() -> None:
    a, b = result({OURS: SLOW[:3]}), result({OURS: FAST[:3]})
    assert speed(a, b, OURS).verdict == "too few repeats to tell"
    assert any("take at least 4" in caution for caution in cautions(a, b, compare(a, b)))


def test_three_repeats_of_two_cells_together_can_tell() -> None:
    a = result({OURS: SLOW[:3], LIMIT: SLOW[:3]})
    b = result({OURS: FAST[:3], LIMIT: FAST[:3]})
    assert speed(a, b, None).verdict == "B is better"
    assert speed(a, b, LIMIT).verdict == "too few repeats to tell"


def test_only_cells_that_both_have_are_compared() -> None:
    a, b = result({OURS: SLOW}), result({LIMIT: SLOW})
    assert compare(a, b) == []
    assert "no cell in common" in " ".join(cautions(a, b, []))


def test_another_machine_or_disk_is_said() -> None:
    a = result({OURS: SLOW})
    b = result({OURS: SLOW}, {**MACHINE, "processor": "brain", "commit_p50_ms_after": 5.0})
    said = " ".join(cautions(a, b, compare(a, b)))
    assert "abacus and brain" in said
    assert "the disk was not the same" in said


def test_the_command_prints_all_of_it(tmp_path: Path) -> None:
    save(result({OURS: SLOW}), tmp_path / "a.json")
    save(result({OURS: FAST}), tmp_path / "b.json")
    ran = CliRunner().invoke(
        app, ["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    )
    assert ran.exit_code == 0, ran.output
    assert "B is better" in ran.output
    assert "1.50" in ran.output
    assert "by chance alone" in ran.output.replace("\n", " ")


def test_the_command_refuses_what_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    ran = CliRunner().invoke(app, ["bench", "compare", *[str(tmp_path / "a.json")] * 2])
    assert ran.exit_code == 2
    assert "no result of `chaos bench`" in ran.output.replace("\n", " ")
