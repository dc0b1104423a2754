"""The files of a report: whole, repeatable, small, and nothing in them that history put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.history.events import History
from chaos.history.store import save
from chaos.invariants.judge import judge
from chaos.report import write
from tests.chaos.invariants.build import Story
from tests.chaos.report.made_up import HOSTILE, busy, hostile, overwritten


def written(history: History, directory: Path) -> dict[str, str]:
    """The files of a report, by name."""
    directory.mkdir(parents=True, exist_ok=True)
    write(history, judge(history), directory)
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_a_report_says_first_why_the_verdict_is_what_it_is(tmp_path: Path) -> None:
    files = written(overwritten(), tmp_path / "red")
    assert set(files) == {"report.html", "report.json", "junit.xml"}
    page = files["report.html"]
    sentence = "Task 7: w1.1/1 wrote completed with token 1 at 12:00:08.300000, but w2.1/2 held"
    assert page.index(sentence) < page.index("What went wrong: Task 7") < page.index("by worker")
    assert "chaos replay red\n" in page.replace("</pre>", "\n")
    told = json.loads(files["report.json"])
    assert told["outcome"] == "fail"
    assert told["sentence"].count(sentence) == 1
    assert told["counterexamples"][0]["tasks"] == [7]
    assert told["distributions"]["zombie window"]["microseconds"]["p50"] == 2_200_000


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_in_this_process_and_in_another(tmp_path: Path) -> None:
    first = written(overwritten(), tmp_path / "a" / "run")
    assert written(overwritten(), tmp_path / "b" / "run") == first
    save(overwritten(), tmp_path / "a" / "run" / "history.jsonl.gz")
    command = (sys.executable, "-m", "chaos", "report", str(tmp_path / "a" / "run"))
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert {name: (tmp_path / "a" / "run" / name).read_text() for name in first} == first


def test_no_text_of_a_history_becomes_markup(tmp_path: Path) -> None:
    files = written(hostile(), tmp_path / "hostile")
    page = files["report.html"]
    assert HOSTILE not in page
    assert "<script>hostile" not in page
    assert "<img" not in page
    # The figures' data, Bokeh, ours: nothing else begins or ends a script.
    assert page.count("<script") == page.count("</script") == 3
    for unfit in ("\0", "\\u0000", "\\ud800"):
        assert unfit not in page.partition('id="figures">')[2].partition("</script>")[0]
    root = ElementTree.fromstring(files["junit.xml"])
    assert root.get("name", "").startswith("</script><script>hostile()")
    assert json.loads(files["report.json"])["outcome"] == "fail"


def test_the_policy_allows_the_two_scripts_and_no_more(tmp_path: Path) -> None:
    page = written(overwritten(), tmp_path / "red")["report.html"]
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    directives = dict(one.strip().split(" ", 1) for one in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"].count("sha256-") == 2
    assert "unsafe" not in directives["script-src"]
    assert "http" not in policy


@pytest.mark.slow
@pytest.mark.chaos_long
def test_ten_thousand_attempts_fit_into_five_megabytes(tmp_path: Path) -> None:
    history = busy(10_000)
    path = write(history, (), tmp_path)
    assert path.stat().st_size < 5_000_000
    assert '"10,000"' in path.read_text()


def test_a_run_in_which_nothing_happened_has_a_report(tmp_path: Path) -> None:
    page = written(Story().history(), tmp_path / "empty")["report.html"]
    assert "No task was claimed." in page
    assert "There was none." in page


def test_what_keeps_a_run_from_passing_is_a_failure_in_junit(tmp_path: Path) -> None:
    story = Story().enqueue(1, at=0).acknowledged(1, at=0.1).claim(1, at=1).complete(1, at=2)
    story.fault("kill", "plan", target="", at=0, detail="1")
    history = story.history(named=["no-lost-task", "fenced"])
    root = ElementTree.fromstring(written(history, tmp_path / "yellow")["junit.xml"])
    found = {
        case.get("name"): [(child.tag, child.get("type")) for child in case]
        for case in root.iter("testcase")
    }
    assert found["no-lost-task"] == []
    assert found["fenced"] == [("failure", "inconclusive")]
    assert found["key-once"] == [("skipped", None)]
    assert found["kill"] == [("failure", "inconclusive")]
    assert root.get("failures") == "2"
    red = ElementTree.fromstring(written(overwritten(), tmp_path / "red")["junit.xml"])
    failed = red.find("testcase[@name='fenced']/failure")
    assert failed is not None
    assert "held the lease with token 2" in failed.get("message", "")


def test_commands_that_write_no_report_do_not_import_what_draws_it() -> None:
    check = "import sys, chaos.cli; sys.exit(sorted({'bokeh', 'numpy'} & set(sys.modules)) or 0)"
    subprocess.run((sys.executable, "-c", check), check=True, capture_output=True)
