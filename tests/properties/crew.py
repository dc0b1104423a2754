"""Real worker processes that do one piece of work, set up differently from run to run.

Their processes come from fork servers that all runs share: starting one takes a second, a run of
quick tasks less. A clock is loaded when a process starts, so each worker whose clock is wrong has a
fork server of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from chaos.cluster.faketime import Clock
from chaos.cluster.postgres import Postgres
from chaos.cluster.toxiproxy import Proxy, Toxiproxy
from chaos.forkserver import ForkServer
from chaos.history.events import worker_of
from chaos.history.journal import clock_offset, read_journals
from chaos.systems import Order, WorkerSettings, system
from chaos.testing import database
from tests.properties.outcomes import LONG_WORK, Outcome, observed
from tests.waiting import wait_for

TEMPLATE = "laws_template"
# Seconds. None must be lost because a machine is busy: that would be an attempt more. And a third
# of it, after which it is renewed, must be shorter than what HELD tasks take.
LEASE = 5.0
FINISHED = 60.0  # seconds within which all is done, however the work is set up
_SYSTEM = system("leaseproof")


class Reading(NamedTuple):
    """What a worker's wall clock says: it is so many seconds ahead, if negative behind, and `then`
    so many, once some of the work is done; and it runs at a rate."""

    seconds: float = 0
    rate: float = 1
    then: float = 0


RIGHT = Reading()
AHEAD, BEHIND = Reading(3600, then=3600), Reading(-3600, then=-3600)
FORWARD, BACK, DRIFTS = Reading(then=3600), Reading(3600, then=-3600), Reading(rate=1.5)


@dataclass(frozen=True, slots=True)
class Setup:
    """All that must not matter.

    clocks: one a worker, so this is also how many there are. slots, prefetch: as in `Worker`; a
    claim takes as many tasks at most as both together. delay, jitter: milliseconds by which the
    network delays each reply to a worker, give or take.
    """

    clocks: tuple[Reading, ...] = (RIGHT,)
    slots: int = 1
    prefetch: int = 0
    delay: int = 0
    jitter: int = 0


PLAIN = Setup()


class Evidence(NamedTuple):
    """What of the set-up was felt: how many workers had attempts, and how many of these one claim
    took at most; by how many seconds clocks were wrong at claims, from behind to ahead; how many
    seconds the reply to a claim took at most."""

    workers: int
    claim: int
    behind: float
    ahead: float
    reply: float


class Ran(NamedTuple):
    """A run's outcomes, and what of its set-up was felt."""

    outcomes: list[Outcome]
    evidence: Evidence


