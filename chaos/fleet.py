"""A fleet of real worker processes: spawned by a fork server, killed, stopped, replaced.

Each process is one incarnation of a numbered seat and has a name of its own (`w3.2` is seat 3's
second process): what a process did is never mistaken for its predecessor's doing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from chaos.cluster.faketime import Clock
from chaos.forkserver import ForkServer
from chaos.history.journal import Journal
from chaos.starvation import note_starvation
from chaos.systems import Timetable, WorkerSettings, system

STOP_SECONDS = 15.0  # beyond its grace, what a worker gets to end by itself
LOOK_EVERY = 0.01
RESTART_EVERY = 0.5  # seconds between two processes of a seat, if the first ends by itself


@dataclass(slots=True)
class Seat:
    """One place in the fleet, and the process that has it now (pid None: it ended)."""

    number: int
    dsn: str
    incarnation: int = 0
    paused: bool = False
    expected: int | None = None  # the exit code with which it was told to end
    pid: int | None = None
    spawned: float = 0.0  # when, on the monotonic clock

    @property
    def name(self) -> str:
        """The name of the process that sits here now, or sat here last."""
        return f"w{self.number}.{self.incarnation}"


@dataclass(slots=True)
class Fleet:
    """The workers of one run. For one thread at a time.

    The first processes of the first `old` seats lack the kinds in `lacks`, as in a rolling deploy.
    `clocks` has each seat's wall clock, in a fleet that was started with clocks of their own.
    `died` is told, as (seat, exit code), of every death that the fleet did not cause itself, and,
    with None for the code, of a process that did not end when it was asked to.
    """

    system_name: str
    settings: WorkerSettings
    directory: Path
    old: int = 0
    lacks: tuple[str, ...] = ()
    died: Callable[[Seat, int | None], None] = lambda seat, code: None
    seats: list[Seat] = field(default_factory=list)
    clocks: dict[int, Clock] = field(default_factory=dict)
    _frozen: set[int] = field(default_factory=set)  # processes that are stopped and have no seat
    _servers: list[ForkServer] = field(default_factory=list)  # one, or one a seat

    def start(self, dsns: list[str], own_clocks: bool = False) -> None:
        """Start one worker for each connection string; with clocks of their own, if need be.

        A clock is loaded when a process starts, so each needs a fork server of its own. Raises
        ClusterError if clocks cannot be faked here.
        """
        (self.directory / "journals").mkdir(parents=True, exist_ok=True)
        (self.directory / "workers").mkdir(exist_ok=True)
        self.seats = [Seat(number, dsn) for number, dsn in enumerate(dsns, 1)]
        if own_clocks:
            (self.directory / "clocks").mkdir(exist_ok=True)
            files = {
                seat.number: self.directory / "clocks" / f"w{seat.number}" for seat in self.seats
            }
            self.clocks = {number: Clock(file) for number, file in files.items()}
        clocks = (
            [self.clocks[seat.number].environment for seat in self.seats] if own_clocks else [{}]
        )
        for environment in clocks:
            self._servers.append(ForkServer.start(environment=environment))
        for server in self._servers:
            server.ready()
        for seat in self.seats:
            self._spawn(seat)

    @property
    def running(self) -> bool:
        """Whether it was started and is not destroyed."""
        return bool(self._servers)

    def tend(self) -> None:
        """Replace every process that ended: at once, or a while after its own start."""
        self._collect()
        due = time.monotonic() - RESTART_EVERY
        for seat in self.seats:
            # A worker that cannot reach the database ends, and would be started in circles.
            if seat.pid is None and seat.spawned <= due:
                self._spawn(seat)

    def find(self, name: str) -> Seat | None:
        """The seat whose living process has this name and is not stopped nor about to stop."""
        for seat in self.seats:
            if seat.name == name and seat.pid is not None and not seat.paused:
                return seat if seat.expected is None else None
        return None

    def kill(self, seats: Sequence[Seat]) -> None:
        """SIGKILL the processes, see them dead, and put a new one in each seat."""
        for seat in seats:
            self._signal(seat, signal.SIGKILL)
            seat.expected = -signal.SIGKILL
        self._wait_for(seats, STOP_SECONDS)
        for seat in seats:
            self._spawn(seat)

    def terminate(self, seat: Seat) -> None:
        """SIGTERM the process; `tend` replaces it when it has ended."""
        self._signal(seat, signal.SIGTERM)
        seat.expected = 0

    def pause(self, seat: Seat) -> None:
        """SIGSTOP the process, and see it stopped: the signal alone may take a moment."""
        self._signal(seat, signal.SIGSTOP)
        seat.paused = True
        deadline = time.monotonic() + STOP_SECONDS
        while seat.pid is not None and _runs(seat.pid) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)

    def resume(self, seat: Seat) -> None:
        """SIGCONT the process."""
        self._signal(seat, signal.SIGCONT)
        seat.paused = False

    def freeze(self, seat: Seat) -> None:
        """Put a new process in the seat of one that is stopped and will never be continued."""
        if seat.pid is None or not seat.paused:
            raise ValueError(f"{seat.name} is not stopped")
        self._frozen.add(seat.pid)
        self._spawn(seat)

    def stop(self) -> None:
        """SIGTERM all and wait; kill those that do not end in time. `died` hears of any failure."""
        for seat in self.seats:
            if seat.paused:
                self.resume(seat)
            self.terminate(seat)
        self._wait_for(self.seats, self.settings.grace + STOP_SECONDS)
        for seat in self.seats:
            if seat.pid is not None:
                self.died(seat, None)
        self.destroy()

    def destroy(self) -> None:
        """End whatever is left, at once."""
        while self._servers:
            self._servers.pop().close()
        for seat in self.seats:
            seat.pid = None

    def _spawn(self, seat: Seat) -> None:
        seat.incarnation += 1
        seat.paused = False
        seat.expected = None
        seat.spawned = time.monotonic()
        servers = self._running()
        first_of_old = seat.number <= self.old and seat.incarnation == 1
        settings = replace(self.settings, lacks=self.lacks) if first_of_old else self.settings
        seat.pid = servers[seat.number - 1 if self.clocks else 0].spawn(
            {
                "system_name": self.system_name,
                "dsn": seat.dsn,
                "name": seat.name,
                "settings": asdict(settings),
                "directory": str(self.directory),
            }
        )

    def _signal(self, seat: Seat, number: signal.Signals) -> None:
        if seat.pid is not None:
            os.kill(seat.pid, number)  # not collected yet, so the pid is still this process's

    def _collect(self) -> None:
        """Note which processes have ended, and tell of those that were not told to end so."""
        seats = {seat.pid: seat for seat in self.seats}
        for server in self._running():
            for pid, code in server.collect().items():
                if pid in self._frozen:
                    self._frozen.remove(pid)
                    continue
                seat = seats[pid]
                seat.pid = None
                if code != seat.expected:
                    self.died(seat, code)

    def _wait_for(self, wanted: Sequence[Seat], seconds: float) -> None:
        """Wait for processes to end."""
        deadline = time.monotonic() + seconds
        while any(seat.pid is not None for seat in wanted) and time.monotonic() < deadline:
            self._collect()
            time.sleep(LOOK_EVERY)

    def _running(self) -> list[ForkServer]:
        if not self._servers:
            raise RuntimeError("the fleet is not running")
        return self._servers


def _runs(pid: int) -> bool:
    """Whether a process is neither stopped nor dead."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def work(system_name: str, dsn: str, name: str, settings: dict[str, Any], directory: str) -> None:
    """A worker process's life, in a child of the fork server. Does not return."""
    code = 1
    try:
        log = os.open(
            f"{directory}/workers/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        journals = Path(directory) / "journals"
        note_starvation(Journal(journals, name))
        system(system_name).work(dsn, name, _settings(**settings), journals)
        code = 0
    except BaseException:  # noqa: BLE001 - a child must never run on into the server's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _settings(schedules: dict[str, list[Any]], **others: Any) -> WorkerSettings:
    """The settings of a worker, which came as JSON."""
    timetables = {name: Timetable(*fields) for name, fields in schedules.items()}
    return WorkerSettings(schedules=timetables, **others)
