"""Forks worker processes from a process that has imported everything already.

Starting an interpreter and importing a system costs a second of CPU; forking costs milliseconds.
The server is a process of its own, single-threaded, in its own session (Ctrl-C at the terminal does
not reach it). It is told what to do by one JSON line at a time and answers each with one:

- `{"spawn": {...}}` forks a child that runs `work(**...)` of the server's module (which must not
  return) and answers its pid;
- `{"collect": true}` reaps the children that ended; answers `{pid: exit code}`, -N for signal N.

A dead child is a zombie until it is collected, so a pid that the harness has not collected cannot
be another process's. When the harness is gone, however it went, the server's input ends: it kills
all children, stopped ones too, and exits.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ForkServerError(Exception):
    """The fork server is gone or did not understand; its own message is on stderr."""


@dataclass(slots=True)
class ForkServer:
    """A running fork server, as the harness sees it. For one thread at a time."""

    process: subprocess.Popen[str]

    @classmethod
    def start(
        cls, module: str = "chaos.fleet", environment: Mapping[str, str] | None = None
    ) -> ForkServer:
        """Start a server that forks children which run `module`'s `work`, with this environment
        besides ours. `ready` waits for it: several that start at once share the time that it takes.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos.forkserver", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            # What we can import, workers can: pytest finds a project's code where no other would.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        )
        return cls(process)

    def ready(self) -> None:
        """Wait until the server can fork."""
        self._ask({"collect": True})

    def spawn(self, arguments: dict[str, object]) -> int:
        """Fork a child that runs `work` with these arguments; returns its pid."""
        return int(self._ask({"spawn": arguments}))

    def collect(self) -> dict[int, int]:
        """The children that ended since the last call: pid to exit code, -N for signal N."""
        ended = self._ask({"collect": True})
        return {int(pid): int(code) for pid, code in ended.items()}

    def close(self) -> None:
        """Kill all children and end the server."""
        self.process.communicate()
        self.process.wait()

    def _ask(self, request: dict[str, object]) -> Any:
        pipes = self.process.stdin, self.process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise ForkServerError("the fork server has no pipes")
        try:
            pipes[0].write(json.dumps(request) + "\n")
            answer = pipes[1].readline()
        except BrokenPipeError as error:
            raise ForkServerError("the fork server is gone") from error
        if not answer:
            raise ForkServerError("the fork server is gone")
        return json.loads(answer)


def serve(module: str) -> None:
    """The server's life."""
    work = importlib.import_module(module).work  # here, so that every child has it

    # Children must not inherit what the harness talks to us through: a child that outlived us
    # would keep the pipes open, and anything it printed would be taken for an answer.
    requests = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    children: set[int] = set()
    for line in requests:
        request = json.loads(line)
        if "spawn" in request:
            # Held back: Python's fork throws away what a child is sent before it is through it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            pid = os.fork()
            if pid == 0:
                # Told to stop before it has a handler of its own, a child holds nothing yet.
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
                requests.close()
                answers.close()
                work(**request["spawn"])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            children.add(pid)
            answer: object = pid
        else:
            answer = _reap(children)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _reap(children: set[int]) -> dict[int, int]:
    ended = {}
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        children.remove(pid)
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


if __name__ == "__main__":
    serve(sys.argv[1])
