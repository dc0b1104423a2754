"""The pytest plugin, used by a project that is not ours: the letterbox of docs/pytest.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from chaos.cluster.postgres import postgres
from tests.chaos.cluster.looking import left_below, servers_below
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)  # whole pytest runs, on whatever else the machine does

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a project's tests look like when they fail.
RED = """
import pytest
from letterbox.adapter import QUEUE
from chaos.systems import Order
from chaos.workload import Job
from chaos.cluster.processes import wait_for

def test_without_a_fence(scenario):
    scenario("scenarios/pauses.yaml", system="letterbox.broken:QUEUE")

def test_without_a_file(scenario):
    scenario("scenarios/none.yaml", system="letterbox.adapter:QUEUE")

def test_without_a_system(scenario):
    scenario("scenarios/pauses.yaml", system="letterbox.none:QUEUE")

def test_with_a_worker_that_dies(postgres_dsn, fleet):
    QUEUE.install(postgres_dsn)
    workers = fleet("letterbox.adapter:QUEUE", [postgres_dsn])
    QUEUE.enqueue(postgres_dsn, [Order(Job(0, "poison", 0, 0), delay=0, max_attempts=1)])
    process = workers.seats[0].pid
    assert wait_for(lambda: workers.tend() or workers.seats[0].pid != process, seconds=30)
"""

# Two processes that each have a server and a fleet, and are in no hurry.
PATIENT = """
import os, time
import pytest
from pathlib import Path
from letterbox.adapter import QUEUE

@pytest.mark.parametrize("number", [1, 2])
def test_patience(postgres_dsn, fleet, number):
    if Path("again").exists():
        return  # in the place of a process that was killed
    QUEUE.install(postgres_dsn)
    workers = fleet("letterbox.adapter:QUEUE", [postgres_dsn])
    pids = f"{os.getpid()} {workers.seats[0].pid}"
    Path(f"{number}.part").write_text(pids)
    Path(f"{number}.part").rename(f"{number}.pids")
    time.sleep(600)
"""

NOTHING = """
import sys

