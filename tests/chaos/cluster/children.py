"""Python processes that own a server, to be interrupted or killed by a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOLD_A_CLUSTER = """
import time
from chaos.cluster.postgres import postgres
with postgres() as server:
    print(server.dsn(), flush=True)
    time.sleep(600)
"""

HOLD_A_PAIR = """
import time
from chaos.cluster.postgres import postgres
from chaos.cluster.standby import standby
with postgres() as primary, standby(primary, synchronous=True) as second:
    print(second.dsn(), flush=True)
    time.sleep(600)
"""

HOLD_A_PGBOUNCER = """
import time
from chaos.cluster.postgres import postgres
from chaos.cluster.pgbouncer import pgbouncer
with postgres() as server, pgbouncer(server) as pooler:
    print(pooler.dsn(), flush=True)
    time.sleep(600)
"""

HOLD_A_TOXIPROXY = """
import time
from chaos.cluster.toxiproxy import toxiproxy
with toxiproxy() as server:
    print(server.port, flush=True)
    time.sleep(600)
"""


@contextmanager
def child(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script in a process group of its own; interrupt it if it still runs at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def said(process: subprocess.Popen[str]) -> str:
    """The next line of the child, whose server has started by then."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the child ended without a word"
    return line.strip()


def end(process: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send the signal to the child's whole process group, as a terminal does; its exit status."""
    os.killpg(process.pid, number)
    return process.wait(60)
