"""The whole life of tasks as a program in memory, small enough to be read in one sitting.

It says what each statement of the scheduler is to answer and to change when nothing else happens at
the same time. Nothing is shared with the scheduler but the backoff, which has tests of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from scheduler import RetryPolicy
from scheduler.lease import Lease

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LIVE = ("pending", "running")


class Kind(NamedTuple):
    """What the code says of a kind."""

    lease: timedelta
    retry: RetryPolicy


@dataclass
class Task:
    """A row of scheduler.tasks; owner and expiry are set if and only if it runs."""

    kind: str
    due: datetime
    priority: int
    source: str
    key: str | None = None
    until: str | None = None
    counted: bool = False
    schedule: str | None = None
    occurrence: datetime | None = None
    status: str = "pending"
    attempts: int = 0
    token: int = 0
    owner: str | None = None
    expires: datetime | None = None
    error: str | None = None
    finished: datetime | None = None

    @property
    def has_key(self) -> bool:
        """Whether no other task of its kind may have its key now."""
        return (
            (self.until == "started" and self.status == "pending" and self.token == 0)
            or (self.until == "finished" and self.status in LIVE)
            or self.until == "period"
        )


@dataclass
class Schedule:
    """A row of scheduler.schedules."""

    period: timedelta
    missed: str
    on_dead: str
    next_at: datetime
    declared: bool = True
    paused: bool = False


@dataclass
class Source:
    """A row of scheduler.sources."""

    cap: int | None
    outstanding: int = 0


@dataclass
class Model:
    """All there is. Each method is what one call does; `log` has a row for each attempt's end."""

    kinds: Mapping[str, Kind]
    now: datetime
    tasks: dict[int, Task] = field(default_factory=dict)
    log: list[tuple[int, int, str, str]] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    audit: list[tuple[str, int, int, int]] = field(default_factory=list)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    effects: list[tuple[int, int]] = field(default_factory=list)

    # Enqueueing.

    def refuses(self, source: str, count: int) -> bool:
        """Whether the source may not have so many more outstanding."""
        standing = self.sources.get(source, Source(None))
        return standing.cap is not None and standing.outstanding + count > standing.cap

    def enqueue(self, tasks: Mapping[int, Task]) -> None:
        """Add tasks; if their source has a cap they count, to their end."""
        for number, task in tasks.items():
            assert number not in self.tasks
            assert task.key is None or self.standing(task.kind, task.key) is None
            source = self.sources.get(task.source, Source(None))
            if source.cap is not None:
                task.counted = True
                source.outstanding += 1
            self.tasks[number] = task
        self._audit("enqueue", tasks)

    def key(self, text: str, period: timedelta | None) -> str:
        """The key of a period says which period; another is as it was given."""
        if period is None:
            return text
        return f"{text}@{period.total_seconds():.6f}/{(self.now - EPOCH) // period}"

    def standing(self, kind: str, key: str) -> int | None:
        """The task that has a key."""
        for number, task in self.tasks.items():
            if (task.kind, task.key) == (kind, key) and task.has_key:
                return number
        return None

    def cap(self, source: str, most: int | None) -> None:
        """Set how many tasks a source may have outstanding."""
        self.sources.setdefault(source, Source(most)).cap = most

    # Claiming.

    def running(self, kind: str) -> int:
        """How many tasks of a kind run."""
        return sum(task.status == "running" for task in self.tasks.values() if task.kind == kind)

    def claim(self, owner: str, limit: int, limited: Collection[str]) -> dict[Lease, int]:
        """The most urgent first: by due time, a minute earlier for each level. With limits."""
        room = {
            kind: self.limits[kind] - self.running(kind) if kind in self.limits else limit
            for kind in self.kinds
            if kind not in self.limits or kind in limited
        }
        ranked = sorted(
            (task.due - task.priority * MINUTE, number)
            for number, task in self.tasks.items()
            if task.status == "pending" and task.due <= self.now and task.kind in room
        )
        taken: dict[Lease, int] = {}
        for _, number in ranked:
            task = self.tasks[number]
            if len(taken) < limit and room[task.kind] > 0:
                room[task.kind] -= 1
                task.status, task.owner = "running", owner
                task.expires = self.now + self.kinds[task.kind].lease
                task.attempts += 1
                task.token += 1
                taken[Lease(number, task.token, owner)] = task.attempts
        return taken

    def next_due(self) -> timedelta | None:
        """In what time the first waiting task is due that a limit does not hold back."""
        full = {kind for kind, most in self.limits.items() if self.running(kind) >= most}
        dues = [
            task.due
            for task in self.tasks.values()
            if task.status == "pending" and task.kind not in full
        ]
        return min(dues) - self.now if dues else None

    # What holders do. Only a lease that is still held counts.

    def held(self, lease: Lease) -> bool:
        """Whether the lease's task still runs on it."""
        task = self.tasks[lease.task]
        return (task.token, task.owner) == (lease.token, lease.owner)

    def renew(self, leases: Iterable[Lease]) -> dict[Lease, datetime]:
        """Move the expiry."""
        renewed = {}
        for lease in filter(self.held, leases):
            task = self.tasks[lease.task]
            task.expires = renewed[lease] = self.now + self.kinds[task.kind].lease
        return renewed

    def complete(self, leases: Iterable[Lease]) -> set[int]:
        """Over."""
        done = set()
        for lease in filter(self.held, leases):
            self._ended(lease, "completed")
            self._over(lease.task, "completed")
            done.add(lease.task)
        return done

    def fail(self, leases: Iterable[Lease], error: str) -> dict[int, str]:
        """Dead at the cap, else due again after the backoff."""
        became = {}
        for lease in filter(self.held, leases):
            task = self.tasks[lease.task]
            self._ended(lease, "failed")
            task.error = error
            if not self._dies(task):
                retry = self.kinds[task.kind].retry
                task.due = self.now + retry.delay(task.attempts, lease.task, lease.token)
            became[lease.task] = task.status
        return became

    def give_back(
        self, leases: Iterable[Lease], outcome: str, delay: timedelta | None = None
    ) -> set[int]:
        """Release or snooze: the attempt does not count, the token stays."""
        given = set()
        for lease in filter(self.held, leases):
            self._ended(lease, outcome)
            task = self.tasks[lease.task]
            task.attempts -= 1
            if delay is not None:
                task.due = self.now + delay
            given.add(lease.task)
        return given

    def release_claims(self, owners: Collection[str]) -> set[int]:
        """All that a claim got whose reply was lost."""
        theirs = [lease for lease in self.leases() if lease.owner in owners]
        return self.give_back(theirs, "released")

    def leases(self) -> list[Lease]:
        """Those that are held now."""
        return [
            Lease(number, task.token, task.owner)
            for number, task in self.tasks.items()
            if task.owner is not None
        ]

    def look(self, lease: Lease) -> tuple[bool, str | None]:
        """Is it still held, and if not, how did it end?"""
        ends = [outcome for *one, outcome in self.log if tuple(one) == lease]
        return self.held(lease), ends[0] if ends else None

    # Time passes.

    def expired(self) -> dict[int, datetime]:
        """The tasks whose lease is over, and since when."""
        return {
            number: task.expires
            for number, task in self.tasks.items()
            if task.expires is not None and task.expires < self.now
        }

    def reclaim(self, number: int) -> str:
        """Take back one of them: the attempt counts."""
        task = self.tasks[number]
        assert task.owner is not None
        task.error = (
            f"lease expired: worker {task.owner} did not finish attempt {task.attempts} in time"
        )
        self._ended(Lease(number, task.token, task.owner), "reclaimed")
        self._dies(task)
        return task.status

    # What operators do.

    def cancel(self, numbers: Iterable[int]) -> dict[int, str]:
        """Whatever is not over."""
        was = {number: self.tasks[number].status for number in numbers}
        was = {number: status for number, status in was.items() if status in LIVE}
        for number in was:
            task = self.tasks[number]
            if task.owner is not None:
                self._ended(Lease(number, task.token, task.owner), "cancelled")
            self._over(number, "cancelled")
        self._audit("cancel", was)
        return was

    def requeue(self, numbers: Iterable[int]) -> list[int]:
        """Dead tasks, with all attempts again; not those whose key another has, or a newer one."""
        put: list[int] = []
        for number in sorted(numbers, reverse=True):
            task = self.tasks[number]
            if task.status != "dead" or (
                task.until == "finished"
                and task.key is not None
                and self.standing(task.kind, task.key) is not None
            ):
                continue
            task.status, task.attempts, task.due, task.finished = "pending", 0, self.now, None
            put.append(number)
        self._audit("requeue", put)
        return sorted(put)

    def discard(self, numbers: Iterable[int]) -> list[int]:
        """Dead tasks, for good."""
        dead = sorted(number for number in numbers if self.tasks[number].status == "dead")
        for number in dead:
            self._over(number, "discarded")
        self._audit("discard", dead)
        return dead

    # What recurs.

    def declare(self, wanted: Mapping[str, Schedule]) -> None:
        """What is new, declared again or has another period begins now; a pause stays."""
        for name in self.schedules.keys() - wanted.keys():
            self.schedules[name].declared = False
        for name, schedule in wanted.items():
            was = self.schedules.get(name)
            if was is not None:
                schedule.paused = was.paused
                if was.declared and was.period == schedule.period:
                    schedule.next_at = was.next_at
            self.schedules[name] = schedule

    def pause(self, name: str, paused: bool) -> None:
        """Plan nothing; or go on from now."""
        schedule = self.schedules[name]
        if schedule.paused and not paused:
            schedule.next_at = self.now
        schedule.paused = paused

    def plan(self) -> set[tuple[str, datetime]]:
        """The occurrences to plan now, one a schedule at most.

        A schedule waits while one of its own waits or runs, and for a dead one that stops it.
        """
        planned = set()
        for name, schedule in self.schedules.items():
            own = [task for task in self.tasks.values() if task.schedule == name]
            states = Counter(task.status for task in own)
            waits = states["pending"] + states["running"] > 0 or (
                states["dead"] > 0 and schedule.on_dead == "stop"
            )
            if not schedule.declared or schedule.paused or waits or schedule.next_at > self.now:
                continue
            first = EPOCH + -((EPOCH - schedule.next_at) // schedule.period) * schedule.period
            due = []
            while first <= self.now:
                due.append(first)
                first += schedule.period
            wanted = due[-100:] if schedule.missed == "all" else due[-1:]
            if schedule.missed == "skip":
                wanted = [at for at in wanted if self.now - at <= MINUTE]
            schedule.next_at = wanted[0] + schedule.period if wanted else first
            if wanted and wanted[0] not in {task.occurrence for task in own}:
                planned.add((name, wanted[0]))
        return planned

    # What the above share.

    def _ended(self, lease: Lease, outcome: str) -> None:
        """The attempt is over: the task waits again, unless something else is said next."""
        task = self.tasks[lease.task]
        task.status, task.owner, task.expires = "pending", None, None
        self.log.append((*lease, outcome))

    def _dies(self, task: Task) -> bool:
        if task.attempts < self.kinds[task.kind].retry.max_attempts:
            return False
        task.status, task.finished = "dead", self.now
        return True

    def _over(self, number: int, status: str) -> None:
        task = self.tasks[number]
        task.status, task.finished = status, self.now
        if task.counted:
            self.sources[task.source].outstanding -= 1

    def _audit(self, action: str, numbers: Collection[int]) -> None:
        if numbers:
            self.audit.append((action, len(numbers), min(numbers), max(numbers)))
