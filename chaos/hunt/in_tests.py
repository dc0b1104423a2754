"""Tests as hunters, from inside: a pytest plugin that runs them again for each mutant.

`by_tests` loads it with `-p`; nobody else does. The tests run once on the scheduler as it is, which
says what statements each of them reads, and how long it takes. Then each mutant is planted in this
process and meets the tests that read what it changes, the cheapest first. The servers and the
databases that tests copy from are kept from run to run, so most runs take a tenth of a second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO, cast

import pytest

from chaos.hunt.generated import find
from chaos.mutants import Mutant, planted
from scheduler import statements

_failure = pytest.StashKey[str]()  # of a session: how the last test that was run failed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hunt", "hunt: planted bugs that these tests are to meet")
    group.addoption("--hunt", action="append", metavar="NAME", help="This mutant.")
    group.addoption("--hunt-tell", type=int, metavar="FD", help="Where what was found is written.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.session.stash.setdefault(_failure, _sentence(report))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """In place of one run of each test."""
    if session.testsfailed:
        return None  # not all could be collected, which is pytest's to tell
    with os.fdopen(session.config.getoption("--hunt-tell"), "w", buffering=1) as out:
        calm = [_calm(item) for item in session.items]
        for one in calm:
            if one.alarm:
                _tell(out, alarm=f"{one.item.nodeid}: {one.alarm}")
                return True
        ranked = sorted(calm, key=lambda one: one.seconds)
        for name in session.config.getoption("--hunt"):
            mutant = find(name)
            files = {edit.file for edit in mutant.edits}
            _hunt(out, mutant, [one.item for one in ranked if one.read & files])
    return True


class _Calm(NamedTuple):
    """A test on the scheduler as it is: what it reads, how long it takes, and how it fails."""

    item: pytest.Item
    read: frozenset[str]
    seconds: float
    alarm: str


def _calm(item: pytest.Item) -> _Calm:
    began = time.monotonic()
    with _reads() as read:
        alarm = _run(item)
    return _Calm(item, frozenset(read), time.monotonic() - began, alarm)


def _hunt(out: TextIO, mutant: Mutant, items: list[pytest.Item]) -> None:
    """Until a test fails that passes without the mutant, and fails with it once more: what the
    failure before has left must count for no failure."""
    began = time.monotonic()
    for tests, item in enumerate(items, start=1):
        with planted(mutant):
            sentence = _run(item)
        if not sentence:
            continue
        seconds = time.monotonic() - began
        without = _run(item)
        with planted(mutant):
            again = _run(item)
        if again and not without:
            kill = {"test": item.nodeid, "sentence": sentence, "seconds": seconds}
            _tell(out, mutant=mutant.name, tests=tests, kill=kill, seconds=seconds)
            return
    seconds = time.monotonic() - began
    _tell(out, mutant=mutant.name, tests=len(items), kill=None, seconds=seconds)


def _run(item: pytest.Item) -> str:
    """Run a test; how it failed, if it did. What is made once for all tests is kept."""
    stash = item.session.stash
    if _failure in stash:
        del stash[_failure]
    # As if the next were a test of another module: what comes next is not known yet.
    following = cast(pytest.Item, item.session)
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    return stash.get(_failure, "")


def _sentence(report: pytest.TestReport) -> str:
    lines = (line[1:].strip() for line in report.longreprtext.splitlines() if line[:2] == "E ")
    return next(lines, "it fails")


def _tell(out: TextIO, **what: object) -> None:
    out.write(json.dumps(what) + "\n")


class _Noted(NamedTuple):
    """The directory of statements, which notes what is read."""

    genuine: Path
    read: set[str]

    def __truediv__(self, name: str) -> Path:
        self.read.add(name.removesuffix(".sql"))
        return self.genuine / name


@contextmanager
def _reads() -> Iterator[set[str]]:
    """The statements that this process reads meanwhile."""
    genuine = statements.SQL
    noted = _Noted(genuine, set())
    statements.SQL = cast(Path, noted)
    statements.statement.cache_clear()
    try:
        yield noted.read
    finally:
        statements.SQL = genuine
        statements.statement.cache_clear()
