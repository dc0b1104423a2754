"""Tests as hunters: a pytest process of its own plants each mutant, and runs what tests meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos.hunt.found import Hunted, Kill, hunt_again
from chaos.hunt.pool import must_be_quiet
from chaos.hunt.tested import TESTED
from chaos.mutants import Mutant

ROOT = Path(__file__).parents[2]
# Seconds after which a test fails that a mutant makes wait for ever; most take a tenth of one.
_LONGEST = 20
# And what has a statement end before that: nobody else ends one that a mutant lets run for ever.
_BOUNDED = {"PGOPTIONS": "-c statement_timeout=15s"}


class PytestError(Exception):
    """The tests could not be run; with the end of what pytest says."""


def are_for(mutant: Mutant) -> bool:
    """Whether tests hunt it, and not the explorer."""
    return any(edit.file in TESTED for edit in mutant.edits)


def hunt_by_tests(mutants: Sequence[Mutant]) -> Iterator[Hunted]:
    """Each mutant with the tests of what it changes, as they are done.

    Raises FalseAlarmError if a test fails without any, and PytestError.
    """
    files = {file for one in mutants for edit in one.edits for file in TESTED[edit.file]}
    reads, writes = os.pipe()
    command = [
        *(sys.executable, "-m", "pytest", "-p", "chaos.hunt.in_tests", "-p", "no:cacheprovider"),
        *("-m", "not slow", "--tb=short", f"--timeout={_LONGEST}", f"--hunt-tell={writes}"),
        *(f"--hunt={one.name}" for one in mutants),
        *sorted(f"tests/{file}" for file in files),
    ]
    with (
        os.fdopen(reads) as told,
        tempfile.TemporaryFile("w+") as said,
        # A session of its own: Ctrl-C is for us, and we tell it once.
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **_BOUNDED},
            pass_fds=(writes,),
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as child,
    ):
        os.close(writes)
        left = {one.name: one for one in mutants}
        alarm = ""
        try:
            for line in told:
                found = json.loads(line)
                if "alarm" in found:
                    alarm = found["alarm"]
                else:
                    yield _hunted(left.pop(found["mutant"]), found)
            child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)  # it takes its servers with it
            raise
        must_be_quiet("a test", alarm)
        if left:
            said.seek(0)
            raise PytestError(f"the tests ended early:\n{said.read()[-2000:]}")


def _hunted(mutant: Mutant, found: dict[str, Any]) -> Hunted:
    kill = found["kill"] and Kill(
        f"test: {found['kill']['test'].removeprefix('tests/')}",
        None,
        found["kill"]["sentence"],
        found["kill"]["seconds"],
        hunt_again(mutant),
    )
    return Hunted(
        mutant.name,
        mutant.stands_for,
        mutant.invariant,
        kill,
        seconds=found["seconds"],
        tests=found["tests"],
        broke="" if found["tests"] else "no test runs what it changes",
    )
