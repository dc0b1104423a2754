"""Runs one scenario: load under faults, heal everything, converge, then tell what happened.

The runner drives the load, the fleet and the faults. What came of it is read from the log and the
journals: nothing that the runner believes decides the verdict.
"""

from __future__ import annotations

import math
import platform
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from chaos.background import Background
from chaos.cluster.postgres import Postgres, postgres
from chaos.cluster.toxiproxy import Proxy, toxiproxy
from chaos.faults import Arena, Injection
from chaos.fleet import Fleet, Seat
from chaos.history import events
from chaos.history.events import Commit, History, Phases
from chaos.history.journal import Journal, clock_offset, read_journals
from chaos.history.witness import Witness
from chaos.scenario import Scenario
from chaos.systems import Order, System, system

TICK = 0.02  # seconds between the runner's looks at the world
DRAIN_EVERY = 0.1  # seconds between drains of the log
ENQUEUE_EVERY = 0.1  # seconds between batches of the load
OVERTIME = 1.5  # faults that find no target may take this many times the load's length


@dataclass(slots=True)
class Progress:
    """How far a run is, for people to look at while it goes on."""

    total: int
    phase: str = "load"
    enqueued: int = 0
    done: int = 0
    reclaimed: int = 0
    deaths: int = 0  # processes that ended by themselves: poison tasks
    injected: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Active:
    """A fault that was injected, and when it is to be healed on the monotonic clock."""

    index: int
    seat: Seat
    target: str
    began: int
    heal_at: float


