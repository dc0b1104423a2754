"""Whole runs in containers, as users start them: faults bite, and a planted bug turns one red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.terminal import BROKEN, EXIT_CODES, USAGE

pytestmark = [pytest.mark.slow, pytest.mark.chaos_long, pytest.mark.timeout(400)]

BUG = "leaseproof:complete-without-fence"
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def chaos(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaos", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def play(name: str, scale: float, reports: Path, *options: str) -> dict[str, Any]:
    """Run a scenario in containers; its verdicts."""
    ran = chaos(
        *("run", str(SCENARIOS / f"{name}.yaml"), "--cluster", "container", "--json"),
        *("--scale", str(scale), "--reports", str(reports), *options),
    )
    assert ran.returncode in EXIT_CODES.values(), ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    assert ran.returncode == EXIT_CODES[told["outcome"]]
    return told


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("black-holed-worker", 0.4),
        ("database-crash", 0.3),
        ("database-stall", 0.4),
        ("failover-asynchronous", 0.4),
        ("kill-mid-run", 0.15),
    ],
)
def test_the_scheduler_holds_and_every_fault_bites_in_containers(
    name: str, scale: float, tmp_path: Path
) -> None:
    told = play(name, scale, tmp_path)
    failed = {one["invariant"]: one["sentence"] for one in told["verdicts"] if one["failures"]}
    assert told["outcome"] == "pass", failed
    injected = {fault["name"] for fault in told["faults"] if fault["action"] == "inject"}
    assert injected == {fault["name"] for fault in told["faults"] if fault["action"] == "bite"}


def test_a_planted_bug_turns_a_run_in_containers_red_and_so_does_its_replay(tmp_path: Path) -> None:
    told = play("pause-past-lease", 0.8, tmp_path, "--system", BUG)
    assert told["outcome"] == "fail"
    [fenced] = [one for one in told["verdicts"] if one["invariant"] == "fenced"]
    assert fenced["outcome"] == "fail"
    replay = chaos("replay", told["run"], "--cluster", "container", "--reports", str(tmp_path))
    assert replay.returncode == EXIT_CODES["fail"], replay.stderr
    assert "again" in replay.stderr


def test_a_run_without_an_engine_says_so(tmp_path: Path) -> None:
    ran = chaos(
        *("run", str(SCENARIOS / "kill-mid-run.yaml"), "--cluster", "container"),
        *("--reports", str(tmp_path)),
        DOCKER_HOST="unix:///nonexistent/docker.sock",
    )
    assert ran.returncode == BROKEN
    assert "see whether `docker info` works" in " ".join(ran.stderr.split())


def test_a_cluster_of_another_kind_is_a_usage_error() -> None:
    ran = chaos("run", str(SCENARIOS / "kill-mid-run.yaml"), "--cluster", "cloud")
    assert ran.returncode == USAGE
    assert "container" in ran.stderr
