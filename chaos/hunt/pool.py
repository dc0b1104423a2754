"""Hunts in processes of their own, since a mutant is planted in a whole process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import count
from os import getpid
from typing import TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chaos.cluster.postgres import postgres
from chaos.explore.explore import SERVER
from chaos.hunt import explorer, machine
from chaos.hunt.equivalent import EQUIVALENT
from chaos.hunt.explorer import HUNTERS, Baseline, Stages
from chaos.hunt.found import Hunted
from chaos.mutants import Mutant
from chaos.terminal import silence_psycopg

T = TypeVar("T")
R = TypeVar("R")
Find = Callable[[str], Mutant]

# Each stage keeps up to five sessions, and each process a stage for every program.
_CONNECTIONS = {"max_connections": "1500", "shared_buffers": "64MB"}


class FalseAlarmError(Exception):
    """A hunter finds a failure in the scheduler as it is: what it says of mutants means nothing."""


class _Child:
    """What a process of the pool keeps from task to task."""

    stages: Stages
    worlds: machine.Worlds
    find: Find


def _begin(dsn: str, find: Find) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    silence_psycopg()
    numbers = count(1)

    def create() -> str:
        name = f"hunt_{getpid()}_{next(numbers)}"
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return make_conninfo(dsn, dbname=name)

    _Child.stages = Stages(create)
    _Child.worlds = machine.Worlds(create)
    _Child.find = staticmethod(find)


def _machine() -> str:
    return machine.alarm(_Child.worlds)


def _hunt(name: str, hunters: Sequence[Baseline], minimal: bool) -> Hunted:
    mutant = _Child.find(name)
    found = explorer.hunt(mutant, hunters, _Child.stages, minimal=minimal)
    if found.kill is None and not mutant.invariant and name not in EQUIVALENT:
        return machine.hunt(found, mutant, _Child.worlds)
    return found


def _on_stages(work: Callable[[T, Stages], R], item: T) -> R:
    return work(item, _Child.stages)


class Pool:
    """Processes that hunt, each in databases of its own on one server."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def each(self, work: Callable[[T, Stages], R], items: Iterable[T]) -> Iterator[R]:
        """What `work` makes of each item, on stages that its process keeps, as they are done."""
        futures = [self._executor.submit(_on_stages, work, item) for item in items]
        for future in as_completed(futures):
            yield future.result()

    def baselines(self) -> Iterator[Baseline]:
        """Each hunter on the unmodified scheduler, as they are done. Raises FalseAlarmError."""
        alarm = self._executor.submit(_machine)
        for one in self.each(explorer.baseline, HUNTERS):
            must_be_quiet(one.name, one.alarm)
            yield one
        must_be_quiet(machine.NAME, alarm.result())

    def hunts(
        self, mutants: Sequence[Mutant], baselines: Sequence[Baseline], *, minimal: bool
    ) -> Iterator[Hunted]:
        """Each mutant with the hunters that can meet it, as they are done."""
        futures = [
            self._executor.submit(_hunt, mutant.name, explorer.order(baselines, mutant), minimal)
            for mutant in mutants
        ]
        for future in as_completed(futures):
            yield future.result()


def must_be_quiet(hunter: str, alarm: str) -> None:
    """Raises FalseAlarmError if a hunter says anything of the unmodified scheduler."""
    if alarm:
        raise FalseAlarmError(
            f"the unmodified scheduler fails in {hunter}, so the hunt would prove nothing; mend"
            f" that first: {alarm}"
        )


@contextmanager
def pool(processes: int, find: Find) -> Iterator[Pool]:
    """A server and so many processes; `find` tells them, by name, which mutant is meant."""
    with postgres(settings={**SERVER, **_CONNECTIONS}) as server:
        executor = ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), _begin, (server.dsn(), find)
        )
        try:
            yield Pool(executor)
        finally:
            executor.shutdown(cancel_futures=True)