@dataclass(slots=True)
class _Run:
    """One run in progress. pids: the processes of its workers, and who forked each."""

    setup: Setup
    dsn: str
    directory: Path
    proxies: list[Proxy] = field(default_factory=list)
    clocks: list[tuple[Reading, Clock]] = field(default_factory=list)
    pids: dict[int, ForkServer] = field(default_factory=dict)

    def spawn(self, number: int, server: ForkServer, system_name: str) -> None:
        """Start a worker."""
        dsn = self.dsn
        if self.proxies:
            proxy = self.proxies[number]
            dsn = make_conninfo(dsn, host=proxy.host, port=proxy.port)
        settings = WorkerSettings(self.setup.slots, self.setup.prefetch, LEASE, 0.05, 0.2, 5.0)
        pid = server.spawn(
            {
                "system_name": system_name,
                "dsn": dsn,
                "name": f"w{number}",
                "settings": asdict(settings),
                "directory": str(self.directory),
            }
        )
        self.pids[pid] = server

    def do(self, work: Sequence[Order], within: float) -> None:
        """Enqueue the work, wait until it is done or its time is over, and cancel the rest."""
        count = len(self.pids)
        wait_for(lambda: self._started() == count, f"{count} workers")
        put_off = [order.job.text for order in work if order.delay]
        first, second = work[::2], work[1::2]
        deadline = time.monotonic() + within
        with psycopg.connect(self.dsn, autocommit=True) as session:
            self._enqueue(first)
            _wait_until_left(len(first) // 2, put_off, session, deadline)
            for reading, clock in self.clocks:
                clock.set(reading.then, reading.rate)
            self._enqueue(second)
            _wait_until_left(0, put_off, session, deadline)
            late = session.execute(
                "select id from scheduler.tasks where payload ->> 'text' = any(%s)", [put_off]
            ).fetchall()
        _SYSTEM.operate(self.dsn, "cancel", [task for (task,) in late])
        self._ask_for_keyed(work)  # a task has its key, whatever became of it

    def _enqueue(self, work: Sequence[Order]) -> None:
        """All in one transaction, but for those under a key."""
        _SYSTEM.enqueue(self.dsn, [order for order in work if order.key is None])
        self._ask_for_keyed(work)

    def _ask_for_keyed(self, work: Sequence[Order]) -> None:
        for order in work:
            if order.key is not None:
                _SYSTEM.enqueue_under_key(self.dsn, order, keep=True)

    def _started(self) -> int:
        """How many workers have said that they are up."""
        logs = (self.directory / "workers").iterdir()
        return sum("worker-started" in log.read_text() for log in logs)

    def stop(self) -> None:
        """Tell the workers to stop, and see them do so."""
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)  # not collected yet, so the pid is still this process's
        assert set(self._codes()) == {0}

    def kill(self) -> None:
        """End whatever is left."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        self._codes()

    def _codes(self) -> list[int]:
        """The exit codes of all workers, once they have ended."""
        codes = []

        def all_ended() -> bool:
            for server in list(self.pids.values()):
                for pid, code in server.collect().items():
                    del self.pids[pid]
                    codes.append(code)
            return not self.pids

        wait_for(all_ended, "the end of the workers")
        return codes

    def evidence(self) -> Evidence:
        """What of the set-up was felt."""
        with psycopg.connect(self.dsn) as session:
            attempts = session.execute(
                "select task_id, lease_token, lease_owner, claimed_at from scheduler.run_log"
            ).fetchall()
        owners = Counter(owner for _, _, owner, _ in attempts)
        committed = {(task, token): at.timestamp() for task, token, _, at in attempts}
        notes = read_journals(self.directory / "journals", clock_offset())
        claimed = [note for note in notes if note.what == "claimed"]
        wrong = [(int(note.detail) - note.at) / 1e6 for note in claimed]
        replies = [
            note.at / 1e6 - committed[note.task, note.token]
            for note in claimed
            if (note.task, note.token) in committed
        ]
        return Evidence(
            workers=len({worker_of(owner) for owner in owners}),
            claim=max(owners.values(), default=0),
            behind=min(wrong, default=0),
            ahead=max(wrong, default=0),
            reply=max(replies, default=0),
        )


def _wait_until_left(most: int, but: Sequence[str], session: Connection, deadline: float) -> None:
    """Wait until so few tasks are waiting or running, besides those of these names, or until it is
    too late."""
    query = (
        "select count(*) from scheduler.tasks"
        " where status in ('pending', 'running') and payload ->> 'text' <> all(%s)"
    )
    while time.monotonic() < deadline:
        [(left,)] = session.execute(query, [list(but)]).fetchall()
        if left <= most:
            return
        time.sleep(0.02)


@dataclass(slots=True)
class Crew:
    """Runs work in new databases, by new processes. For one thread at a time."""

    server: Postgres
    directory: Path
    _runs: int = 0
    _plain: list[ForkServer] = field(default_factory=list)  # one, once it was needed
    _clocked: dict[int, tuple[Clock, ForkServer]] = field(default_factory=dict)  # by worker

    def install(self) -> None:
        """Make the database that those of all runs are copies of."""
        self.server.create_database(TEMPLATE)
        _SYSTEM.install(self.server.dsn(TEMPLATE))

    def close(self) -> None:
        """End whatever is left."""
        for server in (*self._plain, *(server for _, server in self._clocked.values())):
            server.close()
        self.server.drop_database(TEMPLATE)

    def run(
        self,
        setup: Setup,
        toxiproxy: Toxiproxy | None = None,
        *,
        system_name: str = "leaseproof",
        work: Sequence[Order] = LONG_WORK,
        within: float = FINISHED,
    ) -> Ran:
        """Do the work so, with workers of this system, and cancel in the end what is put off.

        What is not done `within` so many seconds is stated as it stands. A set-up with a delay
        needs a Toxiproxy.
        """
        self._runs += 1
        directory = self.directory / f"run-{self._runs}"
        for name in ("journals", "workers"):
            (directory / name).mkdir(parents=True)
        with database(self.server, TEMPLATE) as dsn, ExitStack() as parts:
            run = _Run(setup, dsn, directory)
            if setup.delay:
                assert toxiproxy is not None
                for number in range(len(setup.clocks)):
                    name = f"run-{self._runs}-{number}"
                    run.proxies.append(toxiproxy.proxy(name, f"127.0.0.1:{self.server.port}"))
                    parts.callback(run.proxies[-1].remove)
                    run.proxies[-1].latency(setup.delay, setup.jitter)
            parts.callback(run.kill)
            self._prepare(setup)
            for number, reading in enumerate(setup.clocks):
                if reading == RIGHT:
                    [server] = self._plain
                else:
                    clock, server = self._clocked[number]
                    clock.set(reading.seconds, reading.rate)
                    run.clocks.append((reading, clock))
                run.spawn(number, server, system_name)
            run.do(work, within)
            run.stop()
            return Ran(observed(dsn, directory / "journals"), run.evidence())

    def _prepare(self, setup: Setup) -> None:
        """Start the fork servers that are needed and not there yet, all at once."""
        new = []
        if RIGHT in setup.clocks and not self._plain:
            new.append(ForkServer.start())
            self._plain.append(new[0])
        for number, reading in enumerate(setup.clocks):
            if reading != RIGHT and number not in self._clocked:
                clock = Clock(self.directory / f"clock-{number}")
                new.append(ForkServer.start(environment=clock.environment))
                self._clocked[number] = clock, new[-1]
        for server in new:
            server.ready()
