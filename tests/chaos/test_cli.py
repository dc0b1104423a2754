"""The command line `chaos`: exit codes, what it writes, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from chaos.cli import app
from chaos.history.store import load, save
from chaos.scenario import load_scenario
from tests.waiting import wait_for

SCENARIO = """\
name: tiny
about: Two workers and one kill.
load_seconds: 2
workers: {count: 2, slots: 2, lease: 0.5, poll: 0.05, reclaim_every: 0.1}
tasks:
  - {behaviour: slow, count: 12, seconds: 0.3}
faults:
  - {kind: kill, count: 1}
invariants: [no-lost-task, reclaimed-in-time, progress]
bounds: {reclaim: 2, progress: 20}
"""


def chaos(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error(result: Result) -> str:
    """The one sentence on stderr, unwrapped."""
    text = " ".join(result.stderr.split())
    assert "Traceback" not in text
    return text


@pytest.mark.slow
def test_a_run_is_judged_kept_and_can_be_judged_again(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SCENARIO)
    summary = tmp_path / "summary.md"
    summary.write_text("what others said\n")
    reports = ("--reports", tmp_path / "reports", "--summary", summary)
    ran = chaos("run", file, *reports, "--seed", 5, "--json")
    told = json.loads(ran.stdout)
    assert (ran.exit_code, told["outcome"]) == (0, "pass"), ran.stdout
    assert told["about"]["seed"] == 5
    assert summary.read_text().startswith("what others said\n### chaos: 1 pass\n")
    directory = Path(told["run"])
    assert load_scenario(directory / "scenario.yaml") == load_scenario(file)
    assert json.loads((directory / "verdicts.json").read_text()) == told
    assert {path.name for path in directory.iterdir()} == {
        *("history.jsonl.gz", "journals", "scenario.yaml", "verdicts.json", "workers"),
        *("report.html", "report.json", "junit.xml"),
    }

    again = chaos("check", directory, "--json")
    assert (again.exit_code, json.loads(again.stdout)["verdicts"]) == (0, told["verdicts"])

    page = (directory / "report.html").read_text()
    assert chaos("report", directory).exit_code == 0
    assert (directory / "report.html").read_text() == page
    listed = chaos("report", "--index", directory.parent)
    assert (listed.exit_code, listed.stdout.split()[:2]) == (0, ["pass", directory.name])
    assert f'href="{directory.name}/report.html"' in (directory.parent / "index.html").read_text()

    history = load(directory / "history.jsonl.gz")
    worse = tmp_path / "worse.jsonl"
    save(replace(history, commits=history.commits[:-1]), worse)
    red = chaos("check", worse)
    assert red.exit_code == 1
    assert "conserved" in red.stdout
    assert "replay:" not in red.stdout  # that takes a directory

    unbitten = tmp_path / "unbitten.jsonl"
    faults = tuple(fault for fault in history.faults if fault.action != "bite")
    save(replace(history, faults=faults), unbitten)
    yellow = chaos("check", unbitten)
    assert yellow.exit_code == 3
    assert "inconclusive: fault kill was injected 1 time and never bit" in " ".join(
        yellow.stdout.split()
    )


@pytest.mark.slow
@pytest.mark.chaos_long
def test_all_scenarios_are_run_and_the_worst_decides(tmp_path: Path) -> None:
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    (scenarios / "tiny.yaml").write_text(SCENARIO)
    never = SCENARIO.replace("name: tiny", "name: never").replace(
        "kind: kill, count: 1", "kind: kill, count: 1, aim: last-attempt"
    )
    (scenarios / "never.yaml").write_text(never)
    options = ("--all", "--scenarios", scenarios, "--reports", tmp_path / "reports")
    ran = chaos("run", *options)
    lines = {line.split()[0]: line.split() for line in ran.stdout.splitlines() if line.strip()}
    assert ran.exit_code == 3, ran.stdout
    assert lines["tiny"][1] == "pass"
    assert lines["tiny"][3:5] == ["kill", "1/1"]
    assert lines["never"][1] == "inconclusive"
    assert lines["never"][3:5] == ["kill", "0/0"]
    assert "never injected" in " ".join(ran.stdout.split())
    assert len(list((tmp_path / "reports").glob("*/verdicts.json"))) == 2


def test_a_run_that_breaks_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(SCENARIO.replace("name: tiny", f"name: {name}"))
    monkeypatch.setenv("LEASEPROOF_POSTGRES", "9")
    result = chaos("run", "--all", "--scenarios", tmp_path, "--reports", tmp_path / "reports")
    assert result.exit_code == 4
    assert result.stdout.count("broken") == 2
    assert error(result).count("PostgreSQL 9 is not supported") == 2


def test_a_report_wants_a_run_or_a_directory_of_runs(tmp_path: Path) -> None:
    for result in (chaos("report"), chaos("report", tmp_path, "--index", tmp_path)):
        assert result.exit_code == 2
        assert "name a run's directory, or give --index" in error(result)
    for result in (chaos("report", tmp_path), chaos("report", "--index", tmp_path / "nowhere")):
        assert result.exit_code == 2
        assert "No such file or directory" in error(result)


def test_the_list_tells_what_each_scenario_models_holds_and_must_bite() -> None:
    result = chaos("list")
    told = " ".join(result.stdout.split())
    assert result.exit_code == 0
    for path in Path("scenarios").glob("*.yaml"):
        scenario = load_scenario(path)
        modes = ", ".join(map(str, scenario.failure_modes))
        stands = f"stands for failure modes {modes}"
        assert f"{scenario.name} {scenario.about} {stands} holds" in told
        assert f"bites {', '.join(scenario.must_bite)}" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run",), "name a scenario file, or give --all"),
        (("run", "x.yaml", "--all"), "name a scenario file, or give --all"),
        (("run", "--all", "--json"), "--json is for one scenario"),
        (("run", "--all", "--scenarios", "nowhere"), "there are no scenario files"),
        (("run", "x.yaml", "--scenarios", "nowhere"), "leave it out to run one file"),
        (("soak", "x.yaml", "--runs", 1, "--scenarios", "nowhere"), "their directory, not both"),
        (("list", "nowhere"), "there are no scenario files"),
    ],
)
def test_a_command_that_cannot_be_meant_is_a_usage_error(
    arguments: tuple[object, ...], says: str
) -> None:
    result = chaos(*arguments)
    assert result.exit_code == 2
    assert says in error(result)


def test_a_scenario_with_a_mistake_is_a_usage_error_that_says_where(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SCENARIO.replace("count: 12", "count: many"))
    result = chaos("run", file, "--reports", tmp_path)
    assert result.exit_code == 2
    assert "line 6: tasks.1.count" in error(result)
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_is_said_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "snoozing.yaml"
    file.write_text(SCENARIO.replace("behaviour: slow", "behaviour: snoozing"))
    reports = ("--reports", tmp_path / "reports")
    result = chaos("run", file, *reports, "--system", "examples.letterbox.adapter:QUEUE")
    assert result.exit_code == 2
    assert "tiny asks for snoozing, which examples.letterbox.adapter:QUEUE" in error(result)
    result = chaos("run", file, *reports, "--summary", tmp_path / "none" / "summary.md")
    assert result.exit_code == 2
    assert "No such file or directory" in error(result)
    assert not (tmp_path / "reports").exists()


def test_an_unknown_system_is_a_usage_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SCENARIO)
    result = chaos("run", file, "--system", "leaseproof:no-such-bug", "--reports", tmp_path)
    assert result.exit_code == 2
    assert "leaseproof:claim-without-lock" in error(result)


def test_a_server_that_cannot_be_had_is_the_harness_breaking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SCENARIO)
    monkeypatch.setenv("LEASEPROOF_POSTGRES", "9")
    result = chaos("run", file, "--reports", tmp_path / "reports")
    assert result.exit_code == 4
    assert "PostgreSQL 9 is not supported" in error(result)


@pytest.mark.parametrize("content", [None, "", "{}", '["something-else",1]\n'])
def test_checking_what_is_no_history_is_a_usage_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "history.jsonl"
    if content is not None:
        path.write_text(content)
    result = chaos("check", path)
    assert result.exit_code == 2
    assert str(path) in error(result).replace(" ", "")


@pytest.mark.slow
def test_an_interrupt_ends_every_process_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SCENARIO.replace("load_seconds: 2", "load_seconds: 600"))
    with subprocess.Popen(
        [sys.executable, "-m", "chaos", "run", file, "--reports", tmp_path / "reports"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        harness = psutil.Process(process.pid)
        wait_for(
            lambda: len(list((tmp_path / "reports").glob("*/journals/w*.journal"))) == 2,
            "the fleet",
        )
        children = harness.children(recursive=True)
        assert len(children) > 4  # a server and its helpers, the fork server, two workers
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    wait_for(lambda: not any(child.is_running() for child in children), "every child to end")
