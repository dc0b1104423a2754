"""Network faults, through a real Toxiproxy, to a process that is no worker: this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psycopg
import pytest

from chaos.cluster.postgres import Postgres
from chaos.cluster.toxiproxy import Toxiproxy
from chaos.faults import Arena, Fault
from chaos.faults.network import (
    Bandwidth,
    Down,
    Latency,
    LimitData,
    ResetPeer,
    Slicer,
    SlowReplies,
)
from chaos.fleet import Seat
from tests.chaos.faults.arena import arena, bit, struck

pytestmark = pytest.mark.slow

RESET = ResetPeer(kind="reset-peer", count=1, lasts=1)
LIMIT = LimitData(kind="limit-data", count=1, lasts=1, bytes=1000)
DOWN = Down(kind="down", count=1, lasts=1)
LATENCY = Latency(kind="latency", count=1, lasts=1, ms=300, jitter_ms=50)
BANDWIDTH = Bandwidth(kind="bandwidth", count=1, lasts=1, kb_per_second=1)
SLICER = Slicer(kind="slicer", count=1, lasts=1, bytes=20, delay_ms=20)


CLIENT = """
import socket, sys, time
session = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
time.sleep(600)
"""


def kind(fault: Fault) -> str:
    """The name of a parameter."""
    return fault.kind


@pytest.fixture
def where(toxiproxy: Toxiproxy, server: Postgres) -> Arena:
    """An arena in which this process sits behind a proxy."""
    one = arena(server, "postgres", Seat(1, "", incarnation=1, pid=os.getpid()))
    one.proxies[1] = toxiproxy.proxy("w1", f"127.0.0.1:{server.port}")
    return one


def connect(where: Arena) -> psycopg.Connection:
    """A session through the proxy."""
    proxy = where.proxies[1]
    return psycopg.connect(
        host=proxy.host, port=proxy.port, user="postgres", dbname="postgres", autocommit=True
    )


@pytest.mark.parametrize("fault", [RESET, LIMIT, DOWN], ids=kind)
def test_sessions_are_cut_and_counted_and_new_ones_work_after_healing(
    fault: Fault, where: Arena
) -> None:
    with connect(where) as one, connect(where) as other:
        strike = struck(fault, where)
        for session in (one, other):
            with pytest.raises(psycopg.OperationalError):
                session.execute("select repeat('x', 5000)")
        assert strike.heal() == 2
    with connect(where) as session:
        session.execute("select repeat('x', 5000)")


@pytest.mark.parametrize("fault", [RESET, LIMIT], ids=kind)
def test_a_session_that_said_nothing_under_the_fault_was_not_cut_by_it(
    fault: Fault, where: Arena
) -> None:
    with connect(where):
        assert not bit(fault, struck(fault, where))


def test_a_process_that_is_gone_lost_its_sessions_by_that(where: Arena) -> None:
    [seat] = where.fleet.seats
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(where.proxies[1].port)],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        seat.pid = process.pid
        strike = struck(DOWN, where)
        process.kill()
    assert strike.heal() == 0


@pytest.mark.parametrize("fault", [LATENCY, BANDWIDTH, SLICER], ids=kind)
def test_a_reply_is_as_late_as_the_fault_says(fault: SlowReplies, where: Arena) -> None:
    with connect(where) as session:
        strike = struck(fault, where)
        began = time.monotonic()
        session.execute("select repeat('x', 300)")
        slow = time.monotonic() - began
        strike.heal()
        assert slow >= fault.delay
    with connect(where) as session:
        began = time.monotonic()
        session.execute("select repeat('x', 300)")
        assert time.monotonic() - began < slow
