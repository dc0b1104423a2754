"""`scheduler serve` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from chaos.cluster.ports import Reservation
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(dsn: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """The address of a server that answers, its process and its log."""
    reserved = Reservation()
    port = reserved.port
    reserved.close()  # uvicorn does not bind beside it
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as errors:
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "scheduler", "serve"),
                    *("--app", "tests.service.conftest:REGISTRY", "--database", dsn),
                    *("--port", str(port), "--rate", "100000", *options),
                ],
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: ended(child, log) or lives(address), "the server to answer")
            yield address, child, log
        finally:
            child.kill()
            child.wait()


def lives(address: str) -> bool:
    """Whether a server answers there."""
    try:
        return httpx.get(f"{address}/health/live").status_code == 200
    except httpx.TransportError:
        return False


def ended(child: subprocess.Popen[bytes], log: Path) -> bool:
    """False while the server runs; fails with its log once it does not."""
    assert child.poll() is None, log.read_text()
    return False