def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] == "chaos"}
    assert loaded == {"chaos", "chaos.pytest_plugin"}
    assert not {"scheduler", "psycopg", "pydantic", "yaml", "rich", "psutil"} & sys.modules.keys()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of docs/pytest.md, as its readers have it."""
    shutil.copytree(ROOT / "examples" / "letterbox", tmp_path / "letterbox")
    for name, text in BLOCK.findall((ROOT / "docs" / "pytest.md").read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    install(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nfilterwarnings = error\n")
    return tmp_path


def install(project: Path) -> None:
    """Have pytest find the plugin as if we had just been installed; a second time does no harm."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, module)] = declared["pytest11"].items()
    info = project / "fresh-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: fresh\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run the project's tests, as in a shell of its own."""
    outside = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:schemathesis", *arguments],
        cwd=project,
        env=outside | {"PYTHONPATH": f"{ROOT}{os.pathsep}{project}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What a run prints until its end."""
    try:
        printed, _ = process.communicate(timeout=280)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return printed


@pytest.mark.chaos_long
@pytest.mark.usefixtures("real_toxiproxy")
def test_a_project_of_somebody_elses_tests_its_queue_and_is_told_what_fails(project: Path) -> None:
    (project / "letterbox" / "tests" / "test_red.py").write_text(RED)
    printed = output(start(project, "-n", "2", "--chaos-report", "kept", "--chaos-seed", "7"))
    assert "= 3 failed, 5 passed, 1 error in " in printed, printed
    assert "1 long run was left out (chaos_long); --chaos-long runs them" in printed
    told = printed[printed.index("_ test_without_a_fence _") :].split("\n____")[0]
    lines = [line[8:] for line in told.splitlines() if line.startswith("E  ")]
    assert re.match(r"chaos\.testing\.ScenarioFailed: pauses: fail: .*fenced.* failed", lines[0])
    assert any(re.match(r"fenced: task \d+: w\d", line) for line in lines), lines
    # The green run's directory is gone, and so is that of the failure that was expected.
    [directory] = (project / "kept").iterdir()
    assert lines[-3] == f"run: {directory.relative_to(project)}"
    assert lines[-2] == f"report: {directory.relative_to(project)}/report.html"
    assert lines[-1] == f"replay: chaos replay {directory.relative_to(project)}"
    assert '"seed": 7' in (directory / "verdicts.json").read_text()
    assert "letterbox/tests/test_red.py:9: ScenarioFailed" in told
    for words in (
        f"cannot read {project}/scenarios/none.yaml: ",
        "no system letterbox.none:QUEUE: there is no module 'letterbox.none' that Python finds",
        "worker w1.1 ended with exit code -9; its log ",
    ):
        assert f"\n{words}" in printed
    assert not re.search(r"^\S*chaos/\w+\.py:\d+:|Traceback|The above exception", printed, re.M)


@pytest.mark.chaos_long
def test_an_interrupt_leaves_nothing(project: Path, private_root: Path) -> None:
    (project / "letterbox" / "tests" / "test_letterbox.py").write_text(PATIENT)
    run = start(project, "-n", "2")
    wait_for(lambda: len([*project.glob("*.pids")]) == 2, "two fleets", seconds=60)
    processes = started(project)
    assert len(servers_below(private_root)) > 10
    os.killpg(run.pid, signal.SIGINT)
    output(run)
    # xdist does not wait for its processes; what they started ends before they do.
    wait_for(lambda: not any(process.is_running() for process in processes), "all to end")
    assert servers_below(private_root) == []
    assert left_below(private_root) == []
    assert not (project / "reports").exists()


@pytest.mark.chaos_long
def test_what_a_killed_process_of_many_leaves_goes_at_the_end(
    project: Path, private_root: Path
) -> None:
    (project / "letterbox" / "tests" / "test_letterbox.py").write_text(PATIENT)
    run = start(project, "-n", "1", "-k", "1")
    wait_for(lambda: [*project.glob("*.pids")], "a fleet", seconds=60)
    (project / "again").touch()
    test, worker = started(project)
    test.kill()
    printed = output(run)
    assert "= 1 failed in " in printed, printed
    # It is dead by now, and whoever inherited it reaps it.
    wait_for(lambda: not worker.is_running(), "the fleet's worker to be gone")
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


@pytest.mark.chaos_long
def test_what_a_killed_run_leaves_goes_at_the_next_start(project: Path, private_root: Path) -> None:
    (project / "letterbox" / "tests" / "test_letterbox.py").write_text(PATIENT)
    run = start(project)
    wait_for(lambda: [*project.glob("*.pids")], "a fleet", seconds=60)
    processes = started(project)
    os.kill(run.pid, signal.SIGKILL)
    output(run)
    wait_for(lambda: not any(each.is_running() for each in processes), "its workers to end")
    assert servers_below(private_root) != []
    with postgres():
        [_] = private_root.glob("cluster-*/")
    assert servers_below(private_root) == []
    assert left_below(private_root) == []


def started(project: Path) -> list[psutil.Process]:
    """The processes that told their pids: tests and workers."""
    pids = [pid for file in project.glob("*.pids") for pid in file.read_text().split()]
    return [psutil.Process(int(pid)) for pid in pids]


def test_who_uses_no_fixture_pays_for_no_harness(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(NOTHING)
    install(tmp_path)
    # Named as well, which must not load it twice.
    printed = output(start(tmp_path, "-q", "-p", "chaos.pytest_plugin"))
    assert "1 passed in " in printed, printed


def test_a_seed_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    install(tmp_path)
    printed = output(start(tmp_path, "--chaos-seed", "-1"))
    assert "argument --chaos-seed: '-1' is no seed: a whole number, from 0" in printed
