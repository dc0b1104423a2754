"""The description is true: schemathesis, which reads it, finds no answer that it does not allow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import Connection

from scheduler import declare_schedules
from scheduler.service import tokens
from scheduler.service.tokens import Scope
from tests.scheduler.working import WORK, put
from tests.service.conftest import SCHEDULED
from tests.service.serving import ROOT, serving

# What its kind's own model and PostgreSQL refuse of a payload is in no description.
CONFIG = """
[[operations]]
include-operation-id-regex = "^enqueue_task"

[operations.checks]
positive_data_acceptance.enabled = false
"""


def explore(http_dsn: str, db: Connection, directory: Path, *options: str) -> None:
    """Run schemathesis on a real server; fails with its report."""
    secret = tokens.create(db, "explorer", "shop", list(Scope))
    tasks = ",".join(str(task) for task in put(db, 9, WORK))
    declare_schedules(db, SCHEDULED)
    config = directory / "schemathesis.toml"
    config.write_text(CONFIG)
    with serving(http_dsn) as (address, child, log):
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
                *("run", f"{address}/api/v1/openapi.json"),
                *("--header", f"Authorization: Bearer {secret}"),
                *("--no-color", "--generation-database", "none", *options),
            ],
            cwd=directory,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.service.explorer_hooks",
                "EXPLORER_TASKS": tasks,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert run.returncode == 0, run.stdout
        assert child.poll() is None
        assert "Traceback" not in log.read_text()


@pytest.mark.chaos_long
def test_schemathesis_finds_no_fault(http_dsn: str, db: Connection, tmp_path: Path) -> None:
    explore(http_dsn, db, tmp_path, "--phases", "coverage")


@pytest.mark.chaos_long
@pytest.mark.timeout(900)
def test_schemathesis_finds_no_fault_however_long_it_looks(
    http_dsn: str, db: Connection, tmp_path: Path
) -> None:
    explore(http_dsn, db, tmp_path, "--max-examples", "50")
