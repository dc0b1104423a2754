"""Runs one scenario: load under faults, heal everything, converge, then tell what happened.

The runner drives the load, the fleet and the faults. What came of it is read from the log and the
journals: nothing that the runner believes decides the verdict.
"""

from __future__ import annotations

import platform
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from threading import Lock

import psycopg
from psycopg.conninfo import make_conninfo

from chaos.background import Background
from chaos.cluster.postgres import Postgres, postgres
from chaos.cluster.toxiproxy import toxiproxy
from chaos.faults import Arena, Fault, Injection, Strike
from chaos.faults.tasks import TaskFault, faults_of
from chaos.fleet import Fleet, Seat
from chaos.history import events
from chaos.history.events import Commit, History, Phases, Row
from chaos.history.journal import Journal, clock_offset, read_journals
from chaos.history.witness import Witness
from chaos.load import Load
from chaos.patience import Patience, harness_dsn
from chaos.scenario import Scenario
from chaos.systems import System, system

DATABASE = "chaos"
TICK = 0.02  # seconds between the runner's looks at the world
DRAIN_EVERY = 0.1  # seconds between drains of the log
ENQUEUE_EVERY = 0.1  # seconds between batches of the load
_DONE = (events.COMPLETED, events.DEAD)
AGAIN = 2  # how many more times a fault that did not bite may be tried, for each one planned
OVERTIME = 1.5  # faults that find no target may take this many times the load's length


