"""The index of runs."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.report import write_index
from tests.chaos.report.made_up import HOSTILE


def kept(reports: Path, name: str, outcome: str, began: str, **about: str) -> Path:
    """A run's directory as far as the index looks."""
    directory = reports / name
    directory.mkdir(parents=True)
    (directory / "scenario.yaml").touch()
    told = {"scenario": "tiny", "system": "leaseproof", "seed": 1, "began": began, **about}
    why = "" if outcome == "pass" else "fenced failed"
    verdicts = {"outcome": outcome, "why": why, "about": told, "verdicts": []}
    (directory / "verdicts.json").write_text(json.dumps(verdicts))
    return directory


def test_runs_are_listed_newest_first_with_their_verdicts(tmp_path: Path) -> None:
    kept(tmp_path, "a b#1", "pass", "2026-01-01T00:00:00Z")
    (kept(tmp_path, "b", "fail", "2026-01-02T00:00:00Z") / "report.html").touch()
    (tmp_path / "a b#1" / "report.html").touch()
    (tmp_path / "bench").mkdir()
    found = write_index(tmp_path)
    assert [(run.name, run.outcome, run.why) for run in found] == [
        ("b", "fail", "fenced failed"),
        ("a b#1", "pass", ""),
    ]
    page = (tmp_path / "index.html").read_text()
    assert "2 in " in page
    assert page.index('href="b/report.html"') < page.index('href="a%20b%231/report.html"')
    assert "bench" not in page


def test_a_run_that_was_never_judged_is_broken_and_not_left_out(tmp_path: Path) -> None:
    for name, text in (("cut", '{"outcome": "pa'), ("odd", "[]"), ("none", None)):
        directory = kept(tmp_path, name, "pass", "")
        (directory / "verdicts.json").unlink()
        if text is not None:
            (directory / "verdicts.json").write_text(text)
    assert {run.outcome for run in write_index(tmp_path)} == {"broken"}


def test_the_index_escapes_what_runs_say(tmp_path: Path) -> None:
    kept(tmp_path, "x", "fail", "", scenario=HOSTILE, system=HOSTILE)
    write_index(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "<script" not in page
    assert "<img" not in page


def test_an_empty_directory_has_an_index_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    assert write_index(tmp_path) == []
    assert "0 in " in (tmp_path / "index.html").read_text()
