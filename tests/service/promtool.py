"""Finds promtool, Prometheus's own checker of rules and expressions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from chaos.cluster import ClusterError


def find_promtool() -> Path:
    """The `promtool` on PATH. Raises ClusterError if there is none."""
    found = shutil.which("promtool")
    if found is None:
        raise ClusterError(
            "promtool was not found on PATH: it comes with Prometheus (Debian: the package"
            " `prometheus`; .ci/run shows how to have it without the server)."
        )
    return Path(found)


def promtool(program: Path, *arguments: str, cwd: Path) -> None:
    """Run it; fails the test with what it says unless it is content."""
    ran = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