def run(
    scenario: Scenario,
    *,
    seed: int,
    system_name: str,
    directory: Path,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> History:
    """Run a scenario and return its history; `directory` gets the journals and worker logs.

    `tell` is called many times a second. Raises ClusterError if a part cannot be started. All
    processes and servers are gone on return, whatever happened.
    """
    with ExitStack() as parts:
        server = parts.enter_context(postgres())
        server.create_database("chaos")
        under_test = system(system_name)
        under_test.install(server.dsn("chaos"))
        stage = _Stage(scenario, seed, under_test, server, directory, tell)
        parts.callback(stage.fleet.destroy)
        stage.connect(parts)
        with Background("witness", DRAIN_EVERY, stage.drain) as witness:
            stage.watch(witness)
            with Background("load", ENQUEUE_EVERY, stage.enqueue) as load:
                stage.watch(load)
                stage.load_under_faults(load)
            stage.converge()
            stage.fleet.stop()
        stage.drain()
        return stage.history()


class _Stage:
    """One run in progress."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        under_test: System,
        server: Postgres,
        directory: Path,
        tell: Callable[[Progress], None],
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._system = under_test
        self._server = server
        self._dsn = server.dsn("chaos")
        self._directory = directory
        self._tell = tell
        self._draw = random.Random(f"{seed} targets")
        self._offset = clock_offset()
        self._witness = Witness(self._dsn, under_test.watched())
        self._orders = scenario.orders(seed)
        self._client: Journal | None = None
        self._payloads: dict[int, str] = {}
        self._commits: list[Commit] = []
        self._faults: list[events.Fault] = []
        self._injections: list[tuple[int, Injection]] = []
        self._active: list[_Active] = []
        self._threads: list[Background] = []
        self._proxies: dict[int, Proxy] = {}
        self._crashes: list[str] = []
        self._lag = 0.0
        self._began = self._healed = self._ended = 0
        self.progress = Progress(scenario.total)
        self.fleet = Fleet(under_test.name, scenario.workers.settings(), directory, self._died)

    # Set-up.

    def connect(self, parts: ExitStack) -> None:
        """Open the witness and start the fleet, behind proxies if a fault needs them."""
        self._witness.open()
        parts.callback(self._witness.close)
        seats = range(1, self._scenario.workers.count + 1)
        dsns = [self._dsn for _ in seats]
        if any(fault.needs_proxy for fault in self._scenario.faults):
            toxi = parts.enter_context(toxiproxy())
            upstream = f"127.0.0.1:{self._server.port}"
            self._proxies = {seat: toxi.proxy(f"w{seat}", upstream) for seat in seats}
            dsns = [
                make_conninfo(self._dsn, host=proxy.host, port=proxy.port)
                for proxy in self._proxies.values()
            ]
        self.fleet.start(dsns)
        self._client = Journal(self._directory / "journals", "client")
        parts.callback(self._client.close)
        self._began = self._now()

    def watch(self, thread: Background) -> None:
        """Let the run end with this thread's error, should it have one."""
        self._threads.append(thread)

    # What the background threads repeat.

    def drain(self) -> bool:
        """Read what was committed since the last time."""
        commits = self._witness.drain()
        self._commits += commits
        for commit in commits:
            for ended in commit.ended:
                self.progress.reclaimed += ended.outcome == "reclaimed"
            for change in commit.changes:
                if change.row is not None and change.row.state in (events.COMPLETED, events.DEAD):
                    self.progress.done += 1
        return True

    def enqueue(self) -> bool:
        """Enqueue the next batch of the load; False when there is none left."""
        share = (self._now() - self._began) / 1e6 / self._scenario.load_seconds
        batch = self._orders[self.progress.enqueued : math.ceil(share * len(self._orders))]
        if batch:
            self._acknowledge(batch, self._system.enqueue(self._dsn, batch))
        return self.progress.enqueued < len(self._orders)

    def _acknowledge(self, batch: list[Order], tasks: list[int]) -> None:
        for order, task in zip(batch, tasks, strict=True):
            if self._client is not None:
                self._client.note("acknowledged", task, 0, "")
            self._payloads[task] = self._system.digest(order.job)
        self.progress.enqueued += len(batch)

    # The phases.

    def load_under_faults(self, load: Background) -> None:
        """Inject the plan's faults while the load goes on, and heal all of them."""
        plan = self._scenario.plan(self._seed)
        began = time.monotonic()
        latest = began + self._scenario.load_seconds * OVERTIME
        while load.is_alive() or ((plan or self._active) and time.monotonic() < latest):
            now = time.monotonic()
            if plan and began + plan[0][0] <= now and self._inject(plan[0][1], now):
                plan.pop(0)
            for active in [one for one in self._active if one.heal_at <= now]:
                self._heal(active)
            self._tick()
        for active in list(self._active):
            self._heal(active)
        self._healed = self._now()

    def converge(self) -> None:
        """Wait until nothing is left to do, or for as long as the scenario allows."""
        self.progress.phase = "converge"
        deadline = time.monotonic() + self._scenario.bounds.progress + self._longest_delay()
        while self._system.unfinished(self._dsn) and time.monotonic() < deadline:
            self._tick()
        self._ended = self._now()
        self.progress.phase = "judge"
        self._tell(self.progress)

    def _longest_delay(self) -> float:
        return max(group.delay for group in self._scenario.tasks)

    def _tick(self) -> None:
        """One beat: keep the fleet whole, measure how late the machine lets us be, tell."""
        for thread in self._threads:
            thread.check()
        self.fleet.tend()
        self._tell(self.progress)
        before = time.monotonic()
        time.sleep(TICK)
        self._lag = max(self._lag, time.monotonic() - before - TICK)

    # Faults.

    def _inject(self, index: int, now: float) -> bool:
        """Inject a fault into a worker that holds a lease; False if there is none right now."""
        fault = self._scenario.faults[index]
        busy = {active.seat.number for active in self._active}
        seats = [
            seat
            for name in sorted(self._system.holders(self._dsn))
            if (seat := self.fleet.find(name)) is not None and seat.number not in busy
        ]
        if not seats:
            return False
        seat = self._draw.choice(seats)
        active = _Active(index, seat, seat.name, self._now(), now + fault.lasts)
        fault.inject(self._arena(), seat)
        self._note_fault(index, "inject", active.target, "")
        self.progress.injected[fault.kind] += 1
        self._active.append(active)
        if not fault.lasts:
            self._heal(active)
        return True

    def _heal(self, active: _Active) -> None:
        fault = self._scenario.faults[active.index]
        self._active.remove(active)
        if fault.lasts:
            fault.heal(self._arena(), active.seat)
            self._note_fault(active.index, "heal", active.target, "")
        self._injections.append((active.index, Injection(active.target, active.began, self._now())))

    def _arena(self) -> Arena:
        return Arena(self.fleet, self._proxies)

    def _note_fault(self, index: int, action: str, target: str, detail: str) -> None:
        kind = self._scenario.faults[index].kind
        self._faults.append(events.Fault(self._now(), kind, action, target, detail))

    def _died(self, seat: Seat, code: int) -> None:
        self.progress.deaths += 1
        if code != -signal.SIGKILL:  # poison tasks kill their worker so
            self._crashes.append(f"{seat.name} ended with {code}")

    # The telling.

    def history(self) -> History:
        """Everything that happened, once the fleet is stopped and the log is drained."""
        commits = tuple(self._commits)
        for index, injection in self._injections:
            effect = self._scenario.faults[index].bite(injection, commits)
            if effect is not None:
                self._note_fault(index, "bite", injection.target, effect)
        bounds = self._scenario.bounds
        return History(
            about={
                "scenario": self._scenario.name,
                "seed": self._seed,
                "tasks": self._scenario.total,
                "system": self._system.name,
                "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began / 1e6)),
                "leaseproof": version("leaseproof"),
                "postgresql": self._server.binaries.major,
                "psycopg": psycopg.__version__,
                "python": platform.python_version(),
                "crashes": self._crashes,
            },
            rules=self._system.rules,
            phases=Phases(
                began=self._began,
                healed=self._healed,
                ended=self._ended,
                reclaim_bound=int(bounds.reclaim * 1e6),
                progress_bound=int((bounds.progress + self._longest_delay()) * 1e6),
                lag=int(self._lag * 1e6),
            ),
            commits=commits,
            notes=read_journals(self._directory / "journals", self._offset),
            faults=tuple(sorted(self._faults, key=lambda fault: fault.at)),
            finals=tuple(self._system.finals(self._dsn, self._payloads)),
            named=self._scenario.invariants,
        )

    def _now(self) -> int:
        """The machine's wall clock in microseconds, as steady as its monotonic clock."""
        return time.monotonic_ns() // 1000 + self._offset
