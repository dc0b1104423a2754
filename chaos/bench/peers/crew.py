"""The processes of one system: what installs it and enqueues, and its workers, which are held at
their gate until all have loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from chaos.bench import BenchError, measure
from chaos.bench.peers.peer import Setting
from chaos.bench.peers.program import ENQUEUED, READY, Rhythm
from chaos.bench.peers.tally import DIRECTORY, Tally, read_tallies

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOOK_EVERY = 0.02
ENQUEUE_SECONDS = 600.0


def prepare(command: list[str], url: str, setting: Setting, tasks: int) -> float:
    """Install a system in an empty database and enqueue; in how many seconds it did the latter.

    Raises BenchError if that fails.
    """
    return _enqueued([*command, "prepare"], url, setting, str(tasks))


def enqueue(command: list[str], url: str, setting: Setting, rhythm: Rhythm) -> float:
    """Enqueue one by one; how many seconds the calls by the clock took. Raises BenchError if that
    fails."""
    return _enqueued([*command, "enqueue"], url, setting, *map(str, rhythm))


def _enqueued(command: list[str], url: str, setting: Setting, *rest: str) -> float:
    said = f"`{' '.join(command)}`"
    try:
        ran = subprocess.run(
            [*command, url, json.dumps(setting.options), *rest],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=ENQUEUE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{said} did not end within {ENQUEUE_SECONDS:.0f} s") from error
    if ran.returncode != 0:
        raise BenchError(f"{said} failed:\n{_end(ran.stderr)}")
    # A system may write to stdout, too.
    for line in ran.stdout.splitlines():
        if line.startswith(ENQUEUED):
            return float(line.removeprefix(ENQUEUED))
    raise BenchError(f"{said} did not say how long it took to enqueue")


class Crew:
    """`count` workers. directory: empty and theirs."""

    def __init__(
        self, command: list[str], url: str, setting: Setting, count: int, directory: Path
    ) -> None:
        self._command = [*command, "work", url, json.dumps(setting.options)]
        own = setting.options.get("env", {})
        assert isinstance(own, dict)
        self._environment = {**os.environ, **own, DIRECTORY: str(directory)}
        self._count = count
        self._directory = directory
        self._log: IO[bytes] | None = None
        self._living: list[subprocess.Popen[bytes]] = []

    def assemble(self) -> None:
        """Start all, and wait until each is at the gate. Raises BenchError if one ended."""
        self._log = (self._directory / "log").open("wb")
        for _ in range(self._count):
            self._living.append(
                subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    # Its children are ended with it, and Ctrl-C does not reach it before us.
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + START_SECONDS
        while len(list(self._directory.glob(f"*{READY}"))) < self._count:
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"not all workers were ready within {START_SECONDS:.0f} s")
            time.sleep(LOOK_EVERY)

    def begin(self) -> None:
        """Open the gate."""
        for process in self._living:
            assert process.stdin is not None
            process.stdin.close()

    def check(self) -> None:
        """Raise BenchError, with what was logged last, if one ended."""
        for process in self._living:
            if process.poll() is not None:
                raise BenchError(f"a worker ended with {process.returncode}; {self._words()}")

    def cpu(self) -> float:
        """CPU seconds of all, with their children."""
        return sum(measure.cpu_of_server(process.pid) for process in self._living)

    def end(self) -> list[Tally]:
        """Stop all with SIGTERM, as in production, and read what they counted. Raises BenchError
        if one had ended before, or does not end well."""
        self.check()
        for process in self._living:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._living:
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise BenchError(f"not all workers ended within {STOP_SECONDS:.0f} s") from error
            if code not in (0, -signal.SIGTERM):
                raise BenchError(f"a worker ended with {code} when stopped; {self._words()}")
        return read_tallies(self._directory)

    def destroy(self) -> None:
        """Kill whatever is left, children too."""
        for process in self._living:
            if process.stdin is not None:
                process.stdin.close()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._log is not None:
            self._log.close()

    def _words(self) -> str:
        log = (self._directory / "log").read_text(errors="replace")
        return f"the workers' log ends with:\n{_end(log)}"


def _end(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-20:])
