"""What the fixtures of the pytest plugin give to a test. Failures are told in sentences."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chaos import report
from chaos.cluster import ClusterError
from chaos.cluster.postgres import Postgres
from chaos.directories import new_directory
from chaos.fleet import Fleet, Seat
from chaos.invariants.judge import overall, why
from chaos.keep import Ran, run_in, run_name
from chaos.replay import failed
from chaos.scenario import Scenario, ScenarioError, load_scenario
from chaos.systems import NotOfferedError, UnknownSystemError, WorkerSettings

SETTINGS = WorkerSettings(slots=2, prefetch=0, lease=1.0, poll=0.05, reclaim_every=0.2, grace=2.0)
LOG_LINES = 20


class ScenarioFailed(Exception):  # noqa: N818 - what a reader of the test's output wants to read
    """A run did not pass.

    failed: the invariants that failed; none if the run is inconclusive, which means that it proved
    nothing. ran: the run itself.
    """

    def __init__(self, text: str, ran: Ran) -> None:
        super().__init__(text)
        self.ran = ran
        self.failed = failed(ran.verdicts)


@contextmanager
def plainly() -> Iterator[None]:
    """Fail with the sentence alone if a part cannot be had or does not do its work."""
    __tracebackhide__ = True
    try:
        yield
    except (ClusterError, NotOfferedError, ScenarioError, UnknownSystemError) as error:
        lines = [str(error), *getattr(error, "__notes__", ())]
        raise pytest.fail.Exception("\n".join(lines), pytrace=False) from None


@contextmanager
def database(server: Postgres, template: str | None = None) -> Iterator[str]:
    """A database, empty or a copy of `template`, that is there while inside: how to connect."""
    name = f"test_{uuid4().hex}"
    server.create_database(name, template)
    try:
        yield server.dsn(name)
    finally:
        server.drop_database(name)


@dataclass(frozen=True, slots=True, repr=False)
class StartFleet:
    """Starts fleets of worker processes, which end with the test."""

    directory: Path
    _fleets: list[Fleet] = field(default_factory=list)
    _deaths: list[str] = field(default_factory=list)

    def __call__(
        self,
        system_name: str,
        dsns: Sequence[str],
        *,
        old: int = 0,
        lacks: tuple[str, ...] = (),
        **settings: Any,
    ) -> Fleet:
        """A fleet of one worker of the system for each connection string, started.

        `old` and `lacks` are as in `chaos.fleet.Fleet`, `settings` are fields of
        `chaos.systems.WorkerSettings`, over `chaos.testing.SETTINGS`. Set `died` of the fleet if
        workers are meant to end by themselves.
        """
        __tracebackhide__ = True
        directory = self.directory / f"fleet-{len(self._fleets) + 1}"
        one = Fleet(system_name, replace(SETTINGS, **settings), directory, old, lacks)

        def died(seat: Seat, code: int | None) -> None:
            self._deaths.append(_death(directory, seat, code))

        one.died = died
        self._fleets.append(one)
        with plainly():
            one.start(list(dsns))
        return one

    def end(self) -> list[str]:
        """End them all; returns what is to be said of workers that ended by themselves."""
        while self._fleets:
            one = self._fleets.pop()
            if one.running:
                one.tend()
            one.destroy()
        return self._deaths


def _death(directory: Path, seat: Seat, code: int | None) -> str:
    log = directory / "workers" / f"{seat.name}.log"
    tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
    how = "did not end when it was told to" if code is None else f"ended with exit code {code}"
    return "\n".join([f"worker {seat.name} {how}; its log {log} ends with:", *tail])


@dataclass(slots=True, repr=False)
class RunScenario:
    """Runs scenarios for one test, each in a directory of its own in `reports`.

    root: where names of scenario files count from. seed: instead of the scenarios' own.
    """

    root: Path
    reports: Path
    seed: int | None
    _directories: list[Path] = field(default_factory=list)

    def __call__(
        self,
        scenario: Scenario | str | Path,
        *,
        system: str = "leaseproof",
        scale: float = 1.0,
        seed: int | None = None,
    ) -> Ran:
        """Run a scenario, or this share of it; the run, if it passed.

        `scenario` is a file, named as seen from pytest's root directory, or the scenario itself.
        `system` is `leaseproof`, or MODULE:ATTRIBUTE. `seed` goes before --chaos-seed, which goes
        before the scenario's own. Raises ScenarioFailed.
        """
        __tracebackhide__ = True
        with plainly():
            if not isinstance(scenario, Scenario):
                scenario = load_scenario(self.root / scenario)
            scenario = scenario.scaled(scale)
            scenario.system(system)  # before there is a directory for nothing
            own = scenario.seed if self.seed is None else self.seed
            directory = new_directory(self.reports, run_name(scenario, system))
            self._directories.append(directory)
            try:
                ran = run_in(directory, scenario, own if seed is None else seed, system)
            except Exception as error:
                error.add_note(f"run: {_shown(directory)}")
                raise
        if overall(ran.history, ran.verdicts) != "pass":
            report.write(*ran)
            raise ScenarioFailed(told(scenario, ran), ran)
        return ran

    def remove(self) -> None:
        """Remove the directories of all runs."""
        for directory in self._directories:
            shutil.rmtree(directory)


def told(scenario: Scenario, ran: Ran) -> str:
    """What a run that did not pass has to say, in a few lines."""
    history, verdicts, directory = ran
    lines = [f"{scenario.name}: {overall(history, verdicts)}: {why(history, verdicts)}"]
    lines += [f"{one.invariant}: {one.sentence}" for one in verdicts if one.outcome == "fail"]
    path = _shown(directory)
    lines.append(f"run: {path}")
    lines.append(f"report: {path}/{report.HTML}")
    lines.append(f"replay: chaos replay {path}")
    return "\n".join(lines)


def _shown(directory: Path) -> Path:
    """A path as one would type it here."""
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory
