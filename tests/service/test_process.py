"""`scheduler serve` and `scheduler worker --metrics-port`, each as a real process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from psycopg import Connection

from chaos.cluster.ports import Reservation
from scheduler.service import tokens
from scheduler.service.tokens import Scope
from tests.scheduler.working import statuses
from tests.service.serving import ROOT, serving
from tests.waiting import wait_for


def exchange(address: str, request: bytes) -> bytes:
    """What the server answers to these very bytes, until it closes the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


def test_a_real_server_serves_and_refuses_and_ends_at_a_signal(
    http_dsn: str, db: Connection
) -> None:
    secret = tokens.create(db, "one", "shop", list(Scope))
    headers = {"Authorization": f"Bearer {secret}"}
    with serving(http_dsn) as (address, child, log):
        answer = httpx.post(
            f"{address}/api/v1/tasks", json={"kind": "work", "payload": 1}, headers=headers
        )
        assert answer.status_code == 201
        found = httpx.get(f"{address}{answer.headers['location']}", headers=headers).json()
        assert (found["payload"], found["source"]) == (1, "shop")
        assert "server" not in answer.headers
        assert "leaseproof_due_tasks" in httpx.get(f"{address}/metrics", headers=headers).text

        # As bytes, since a client would put such paths right.
        for path in (b"/static/../app.py", b"/static/..%2fapp.py", b"/../../etc/passwd", b"/%00"):
            told = exchange(
                address, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            assert told.startswith(b"HTTP/1.1 404 "), path
            assert b"problem+json" in told

        # Refused by its announced length, before any of it is sent.
        told = exchange(
            address,
            b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
        )
        assert told.startswith(b"HTTP/1.1 413 ")

        # Refused for its token, before any of it is sent.
        told = exchange(
            address,
            b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        )
        assert told.startswith(b"HTTP/1.1 401 ")
        assert b"missing-token" in told

        def endless() -> Iterator[bytes]:
            while True:
                yield b" " * 65_536

        streamed = httpx.post(
            f"{address}/api/v1/tasks",
            content=endless(),
            headers={**headers, "Content-Type": "application/json"},
        )
        assert streamed.status_code == 413

        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        assert f"listening on {address}" in log.read_text()
        assert secret not in log.read_text()
    assert statuses(db) == {"pending": 1}


SIGNALLED = """
import os, signal, uvicorn
from fastapi import FastAPI
from scheduler.service.server import serve

listen = uvicorn.Server.serve

async def signalled(server, sockets=None):
    os.kill(os.getpid(), signal.{name})  # uvicorn's own handlers are not there yet
    await listen(server, sockets)

uvicorn.Server.serve = signalled
serve(FastAPI(), "127.0.0.1", {port})
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_the_server_starts_ends_it(name: str) -> None:
    reserved = Reservation()
    reserved.close()
    answer = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(name=name, port=reserved.port)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=30,
    )
    assert (answer.returncode, answer.stdout) == (0, "ended\n"), answer.stderr


def test_a_taken_port_is_one_sentence(http_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "scheduler", "serve", "--port", str(port)),
                *("--app", "tests.service.conftest:REGISTRY", "--database", http_dsn),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert answer.returncode == 1
    assert answer.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_worker_shows_its_metrics_at_a_port(dsn: str, db: Connection) -> None:
    reserved = Reservation()
    port = reserved.port
    reserved.close()
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "scheduler", "worker", "tests.service.conftest:REGISTRY"),
            *("--database", dsn, "--metrics-port", str(port)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )

    def claims() -> bool:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        except httpx.TransportError:
            return False
        return re.search(r'^leaseproof_claims_total{result="empty"} [1-9]', text, re.M) is not None

    try:
        wait_for(claims, "the worker to have claimed")
        child.terminate()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
