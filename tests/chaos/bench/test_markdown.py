"""The page for reports/published: what the terminal shows, with its command and its machine."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chaos.bench.markdown import page
from chaos.bench.result import save
from chaos.bench.table import sentences
from chaos.cli import app
from tests.chaos.bench.made_up import LIMIT, OURS, result

RESULT = result({OURS: [100, 110, 130], LIMIT: [200, 190, 210]})


def test_the_page_has_the_command_every_cell_and_every_sentence() -> None:
    lines = page(RESULT).splitlines()
    assert lines[:3] == [f"# chaos bench {RESULT.bench}", "", f"    {RESULT.command}"]
    table = [line.split(" | ") for line in lines if line.startswith("| ")]
    headings, ruled, *rows = table
    assert headings[:2] == ["| system", "setting"]
    assert len(rows) == 2
    assert {len(row) for row in table} == {len(headings)}
    assert ruled[0] == "| ---"
    assert "110 (100 to 130)" in rows[0]
    assert [line for line in lines if line.startswith("- ")] == [
        f"- {sentence}" for sentence in sentences(RESULT)
    ]
    assert "3 interleaved repeats" in lines[4]


def test_targets_are_kept_as_a_page_with_what_they_rest_on(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    save(RESULT, kept)
    out = tmp_path / "published" / "targets.md"
    ran = CliRunner().invoke(app, ["bench", "targets", str(kept), "--out", str(out)])
    assert ran.exit_code in (1, 3), ran.output
    text = out.read_text()
    assert f"- {RESULT.bench}: `{RESULT.command}`, {RESULT.began}" in text
    assert "| figure | as a multiple of | must be | measured | verdict |" in text
    assert text.count("\n| ") > 10
