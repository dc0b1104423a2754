"""A lawful history of any length, without a database: a queue and its workers, simulated.

The same size gives the same history. It has what makes judging work: claims of several tasks,
renewals, failures, snoozes, dead letters and what operators do with them, keys asked for again,
a limited kind, a capped source, schedules, transactional effects, and workers that are killed or
stopped for longer than their lease and wake up as zombies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from chaos.figures.simulated_log import Told
from chaos.history.events import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DISCARDED,
    PENDING,
    RUNNING,
    Effect,
    Ended,
    History,
    Key,
    Occurrence,
    Phases,
    Policy,
    Recurrence,
    Row,
)
from chaos.invariants.attempts import delay
from chaos.systems.leaseproof import RULES

MS = 1_000  # in microseconds, as all times here
SECOND = 1_000 * MS
NOON = 1_767_268_800 * SECOND  # 2026-01-01 12:00:00 UTC
WORKERS, SLOTS = 8, 4
LEASE = 1 * SECOND
TICK = 100 * MS  # between two looks of the clients, the reclaimers and the operators
BATCH = 12  # tasks that the main client enqueues each tick
FAULTS = ("kill", "pause", "row-lock")
FAULT_EVERY = 8  # ticks
PAUSE = 2 * SECOND
CAP, LIMIT, KEYS = 6, 3, 5
POLICY = Policy(0.1, 2.0, 1.0, 0.5)
SNOOZE = RULES.snooze_delay or 0
LIMITED = "slow"
# What runs: how many of each in a hundred, and how long its handler takes.
KINDS = {
    "quick": (54, 5 * MS),
    "transactional": (20, 10 * MS),
    "flaky": (12, 5 * MS),
    "snoozing": (5, 2 * MS),
    LIMITED: (3, 900 * MS),
    "long": (3, 1600 * MS),
    "failing": (3, 2 * MS),
}
SCHEDULES = {
    "tick-once": Recurrence(SECOND, "once"),
    "tick-all": Recurrence(SECOND, "all"),
}


@dataclass(slots=True)
class _Worker:
    """One process. `held`: the leases that it believes it has, by task and token."""

    seat: int
    incarnation: int = 1
    held: dict[tuple[int, int], Row] = field(default_factory=dict)
    calls: int = 0
    paused: bool = False

    @property
    def name(self) -> str:
        return f"w{self.seat}.{self.incarnation}"


def simulated(events: int) -> History:
    """A history of at least so many events, and few more: changes, ends, effects, notes, faults."""
    return _Queue().lived(events)


class _Queue:
    """The queue, its clients, workers and operators, and everything that they did."""

    def __init__(self) -> None:
        self._draw = random.Random("simulated")
        self._told = Told(NOON)
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._tasks = 0
        self._due: list[tuple[int, int]] = []
        self._occurrences: dict[str, tuple[int, int]] = {}  # each schedule's latest: due, task
        self._workers = [_Worker(seat) for seat in range(1, WORKERS + 1)]
        self._dead: list[int] = []
        self._broken = 0  # faults that are in place
        for name in FAULTS:
            self._told.fault(name, "plan", detail="1")

    def lived(self, events: int) -> History:
        """Load until there are so many events, then let all be done."""
        tick = 0
        healed = None
        while healed is None or self._told.live:
            until = NOON + tick * TICK
            while self._agenda and self._agenda[0][0] <= until:
                self._told.now, _, act = heappop(self._agenda)
                act()
            self._told.now = until
            if self._told.events < events:
                self._enqueue_some()
                self._operate()
                if tick % FAULT_EVERY == FAULT_EVERY // 2:
                    self._break(tick)
            elif healed is None and not self._broken:
                healed = self._told.now
            self._plan_occurrences()
            self._reclaim()
            self._renew()
            self._claim()
            tick += 1
        rules = replace(
            RULES,
            claim_limit=SLOTS,
            limits={LIMITED: LIMIT},
            caps={"capped": CAP},
            schedules=SCHEDULES,
            passed_over=2 * SECOND,
        )
        return self._told.history(
            rules, Phases(NOON, healed, self._told.now, 2 * SECOND, 15 * SECOND, 5 * MS)
        )

    # Clients.

    def _enqueue_some(self) -> None:
        kinds, shares = list(KINDS), [share for share, _ in KINDS.values()]
        rows = [self._row(kind) for kind in self._draw.choices(kinds, shares, k=BATCH)]
        rows += [self._row("quick", source="capped") for _ in range(CAP - self._told.outstanding)]
        self._insert(rows)
        for row in rows:
            self._told.note("client", "acknowledged", row.task, detail=str(self._told.now))
        if self._draw.random() < 0.3:
            self._told.commit([rows[0]._replace(state=CANCELLED)])  # before anyone could claim it
        for number in range(2):
            self._ask_under_key(f"k-{self._draw.randrange(KEYS)}", f"client-{number + 1}")

    def _ask_under_key(self, text: str, client: str) -> None:
        standing = self._told.keys.get(text)
        if standing is None:
            row = self._row("quick", key=Key(text, "finished"))
            self._insert([row])
            self._told.note(client, "keyed", row.task, detail=f"created {self._told.now} {text}")
            self._told.note(client, "acknowledged", row.task, detail=str(self._told.now))
        else:
            self._told.note(client, "keyed", standing, detail=f"standing {self._told.now} {text}")
            self._told.note(client, "acknowledged", standing)

    def _plan_occurrences(self) -> None:
        for name, (every, missed) in SCHEDULES.items():
            latest, task = self._occurrences.get(name, (None, 0))
            if latest is not None and self._told.rows[task].state in (PENDING, RUNNING):
                continue
            at = self._told.now // every * every
            if latest is not None:
                at = latest + every if missed == "all" else max(at, latest)
                if at > self._told.now or at == latest:
                    continue
            row = self._row("quick", occurrence=Occurrence(name, at))
            self._insert([row])
            self._occurrences[name] = (at, row.task)

    def _row(
        self,
        kind: str,
        source: str | None = None,
        key: Key | None = None,
        occurrence: Occurrence | None = None,
    ) -> Row:
        self._tasks += 1
        most = 2 if kind == "failing" else 20
        return Row(
            *(
                self._tasks,
                kind,
                PENDING,
                self._told.now,
                0,
                most,
                0,
                None,
                None,
                None,
                POLICY,
                None,
            ),
            *(source, source is not None, key, occurrence),
        )

    def _insert(self, rows: Sequence[Row]) -> None:
        self._told.commit(rows)
        for row in rows:
            heappush(self._due, (row.due, row.task))

    # Workers.

    def _claim(self) -> None:
        for worker in self._workers:
            free = SLOTS - len(worker.held)
            if worker.paused or not free:
                continue
            taken: list[Row] = []
            passed: list[tuple[int, int]] = []
            limited = self._told.of_kind.get(LIMITED, 0)
            while self._due and len(taken) < free and self._due[0][0] <= self._told.now:
                entry = heappop(self._due)
                row = self._told.rows[entry[1]]
                if row.state != PENDING or row.due != entry[0]:
                    continue  # cancelled meanwhile
                if row.kind == LIMITED and limited >= LIMIT:
                    passed.append(entry)
                    continue
                limited += row.kind == LIMITED
                taken.append(row)
            for entry in passed:
                heappush(self._due, entry)
            if taken:
                self._take(worker, taken)

    def _take(self, worker: _Worker, taken: Sequence[Row]) -> None:
        worker.calls += 1
        owner = f"{worker.name}/{worker.calls}"
        rows = [
            row._replace(
                state=RUNNING,
                attempts=row.attempts + 1,
                token=row.token + 1,
                owner=owner,
                expires=self._told.now + LEASE,
                claimed_at=self._told.now,
            )
            for row in taken
        ]
        self._told.commit(rows)
        for row in rows:
            worker.held[row.task, row.token] = row
            self._told.note(worker.name, "claimed", row.task, row, str(self._told.now + MS), MS)
            self._told.note(worker.name, "started", row.task, row, "", 2 * MS)
            _, takes = KINDS[row.kind]
            takes += self._draw.randrange(2 * MS)
            self._at(self._told.now + 3 * MS + takes, self._finisher(worker, worker.name, row))

    def _finisher(self, worker: _Worker, name: str, row: Row) -> Callable[[], None]:
        def finish() -> None:
            if worker.name != name:
                return  # it is dead
            if worker.paused:
                self._at(self._told.now + TICK // 2, finish)
                return
            self._finish(worker, row)

        return finish

    def _finish(self, worker: _Worker, row: Row) -> None:
        """The handler is left: whatever it does, the fence decides whether it counts."""
        del worker.held[row.task, row.token]
        how = self._how(row)
        works = how == "completed"
        if works and row.kind != "transactional":
            self._told.note(worker.name, "effect", row.task, row)
        self._told.note(worker.name, "finished", row.task, row, how)
        now = self._told.rows[row.task]
        if (now.token, now.owner) != (row.token, row.owner) or now.state != RUNNING:
            self._told.note(worker.name, "refused", row.task, row, how)
            self._told.note(worker.name, "lease-lost", row.task, row, "refused")
            return
        error = "boom" if how == "failed" else None
        effects = [Effect(row.task, row.token)] if works and row.kind == "transactional" else []
        match how:
            case "completed":
                after = now._replace(state=COMPLETED)
            case "snoozed":
                due = self._told.now + SNOOZE
                after = now._replace(state=PENDING, attempts=now.attempts - 1, due=due)
            case _ if now.attempts >= now.max_attempts:
                after = now._replace(state=DEAD, error=error)
            case _:
                wait = round(delay(POLICY, now.attempts, now.task, now.token) * SECOND)
                after = now._replace(state=PENDING, due=self._told.now + wait, error=error)
        self._end(now, after, how, error, effects)

    def _how(self, row: Row) -> str:
        match row.kind:
            case "flaky" if row.attempts == 1:
                return "failed"
            case "failing":
                return "failed"
            case "snoozing" if row.token == 1:
                return "snoozed"
            case _:
                return "completed"

    def _renew(self) -> None:
        for worker in self._workers:
            if worker.paused:
                continue
            old = [
                row
                for held in worker.held.values()
                if (row := self._told.rows[held.task]).owner == held.owner
                and (row.expires or 0) - self._told.now < LEASE * 2 // 3
            ]
            rows = [row._replace(expires=self._told.now + LEASE) for row in old]
            if rows:
                self._told.commit(rows)
            for row in rows:
                self._told.note(worker.name, "renewed", row.task, row, str(row.expires), MS)

    def _reclaim(self) -> None:
        awake = next(worker for worker in self._workers if not worker.paused)
        for row in [self._told.rows[task] for task in sorted(self._told.running)]:
            if (row.expires or 0) >= self._told.now:
                continue
            error = "lease expired"
            dead = row.attempts >= row.max_attempts
            after = row._replace(state=DEAD if dead else PENDING, due=self._told.now, error=error)
            self._end(row, after, "reclaimed", error)
            self._told.note(awake.name, "reclaimed", row.task, row, after.state)

    # Those who break and mend.

    def _break(self, tick: int) -> None:
        """Kill a worker, stop it for longer than its lease, or hold rows locked, in turn."""
        turn = tick // FAULT_EVERY % len(FAULTS)
        fault = FAULTS[turn]
        busy = [worker for worker in self._workers if worker.held and not worker.paused]
        if fault != "row-lock" and not busy:
            return
        worker = self._draw.choice(busy or self._workers)
        target = "server" if fault == "row-lock" else worker.name
        self._told.fault(fault, "inject", target, str(turn))
        if fault == "kill":
            worker.incarnation += 1
            worker.held.clear()
            self._told.fault(fault, "bite", target)
            return
        worker.paused = fault == "pause"
        self._broken += 1

        def mend() -> None:
            worker.paused = False
            self._broken -= 1
            self._told.fault(fault, "heal", target)
            self._told.fault(fault, "bite", target)

        self._at(self._told.now + PAUSE, mend)

    def _operate(self) -> None:
        """An operator puts the oldest dead letter back to work, or gives it up."""
        if not self._dead:
            return
        row = self._told.rows[self._dead.pop(0)]
        if row.task % 2 and row.token < 2 * row.max_attempts:
            self._insert([row._replace(state=PENDING, attempts=0, due=self._told.now)])
        else:
            self._told.commit([row._replace(state=DISCARDED)])

    # What is told.

    def _end(
        self, held: Row, after: Row, how: str, error: str | None, effects: Sequence[Effect] = ()
    ) -> None:
        assert held.owner is not None
        assert held.claimed_at is not None
        ended = Ended(
            *(held.task, held.token, held.owner, held.attempts, held.claimed_at, self._told.now),
            *(how, error),
        )
        after = after._replace(owner=None, expires=None, claimed_at=None)
        self._told.commit([after], [ended], effects)
        if after.state == PENDING:
            heappush(self._due, (after.due, after.task))
        elif after.state == DEAD:
            self._dead.append(after.task)

    def _at(self, when: int, act: Callable[[], None]) -> None:
        self._planned += 1
        heappush(self._agenda, (when, self._planned, act))
