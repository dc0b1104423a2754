"""Processes from the fork server that are all held at one gate until the last is ready."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NoReturn

from chaos.bench import BenchError
from chaos.forkserver import ForkServer

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOOK_EVERY = 0.02
GATE = "gate"  # the file that is locked until all may begin
READY = "ready"  # the directory with one file for each process that is at the gate


def pass_gate(directory: Path, name: str) -> None:
    """In such a process: say that it is ready, and wait until all are let go.

    The wait is for a shared lock on a file, so it costs nothing and ends for all at once.
    """
    (directory / READY / name).touch()
    with (directory / GATE).open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)


def live(directory: str, name: str, body: Callable[[], None]) -> NoReturn:
    """The life of such a process: a log of its own, the body, and an exit code for it."""
    code = 1
    try:
        log = os.open(f"{directory}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - a child must never run on into the server's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Held:
    """Processes that run `work` of a module, given `name`, `directory` and their arguments.

    Each must be a call of `live`, in which it passes the gate.
    """

    def __init__(self, module: str, arguments: Mapping[str, Mapping[str, object]], place: Path):
        self._module = module
        self._arguments = arguments
        self._directory = place
        self._living: dict[int, str] = {}
        self._server: ForkServer | None = None
        self._gate: IO[bytes] | None = None

    def assemble(self) -> None:
        """Fork all, and wait until each is at the gate. Raises BenchError if one ended."""
        ready = self._directory / READY
        ready.mkdir()
        self._gate = (self._directory / GATE).open("wb")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self._server = server = ForkServer.start(self._module)
        server.ready()
        for name, own in self._arguments.items():
            given = {"name": name, "directory": str(self._directory), **own}
            self._living[server.spawn(given)] = name
        deadline = time.monotonic() + START_SECONDS
        while len(list(ready.iterdir())) < len(self._arguments):
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"not all processes were ready within {START_SECONDS:.0f} s")
            time.sleep(LOOK_EVERY)

    def begin(self) -> None:
        """Open the gate."""
        assert self._gate is not None
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def pids(self) -> list[int]:
        """Those that live, without their fork server, which sleeps."""
        return list(self._living)

    def terminate(self) -> None:
        """Ask all to end, with SIGTERM."""
        for pid in self._living:
            os.kill(pid, signal.SIGTERM)

    def join(self, seconds: float = STOP_SECONDS) -> None:
        """Wait until all have ended well. Raises BenchError if one did not."""
        deadline = time.monotonic() + seconds
        while self._living:
            self.check(expected=0)
            if time.monotonic() > deadline:
                raise BenchError(f"not all processes ended within {seconds:.0f} s")
            time.sleep(LOOK_EVERY)

    def check(self, expected: int | None = None) -> None:
        """Raise BenchError, with its log, if one ended with another code than this."""
        assert self._server is not None
        for pid, code in self._server.collect().items():
            name = self._living.pop(pid)
            if code != expected:
                log = (self._directory / f"{name}.log").read_text().strip()
                raise BenchError(f"process {name} ended with {code}; its log says:\n{log}")

    def destroy(self) -> None:
        """Kill what is left."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._gate is not None:
            self._gate.close()
            self._gate = None
