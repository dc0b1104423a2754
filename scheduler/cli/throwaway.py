"""A program: runs commands in a directory for its parent, and leaves nothing of it once that ends.

`embedded.py` starts it for each server of `scheduler dev`. Its standard input is a pipe whose other
end the parent has, and no program that the parent starts inherits it. So it ends when the parent
closes it, and no less when the parent is killed by SIGKILL: the kernel closes it then. Either way
it ends the command that runs and removes the directory. There is no other way to stop it, so that
there is one to get right.

It imports nothing that is not in the standard library, to be there at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

STOP_SECONDS = 30.0
TAIL = 1_500  # characters of a command's own words when it ends by itself


class Keeper:
    """Runs one command after the other, as the given user."""

    def __init__(self, directory: Path, user: int | None, group: int | None) -> None:
        self._directory = directory
        self._user = user
        self._group = group
        self._lock = Lock()
        self._over = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, name: str, command: list[str]) -> str | None:
        """Run a command to its end. What to tell the parent if it did not do well, else None."""
        log = self._directory / f"{name}.log"
        try:
            # Under the lock: a command that starts while the parent ends is either not started, or
            # seen by `end`.
            with self._lock, log.open("ab") as output:
                if self._over:
                    return "ended"
                self._process = process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    user=self._user,
                    group=self._group,
                    extra_groups=None if self._user is None else (),
                )
        except PermissionError:
            return (
                f"the user of the database (uid {self._user}) cannot run {command[0]}, since root's"
                " own directories are closed to it: run this as another user"
            )
        if process.wait() == 0:
            return None
        return f"`{name}` failed: " + " ".join(log.read_text(errors="replace")[-TAIL:].split())

    def end(self) -> None:
        """Start nothing any more, and end what runs."""
        with self._lock:
            self._over = True
            process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGINT)  # a fast shutdown: whoever is connected is disconnected
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # its children end with it


def main(told: dict[str, Any]) -> None:
    """Do what the parent asks for; what keeps that from being done is said on standard output."""
    # Signals to all of a system or a terminal reach the parent too, and it ends in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    directory = Path(told["directory"])
    directory.mkdir(mode=0o700)
    try:
        if told["user"] is not None:
            os.chown(directory, told["user"], told["group"])
        keeper = Keeper(directory, told["user"], told["group"])

        def follow() -> None:
            sys.stdin.buffer.read()
            keeper.end()

        Thread(target=follow, daemon=True).start()
        for name, command in told["commands"].items():
            failure = keeper.run(name, command)
            if failure is not None:
                with suppress(BrokenPipeError):  # the parent ended, and so nobody reads it
                    os.write(sys.stdout.fileno(), failure.encode())
                break
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
