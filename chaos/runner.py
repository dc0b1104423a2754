"""Runs one scenario: load under faults, heal everything, converge, then tell what happened.

The runner drives the load, the fleet and the faults. What came of it is read from the log and the
journals: nothing that the runner believes decides the verdict.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from chaos.background import Background
from chaos.cluster import process
from chaos.cluster.server import Cluster, Server
from chaos.cluster.standby import Standby
from chaos.faults import Arena, Fault, Injection, Strike
from chaos.faults.tasks import effects_of
from chaos.fleet import Fleet, Seat
from chaos.history import events
from chaos.history.events import History, Phases, Rules
from chaos.history.journal import Journal, clock_offset, read_journal, read_journals
from chaos.history.timelines import Timelines
from chaos.load import Accepted, Load, dealt
from chaos.patience import Patience, harness_dsn
from chaos.plan import AGAIN, Plan, Planned, wanted
from chaos.progress import Progress
from chaos.scenario import Scenario
from chaos.starvation import WORTH_A_NOTE
from chaos.systems import Order, System
from chaos.workload import digest

DATABASE = "chaos"
TICK = 0.02  # seconds between the runner's looks at the world
DRAIN_EVERY = 0.1  # seconds between drains of the log
ENQUEUE_EVERY = 0.1  # seconds between batches of the load
OVERTIME = 1.5  # faults that find no target may take this many times the load's length


@dataclass(slots=True)
class _Active:
    """A fault that was injected, which of the scenario's it is, and when it is to be healed on the
    monotonic clock."""

    index: int
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
    plan: Sequence[Planned] | None = None,
    cluster: Cluster[Any] = process,
) -> History:
    """Run a scenario and return its history; `directory` gets the journals and worker logs.

    `plan` says when to inject what, instead of the plan that the scenario makes of the seed.
    `cluster` runs the database and, if need be, its standby and Toxiproxy.
    `tell` is called many times a second. Raises NotOfferedError if the system has not what the
    scenario asks for, ClusterError if a part cannot be started. All processes and servers are gone
    on return, whatever happened.
    """
    under_test = scenario.system(system_name)
    with ExitStack() as parts:
        durable = any(fault.needs_durability for fault in scenario.faults)
        # As many sessions as the fleet can open, each worker with one a slot and a few more; the
        # rest is for the harness. No more, so that a fault can exhaust them.
        workers = scenario.workers
        sessions = workers.count * (workers.slots + 4) + scenario.clients + 20
        settings = {"max_connections": str(sessions)}
        server: Server = parts.enter_context(cluster.postgres(durable=durable, settings=settings))
        server.create_database(DATABASE)
        under_test.install(server.dsn(DATABASE))
        for source, most in scenario.caps.items():
            under_test.cap(server.dsn(DATABASE), source, most)
        second: Standby | None = None
        if scenario.standby is not None:
            synchronous = scenario.standby == "synchronous"
            second = parts.enter_context(cluster.standby(server, synchronous=synchronous))
        current = _Run(scenario, seed, system_name, under_test, server, second, directory, tell)
        planned = Plan(scenario.plan(seed) if plan is None else plan)
        parts.callback(current.fleet.destroy)
        current.connect(parts, cluster)
        with Background("witness", DRAIN_EVERY, current.keep_draining) as witness:
            current.watch(witness)
            current.load_under_faults(planned)
            current.converge()
            current.fleet.stop()
        current.drain()
        return current.history()


class _Run:
    """One run in progress."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        system_name: str,
        under_test: System,
        server: Server,
        second: Standby | None,
        directory: Path,
        tell: Callable[[Progress], None],
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._system_name = system_name
        self._system = under_test
        self._server = server
        # With a standby, of whichever of the two takes writes.
        self._public_dsn = server.dsn(DATABASE) if second is None else second.pair_dsn(DATABASE)
        self._dsn = harness_dsn(self._public_dsn, "runner")
        self._directory = directory
        self._tell = tell
        self._offset = clock_offset()
        self._log = Timelines(server.dsn(DATABASE), under_test.watched())
        self._faults: list[events.Fault] = []
        self._injections: list[tuple[int, Injection]] = []  # with which fault it is
        self._active: list[_Active] = []
        self._threads: list[Background] = []
        self._loads: list[Load] = []
        self._aiming, self._injecting = Patience(), Patience()
        self._healing, self._witnessing = Patience(), Patience()
        self._lag = 0.0
        self._began = self._healed = self._ended = 0
        self.progress = Progress(scenario.total)
        old = scenario.workers.old
        self.fleet = Fleet(
            system_name,
            scenario.settings(),
            directory,
            old.count if old is not None else 0,
            old.lacks if old is not None else (),
            self._died,
        )
        self._arena = Arena(
            self.fleet,
            server,
            under_test,
            DATABASE,
            next(watched.table for watched in under_test.watched() if watched.key is not None),
            self._leases,
            self._is_last,
            random.Random(f"{seed} targets"),
            self._log,
            second,
        )

    # Set-up.

    def connect(self, parts: ExitStack, cluster: Cluster[Any]) -> None:
        """Open the witness and start the fleet, behind proxies if a fault needs them."""
        self._log.open()
        parts.callback(self._log.close)
        parts.callback(self._heal_all)  # if the run ends early: the witness needs its server
        dsn = self._public_dsn
        seats = range(1, self._scenario.workers.count + 1)
        dsns = [dsn for _ in seats]
        if any(fault.needs_proxy for fault in self._scenario.faults):
            toxi = parts.enter_context(cluster.toxiproxy())
            upstream = f"127.0.0.1:{self._server.port}"
            proxies = {seat: toxi.proxy(f"w{seat}", upstream) for seat in seats}
            self._arena.proxies.update(proxies)
            dsns = [make_conninfo(dsn, host=one.host, port=one.port) for one in proxies.values()]
        self.fleet.start(dsns, any(fault.needs_clocks for fault in self._scenario.faults))
        self._journal = Journal(self._directory / "journals", events.RUNNER)
        parts.callback(self._journal.close)
        self._began = self._now()
        for index, fault in enumerate(self._scenario.faults):
            self._note_fault(index, "plan", "", str(fault.count))
        seconds = self._scenario.load_seconds
        hands = dealt(self._scenario.orders(self._seed), self._scenario.clients)
        accepted = Accepted()
        for name, hand in hands.items():
            journal = Journal(self._directory / "journals", name)
            parts.callback(journal.close)
            self._loads.append(Load(self._system, dsn, hand, seconds, journal, name, accepted))

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
        self._log.drain()
        self.progress.done, self.progress.reclaimed = self._log.done, self._log.reclaimed

    def _leases(self) -> Mapping[str, Sequence[int]] | None:
        with self._aiming:
            return self._system.holders(self._dsn)
        return None

    def _is_last(self, task: int) -> bool:
        row = self._log.rows.get(task)
        return row is not None and row.attempts >= row.max_attempts

    # The phases.

    def load_under_faults(self, plan: Plan) -> None:
        """Inject the plan's faults while the load goes on, and heal all of them."""
        with ExitStack() as clients:
            threads = [Background("load", ENQUEUE_EVERY, load.turn) for load in self._loads]
            for thread in threads:
                self.watch(clients.enter_context(thread))
            self._inject_plan(threads, plan)

    def _inject_plan(self, loads: Sequence[Background], plan: Plan) -> None:
        began = time.monotonic()
        longest = max((fault.lasts for fault in self._scenario.faults), default=0)
        latest = began + self._scenario.load_seconds * OVERTIME + AGAIN * longest
        while any(load.is_alive() for load in loads) or (
            (plan or self._active) and time.monotonic() < latest
        ):
            now = time.monotonic()
            for planned in plan.due(now - began, self.progress.done):
                if self._inject(planned.fault, wanted(planned, now - began)):
                    plan.injected(planned)
            now = time.monotonic()
            for active in [one for one in self._active if one.heal_at <= now]:
                if self._heal(active):
                    plan.once_more(active.index, active.fault, now - began)
            self._tick()
        while self._active:
            self._heal_all()
            self._tick()
        self._healed = self._now()

    def converge(self) -> None:
        """Wait until nothing is left to do, or for as long as the scenario allows."""
        self.progress.phase = "converge"
        began, bound = time.monotonic(), self._scenario.bounds.progress + self._longest_delay()
        # With the machine's lag on top, as the invariants allow it: what is left after less than
        # that proves nothing.
        while time.monotonic() < began + bound + self._lag:
            self._ended = self._now()  # before the look: what comes later is not of this run
            with self._aiming:
                if not self._system.unfinished(self._dsn):
                    break
            self._tick()
        else:
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
        late = time.monotonic() - before - TICK
        self._lag = max(self._lag, late)
        if late * 1e6 >= WORTH_A_NOTE:
            self._journal.note(events.STARVED, 0, 0, "", str(int(late * 1e6)))

    # Faults.

    def _inject(self, index: int, tasks: frozenset[int]) -> bool:
        """Inject a fault; False if there is nothing that it could strike right now."""
        fault = self._scenario.faults[index]
        self._arena.wanted = tasks
        began = self._now()
        strike = None
        with self._injecting:
            strike = fault.inject(self._arena)
        if strike is None:
            return False
        placed = self._now()
        self._faults.append(events.Fault(began, fault.kind, "inject", strike.target, "", index))
        self.progress.injected[fault.kind] += 1
        self._arena.busy.append(strike.place)
        heal_at = time.monotonic() + fault.lasts
        self._active.append(_Active(index, fault, strike, began, placed, heal_at))
        return True

    def _heal_all(self) -> None:
        for active in list(self._active):
            self._heal(active)

    def _heal(self, active: _Active) -> bool:
        """Heal a fault; it stays if the database does not let it be healed now.

        True if it is plain already that it had no effect.
        """
        fault, strike = active.fault, active.strike
        ended = self._now()
        with self._healing:
            seen = strike.heal()
            self._active.remove(active)
            self._arena.busy.remove(strike.place)
            if fault.lasts:
                self._note_fault(active.index, "heal", strike.target, "")
            injection = Injection(strike.target, active.began, active.placed, ended, seen)
            self._injections.append((active.index, injection))
            fault.settle(self._arena, injection)
            self.drain()
            return fault.missed(injection, self._so_far(strike.target))
        return False

    def _so_far(self, target: str) -> History:
        """The history as far as the log shows it, and what the fault's target said itself."""
        phases = Phases(self._began, 0, 0, 0, 0, 0)
        journals = self._directory / "journals"
        # A fault that struck several is told with all their names.
        notes = [
            one for name in target.split() for one in read_journal(journals, name, self._offset)
        ]
        commits, faults = tuple(self._log.commits), tuple(self._faults)
        return History({}, self._rules(), phases, commits, tuple(notes), faults)

    def _note_fault(self, index: int, action: str, target: str, detail: str) -> None:
        kind = self._scenario.faults[index].kind
        self._faults.append(events.Fault(self._now(), kind, action, target, detail, index))

    def _died(self, seat: Seat, code: int | None) -> None:
        detail = "did not end when it was told to" if code is None else str(code)
        self._faults.append(events.Fault(self._now(), "death", "death", seat.name, detail))

    # The telling.

    def _rules(self) -> Rules:
        rules = self._system.rules(self._scenario.settings())
        return replace(rules, caps=dict(self._scenario.caps))

    def history(self) -> History:
        """Everything that happened, once the fleet is stopped and the log is drained."""
        bounds = self._scenario.bounds
        placed = {task: order for load in self._loads for task, order in load.placed.items()}
        payloads = {task: digest(order.job.payload()) for task, order in placed.items()}
        history = History(
            about={
                "scenario": self._scenario.name,
                "seed": self._seed,
                "tasks": self._scenario.total,
                "system": self._system_name,
                "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began / 1e6)),
                "leaseproof": version("leaseproof"),
                "postgresql": self._server.major,
                "psycopg": psycopg.__version__,
                "python": platform.python_version(),
            },
            rules=self._rules(),
            phases=Phases(
                began=self._began,
                healed=self._healed,
                ended=self._ended,
                reclaim_bound=int(bounds.reclaim * 1e6),
                progress_bound=int((bounds.progress + self._longest_delay()) * 1e6),
                lag=int(self._lag * 1e6),
            ),
            commits=tuple(self._log.commits),
            notes=read_journals(self._directory / "journals", self._offset),
            finals=tuple(self._system.finals(self._dsn, payloads)),
            failovers=tuple(self._log.failovers),
            unknown=sum(load.unknown for load in self._loads),
            named=self._scenario.invariants,
        )
        faults = [*self._faults, *self._bites(history), *self._task_faults(history, placed)]
        faults.sort(key=lambda fault: fault.at)
        return replace(history, faults=tuple(faults))

    def _bites(self, history: History) -> Iterator[events.Fault]:
        for index, injection in self._injections:
            fault = self._scenario.faults[index]
            effect = fault.bite(injection, history)
            if effect is not None:
                yield events.Fault(self._now(), fault.kind, "bite", injection.target, effect, index)

    def _task_faults(self, history: History, placed: Mapping[int, Order]) -> Iterator[events.Fault]:
        """The faults that tasks are: injected by the load, all of a kind as one."""
        jobs = {task: order.job for task, order in placed.items()}
        for name, ids, effect in effects_of(jobs, history, self._scenario.workers.lease):
            target = f"{len(ids)} tasks"
            yield events.Fault(self._began, name, "inject", target, "")
            if effect is not None:
                yield events.Fault(self._now(), name, "bite", target, effect)

    def _now(self) -> int:
        """The machine's wall clock in microseconds, as steady as its monotonic clock."""
        return time.monotonic_ns() // 1000 + self._offset