@dataclass(slots=True)
class Progress:
    """How far a run is, for people to look at while it goes on."""

    total: int
    phase: str = "load"
    done: int = 0
    reclaimed: int = 0
    deaths: int = 0  # processes that ended by themselves: poison tasks
    injected: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Active:
    """A fault that was injected, and when it is to be healed on the monotonic clock."""

    fault: Fault
    strike: Strike
    began: int
    placed: int
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
        durable = any(fault.needs_durability for fault in scenario.faults)
        # As many sessions as the fleet can open, each worker with one a slot and a few more; the
        # rest is for the harness. No more, so that a fault can exhaust them.
        workers = scenario.workers
        sessions = workers.count * (workers.slots + 4) + 20
        settings = {"max_connections": str(sessions)}
        server = parts.enter_context(postgres(durable=durable, settings=settings))
        server.create_database(DATABASE)
        under_test = system(system_name)
        under_test.install(server.dsn(DATABASE))
        stage = _Stage(scenario, seed, under_test, server, directory, tell)
        parts.callback(stage.fleet.destroy)
        load = stage.connect(parts)
        with Background("witness", DRAIN_EVERY, stage.keep_draining) as witness:
            stage.watch(witness)
            with Background("load", ENQUEUE_EVERY, load.turn) as loading:
                stage.watch(loading)
                stage.load_under_faults(loading)
            stage.converge()
            stage.fleet.stop()
        stage.drain()
        return stage.history(load)


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
        self._dsn = harness_dsn(server.dsn(DATABASE), "runner")
        self._directory = directory
        self._tell = tell
        self._offset = clock_offset()
        self._witness = Witness(server.dsn(DATABASE), under_test.watched())
        self._draining = Lock()
        self._commits: list[Commit] = []
        self._rows: dict[int, Row | None] = {}  # every task as it was last seen
        self._faults: list[events.Fault] = []
        self._injections: list[tuple[Fault, Injection]] = []
        self._active: list[_Active] = []
        self._threads: list[Background] = []
        self._aiming, self._injecting = Patience(), Patience()
        self._healing, self._witnessing = Patience(), Patience()
        self._lag = 0.0
        self._began = self._healed = self._ended = 0
        self.progress = Progress(scenario.total)
        self.fleet = Fleet(under_test.name, scenario.workers.settings(), directory, self._died)
        self._arena = Arena(
            self.fleet,
            server,
            DATABASE,
            next(watched.table for watched in under_test.watched() if watched.key is not None),
            self._leases,
            self._is_last,
            random.Random(f"{seed} targets"),
        )

    # Set-up.

    def connect(self, parts: ExitStack) -> Load:
        """Open the witness and start the fleet, behind proxies if a fault needs them."""
        self._witness.open()
        parts.callback(self._witness.close)
        parts.callback(self._heal_all)  # if the run ends early: the witness needs its server
        dsn = self._server.dsn(DATABASE)
        seats = range(1, self._scenario.workers.count + 1)
        dsns = [dsn for _ in seats]
        if any(fault.needs_proxy for fault in self._scenario.faults):
            toxi = parts.enter_context(toxiproxy())
            upstream = f"127.0.0.1:{self._server.port}"
            proxies = {seat: toxi.proxy(f"w{seat}", upstream) for seat in seats}
            self._arena.proxies.update(proxies)
            dsns = [make_conninfo(dsn, host=one.host, port=one.port) for one in proxies.values()]
        self.fleet.start(dsns)
        client = Journal(self._directory / "journals", "client")
        parts.callback(client.close)
        self._began = self._now()
        for fault in self._scenario.faults:
            self._note_fault(fault, "plan", "", str(fault.count))
        return Load(
            self._system,
            dsn,
            self._scenario.orders(self._seed),
            self._scenario.load_seconds,
            client,
            self._committed,
        )

    def watch(self, thread: Background) -> None:
        """Let the run end with this thread's error, should it have one."""
        self._threads.append(thread)

    # The log.

    def keep_draining(self) -> bool:
        """Read what was committed since the last time, unless the server is away."""
        with self._witnessing:
            self.drain()
        return True

    def drain(self) -> None:
        """Read all that was committed so far. Raises psycopg.OperationalError if it cannot."""
        self._committed()

    def _committed(self) -> Sequence[int]:
        """Drain, and give the ids of all tasks that the log ever showed."""
        with self._draining:
            try:
                commits = self._witness.drain()
            except psycopg.OperationalError:
                self._witness.reconnect()
                commits = self._witness.drain()
            self._commits += commits
            for commit in commits:
                for ended in commit.ended:
                    self.progress.reclaimed += ended.outcome == "reclaimed"
                for task, row in commit.changes:
                    self._rows[task] = row
                    self.progress.done += row is not None and row.state in _DONE
            return list(self._rows)

    def _leases(self) -> Mapping[str, Sequence[int]]:
        with self._aiming:
            return self._system.holders(self._dsn)
        return {}

    def _is_last(self, task: int) -> bool:
        row = self._rows.get(task)
        return row is not None and row.attempts >= row.max_attempts

    # The phases.

    def load_under_faults(self, load: Background) -> None:
        """Inject the plan's faults while the load goes on, and heal all of them."""
        plan = self._scenario.plan(self._seed)
        began = time.monotonic()
        longest = max((fault.lasts for fault in self._scenario.faults), default=0)
        latest = began + self._scenario.load_seconds * OVERTIME + AGAIN * longest
        again: Counter[int] = Counter()
        while load.is_alive() or ((plan or self._active) and time.monotonic() < latest):
            now = time.monotonic()
            # Of each fault the first that is due: none waits for another that finds no target.
            due = {index: (when, index) for when, index in reversed(plan) if began + when <= now}
            for index, planned in due.items():
                if self._inject(self._scenario.faults[index]):
                    plan.remove(planned)
            for active in [one for one in self._active if one.heal_at <= now]:
                index = self._scenario.faults.index(active.fault)
                if self._heal(active) and again[index] < AGAIN * active.fault.count:
                    # It struck a worker in the moment in which that had nothing to lose: once more,
                    # while there is time. The verdict still wants to see it bite.
                    again[index] += 1
                    plan.append((now - began, index))
            self._tick()
        while self._active:
            self._heal_all()
            self._tick()
        self._healed = self._now()

    def converge(self) -> None:
        """Wait until nothing is left to do, or for as long as the scenario allows."""
        self.progress.phase = "converge"
        deadline = time.monotonic() + self._scenario.bounds.progress + self._longest_delay()
        while time.monotonic() < deadline:
            with self._aiming:
                if not self._system.unfinished(self._dsn):
                    break
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

    def _inject(self, fault: Fault) -> bool:
        """Inject a fault; False if there is nothing that it could strike right now."""
        began = self._now()
        strike = None
        with self._injecting:
            strike = fault.inject(self._arena)
        if strike is None:
            return False
        placed = self._now()
        self._faults.append(events.Fault(began, fault.kind, "inject", strike.target, ""))
        self.progress.injected[fault.kind] += 1
        self._arena.busy.append(strike.place)
        heal_at = time.monotonic() + fault.lasts
        self._active.append(_Active(fault, strike, began, placed, heal_at))
        if not fault.lasts:
            self._heal(self._active[-1])
        return True

    def _heal_all(self) -> None:
        for active in list(self._active):
            self._heal(active)

    def _heal(self, active: _Active) -> bool:
        """Heal a fault; it stays if the database does not let it be healed now.

        True if it lasted and, as far as the log shows by now, had no effect.
        """
        fault, strike = active.fault, active.strike
        ended = self._now()
        with self._healing:
            seen = strike.heal()
            self._active.remove(active)
            self._arena.busy.remove(strike.place)
            if fault.lasts:
                self._note_fault(fault, "heal", strike.target, "")
            injection = Injection(strike.target, active.began, active.placed, ended, seen)
            self._injections.append((fault, injection))
            if fault.lasts:
                self._committed()
                return fault.bite(injection, self._so_far()) is None
        return False

    def _so_far(self) -> History:
        """The history as far as the log shows it, without what the workers say themselves."""
        phases = Phases(self._began, 0, 0, 0, 0, 0)
        rules = self._system.rules(self._scenario.workers.settings())
        return History({}, rules, phases, tuple(self._commits), faults=tuple(self._faults))

    def _note_fault(self, fault: Fault, action: str, target: str, detail: str) -> None:
        self._faults.append(events.Fault(self._now(), fault.kind, action, target, detail))

    def _died(self, seat: Seat, code: int | None) -> None:
        self.progress.deaths += 1
        detail = "did not end when it was told to" if code is None else str(code)
        self._faults.append(events.Fault(self._now(), "death", "death", seat.name, detail))

    # The telling.

    def history(self, load: Load) -> History:
        """Everything that happened, once the fleet is stopped and the log is drained."""
        bounds = self._scenario.bounds
        payloads = {task: self._system.digest(order.job) for task, order in load.placed.items()}
        history = History(
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
            },
            rules=self._system.rules(self._scenario.workers.settings()),
            phases=Phases(
                began=self._began,
                healed=self._healed,
                ended=self._ended,
                reclaim_bound=int(bounds.reclaim * 1e6),
                progress_bound=int((bounds.progress + self._longest_delay()) * 1e6),
                lag=int(self._lag * 1e6),
            ),
            commits=tuple(self._commits),
            notes=read_journals(self._directory / "journals", self._offset),
            finals=tuple(self._system.finals(self._dsn, payloads)),
            unknown=load.unknown,
            named=self._scenario.invariants,
        )
        faults = [*self._faults, *self._bites(history), *self._task_faults(history, load)]
        faults.sort(key=lambda fault: fault.at)
        return replace(history, faults=tuple(faults))

    def _bites(self, history: History) -> Iterator[events.Fault]:
        for fault, injection in self._injections:
            effect = fault.bite(injection, history)
            if effect is not None:
                yield events.Fault(self._now(), fault.kind, "bite", injection.target, effect)

    def _task_faults(self, history: History, load: Load) -> Iterator[events.Fault]:
        """The faults that tasks are: injected by the load, all of a kind as one."""
        tasks: defaultdict[TaskFault, set[int]] = defaultdict(set)
        for task, order in load.placed.items():
            for fault in faults_of(order.job, self._scenario.workers.lease):
                tasks[fault].add(task)
        for fault, ids in tasks.items():
            target = f"{len(ids)} tasks"
            yield events.Fault(self._began, fault.name, "inject", target, "")
            effect = fault.bite(ids, history, self._scenario.workers.lease)
            if effect is not None:
                yield events.Fault(self._now(), fault.name, "bite", target, effect)

    def _now(self) -> int:
        """The machine's wall clock in microseconds, as steady as its monotonic clock."""
        return time.monotonic_ns() // 1000 + self._offset
