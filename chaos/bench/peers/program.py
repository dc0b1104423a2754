"""The command line of a system's program in Python, and the gate before its workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from chaos.bench.peers.peer import Options
from chaos.bench.peers.tally import DIRECTORY

READY = ".ready"  # the suffix of the file of each process that is at the gate


def main(
    prepare: Callable[[str, int, Options], None], work: Callable[[str, Options], None]
) -> None:
    """`prepare URL OPTIONS TASKS` or `work URL OPTIONS`; OPTIONS is JSON."""
    what, url, options, *rest = sys.argv[1:]
    if what == "prepare":
        prepare(url, int(rest[0]), json.loads(options))
    else:
        work(url, json.loads(options))


def gate() -> None:
    """Say that all code is loaded, and wait until the bench lets everyone go."""
    (Path(os.environ[DIRECTORY]) / f"{os.getpid()}{READY}").touch()
    sys.stdin.buffer.read()  # until its other end is closed
