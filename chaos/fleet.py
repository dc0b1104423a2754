"""A fleet of real worker processes: spawned by a fork server, killed, stopped, replaced.

The fork server has everything imported already, so a worker starts in milliseconds. Each process is
one incarnation of a numbered seat and has a name of its own (`w3.2` is seat 3's second process):
what a process did is never mistaken for its predecessor's doing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from threading import Thread

import psutil

from chaos.systems import WorkerSettings, system

_STOP_SECONDS = 15.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["chaos.fleet"])


@dataclass(slots=True)
class Seat:
    """One place in the fleet, and the process that has it now."""

    number: int
    dsn: str
    incarnation: int = 0
    paused: bool = False
    process: multiprocessing.process.BaseProcess | None = None
    handle: psutil.Process | None = None

    @property
    def name(self) -> str:
        """The name of the process that sits here now."""
        return f"w{self.number}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self.process is not None and self.process.is_alive()


@dataclass(slots=True)
class Fleet:
    """The workers of one run. For one thread at a time.

    `said` is told, as (seat, what), of every death that the fleet did not cause itself.
    """

    system_name: str
    settings: WorkerSettings
    directory: Path
    said: Callable[[Seat, str], None]
    seats: list[Seat] = field(default_factory=list)

    def start(self, dsns: list[str]) -> None:
        """Start one worker for each connection string."""
        (self.directory / "journals").mkdir(parents=True, exist_ok=True)
        (self.directory / "workers").mkdir(exist_ok=True)
        self.seats = [Seat(number, dsn) for number, dsn in enumerate(dsns, 1)]
        for seat in self.seats:
            self._spawn(seat)

    def tend(self) -> None:
        """Replace every process that is gone."""
        for seat in self.seats:
            if seat.process is not None and not seat.process.is_alive():
                self.said(seat, f"ended with {seat.process.exitcode}")
                self._spawn(seat)

    def find(self, name: str) -> Seat | None:
        """The seat whose living, running process has this name."""
        for seat in self.seats:
            if seat.name == name and seat.alive and not seat.paused:
                return seat
        return None

    def kill(self, seat: Seat) -> None:
        """SIGKILL the process and put a new one in its seat."""
        self._signal(seat, signal.SIGKILL)
        if seat.process is not None:
            seat.process.join(_STOP_SECONDS)
        self._spawn(seat)

    def pause(self, seat: Seat) -> None:
        """SIGSTOP the process."""
        self._signal(seat, signal.SIGSTOP)
        seat.paused = True

    def resume(self, seat: Seat) -> None:
        """SIGCONT the process."""
        self._signal(seat, signal.SIGCONT)
        seat.paused = False

    def stop(self) -> list[str]:
        """SIGTERM all, wait, SIGKILL what is left; returns the names of those that needed it."""
        for seat in self.seats:
            if seat.paused:
                self.resume(seat)
            self._signal(seat, signal.SIGTERM)
        deadline = time.monotonic() + self.settings.grace + _STOP_SECONDS
        for seat in self.seats:
            if seat.process is not None:
                seat.process.join(max(0.0, deadline - time.monotonic()))
        return self.destroy()

    def destroy(self) -> list[str]:
        """SIGKILL whatever is left; returns the names of those killed."""
        left = [seat for seat in self.seats if seat.alive]
        for seat in left:
            self._signal(seat, signal.SIGKILL)
        for seat in left:
            if seat.process is not None:
                seat.process.join(_STOP_SECONDS)
        return [seat.name for seat in left]

    def _spawn(self, seat: Seat) -> None:
        seat.incarnation += 1
        seat.paused = False
        process = _context.Process(
            target=_work,
            args=(self.system_name, seat.dsn, seat.name, self.settings, self.directory),
            name=seat.name,
            daemon=True,
        )
        process.start()
        seat.process = process
        try:
            seat.handle = psutil.Process(process.pid)
        except psutil.NoSuchProcess:
            seat.handle = None  # already dead; `tend` will see it

    def _signal(self, seat: Seat, number: signal.Signals) -> None:
        # The fork server reaps the process when it dies, and its pid may then be somebody else's:
        # psutil compares the time of birth before it signals.
        if seat.handle is not None:
            with suppress(psutil.NoSuchProcess):  # it is gone, which every caller allows for
                seat.handle.send_signal(number)


def _work(system_name: str, dsn: str, name: str, settings: WorkerSettings, directory: Path) -> None:
    """A worker process's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness, which ends us
    Thread(target=_die_with_the_harness, daemon=True).start()
    log = os.open(
        directory / "workers" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    system(system_name).work(dsn, name, settings, directory / "journals")


def _die_with_the_harness() -> None:
    """A worker must not outlive a harness that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
