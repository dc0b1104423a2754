"""These tests need a container engine with two images; tests/containers/prepare has both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own: where no engine answers, the package leaves a socket unclosed.
PROBE = """
import sys
from chaos.cluster import ClusterError
from chaos.cluster.server import cluster
try:
    cluster("container")
    import docker
    from chaos.cluster.containers import postgres_image, toxiproxy_image
    client = docker.from_env()
    for image in (postgres_image(), toxiproxy_image()):
        if not client.images.list(image):
            client.images.pull(image)
except (ClusterError, docker.errors.DockerException) as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="session", autouse=True)
def _engine() -> None:
    """Without an engine that has, or gets, both images the tests are skipped, and say how to get
    it; with `containers` in LEASEPROOF_REQUIRE they fail instead."""
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], capture_output=True, text=True
    )
    if probe.returncode == 0:
        return
    reason = f"{probe.stderr.strip()}; tests/containers/prepare makes an engine with both images"
    if "containers" in os.environ.get("LEASEPROOF_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)
