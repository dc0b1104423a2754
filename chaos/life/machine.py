"""The state machine: any sequence of calls on a real database and on the model, and after each the
whole of both is compared.

What Hypothesis prints of a failure (`state = TaskLife()`, ...) runs as it stands after
`from chaos.life.machine import TaskLife`: without a database the machine starts a server.
"""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chaos.life.model import Model, Schedule, Source, Task
from chaos.life.world import (
    KEYS,
    KINDS,
    ME,
    MISSED,
    OTHER,
    SECOND,
    WORK,
    World,
    jumps,
    kinds,
    names,
    own_world,
    picks,
    priorities,
    read,
    registry,
    seconds,
    some,
    sources,
)
from scheduler import (
    CapReachedError,
    Priority,
    Unique,
    cancel,
    discard,
    enqueue_many,
    enqueue_unique,
    requeue,
)
from scheduler.access import limit_source
from scheduler.dispatch import claim, declare_limits, new_owner, next_due, release_claims
from scheduler.finish import begin_attempt, complete, complete_and_commit, fail, release, snooze
from scheduler.lease import Lease, reclaim, renew, second_look
from scheduler.recurring import OnDead
from scheduler.schedules import declare_schedules, pause_schedules, plan_due, resume_schedules


class TaskLife(RuleBasedStateMachine):
    """Two truths: the real database and the model."""

    world: ClassVar[World | None] = None  # that all examples share
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        TaskLife.world = world = TaskLife.world or own_world()
        world.reset()
        self.db, self.clock = world
        self.acting_as = world.acting_as
        self.model = Model(KINDS, self.clock.now)
        self.leases: list[Lease] = []  # all there ever were: the live, the crashed and the zombies
        self.asked: list[tuple[str, str, str, int, str]] = []  # under keys
        self.lost: list[str] = []  # the owners of claims whose reply was lost

    @initialize(most=st.sampled_from([None, 5]))
    def begin(self, most: int | None) -> None:
        """With work to do, perhaps from before there were caps."""
        for source in (ME, OTHER):
            self.enqueue("work", 0, 1, 1, source)
            if most is not None:
                self.cap(source, most)
        self.claim(1, 0, False)

    # What clients do.

    @rule(
        kind=kinds,
        delay=seconds,
        priority=priorities,
        count=st.integers(1, 3),
        source=sources,
    )
    def enqueue(self, kind: str, delay: int, priority: int, count: int, source: str) -> None:
        wait, level = delay * SECOND, Priority(priority)
        refused = False
        numbers: list[int] = []
        with self.acting_as(source):
            try:
                numbers = enqueue_many(self.db, WORK[kind], [1] * count, delay=wait, priority=level)
            except CapReachedError:
                refused = True
        assert refused == self.model.refuses(source, count)
        if not refused:
            assert len(numbers) == count
            due = self.model.now + wait
            self.model.enqueue({number: Task(kind, due, priority, source) for number in numbers})

    @rule(
        kind=kinds,
        key=st.sampled_from("xxy"),
        until=st.sampled_from(sorted(KEYS)),
        delay=seconds,
        source=sources,
    )
    def enqueue_unique(self, kind: str, key: str, until: str, delay: int, source: str) -> None:
        self.asked.append((kind, key, until, delay, source))
        period, wait = KEYS[until], delay * SECOND
        scope: Any = period or until
        text = self.model.key(key, period)
        standing = self.model.standing(kind, text)
        answer = None
        with self.acting_as(source):
            try:
                answer = enqueue_unique(self.db, WORK[kind], 1, Unique(key, scope), delay=wait)
            except CapReachedError:
                assert self.model.refuses(source, 1)
        if standing is not None:
            assert answer == (standing, False)
        elif answer is not None:
            assert answer.created
            assert not self.model.refuses(source, 1)
            due, until = self.model.now + wait, "period" if period else until
            self.model.enqueue({answer.task: Task(kind, due, 1, source, text, until)})

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def ask_again(self, pick: int) -> None:
        """As a client does that got no reply."""
        self.enqueue_unique(*self.asked[pick % len(self.asked)])

    @rule(
        kind=kinds,
        until=st.sampled_from(sorted(KEYS)),
        what=st.sampled_from(["cancel", "give back", "fail"]),
    )
    def a_key_between_two_requests(self, kind: str, until: str, what: str) -> None:
        """Whose task is cancelled, or claimed and not completed; and is put back if it is dead."""
        self.enqueue_unique(kind, "y", until, 0, ME)
        number = self.model.standing(kind, self.model.key("y", KEYS[until]))
        if number is not None and what == "cancel":
            assert cancel(self.db, [number]) == self.model.cancel([number])
        elif what != "cancel":
            self.claim(3, 3, False)
            if what == "give back":
                self.shut_down()
            else:
                self.fail(list(range(1, 10)), "no")
        self.enqueue_unique(kind, "y", until, 0, ME)
        dead = [task for task in self.model.tasks if self.model.tasks[task].status == "dead"]
        assert requeue(self.db, dead) == self.model.requeue(dead)

    # What workers do.

    @rule(limit=st.integers(1, 3), limited=st.integers(0, 3), reply_lost=st.booleans())
    def claim(self, limit: int, limited: int, reply_lost: bool) -> None:
        """`limited`: whose limits are taken hold of, as bits."""
        with_limits = [kind for bit, kind in enumerate(KINDS) if limited >> bit & 1]
        owner = new_owner("worker")
        leases = {name: kind.lease for name, kind in KINDS.items()}
        attempts = claim(self.db, owner, leases, limit, 0.0, with_limits)
        expected = self.model.claim(owner, limit, with_limits)
        assert {attempt.lease: attempt.number for attempt in attempts} == expected
        for attempt in attempts:
            task = self.model.tasks[attempt.task]
            assert (attempt.kind, attempt.due) == (task.kind, task.due)
            assert (attempt.schedule, attempt.occurrence) == (task.schedule, task.occurrence)
        if reply_lost:
            self.lost.append(owner)
        else:
            self.leases += expected

    @precondition(lambda self: self.lost)
    @rule(pick=picks)
    def give_back_a_claim_without_reply(self, pick: int) -> None:
        owners = [self.lost[-1 - pick % len(self.lost)]]
        assert set(release_claims(self.db, owners)) == self.model.release_claims(owners)

    # Every write may come from any lease there ever was; only one that is still held may count.

    def pick(self, numbers: list[int]) -> list[Lease]:
        """Of four, three that are held, if there are any."""
        held = [lease for lease in self.leases if self.model.held(lease)]
        pools = [(held if held and number % 4 else self.leases) for number in numbers]
        leases = (pool[n % len(pool)] for n, pool in zip(numbers, pools, strict=True))
        return list(dict.fromkeys(leases))

    @precondition(lambda self: self.leases)
    @rule(numbers=some)
    def complete(self, numbers: list[int]) -> None:
        leases = self.pick(numbers)
        assert complete(self.db, leases) == self.model.complete(leases)

    @precondition(lambda self: self.leases)
    @rule(number=picks, begins=st.booleans())
    def complete_in_a_transaction(self, number: int, begins: bool) -> None:
        """With an effect; and, as a handler that commits by itself, without the mark."""
        [lease] = self.pick([number])
        try:
            if begins:
                begin_attempt(self.db, lease, SECOND)
            else:
                self.db.execute("begin")
            self.db.execute("insert into effects values (%s, %s)", lease[:2])
            complete_and_commit(self.db, lease)
            refused = None
        except psycopg.DatabaseError as error:
            refused = error.sqlstate
            self.db.execute("rollback")
        if not begins:
            assert refused == "LP008"
        elif self.model.complete([lease]):
            assert refused is None
            self.model.effects.append(lease[:2])
        else:
            assert refused == "LP001"

    @precondition(lambda self: self.leases)
    @rule(numbers=some, error=st.sampled_from(["no", "never"]))
    def fail(self, numbers: list[int], error: str) -> None:
        leases = self.pick(numbers)
        assert fail(self.db, leases, [error] * len(leases)) == self.model.fail(leases, error)

    @precondition(lambda self: self.leases)
    @rule(numbers=some, delay=seconds)
    def snooze(self, numbers: list[int], delay: int) -> None:
        leases, put_off = self.pick(numbers), delay * SECOND
        expected = self.model.give_back(leases, "snoozed", put_off)
        assert snooze(self.db, leases, [put_off] * len(leases)) == expected

    @precondition(lambda self: self.leases)
    @rule(numbers=some)
    def release(self, numbers: list[int]) -> None:
        leases = self.pick(numbers)
        assert release(self.db, leases) == self.model.give_back(leases, "released")

    @precondition(lambda self: self.leases)
    @rule()
    def shut_down(self) -> None:
        """A worker that stops gives back all it holds."""
        held = [lease for lease in self.leases if self.model.held(lease)]
        assert release(self.db, held) == self.model.give_back(held, "released")

    @precondition(lambda self: self.leases)
    @rule(numbers=some)
    def renew(self, numbers: list[int]) -> None:
        self.renew_all(self.pick(numbers))

    def renew_all(self, leases: list[Lease]) -> None:
        """Each for the length that leases of its kind have."""
        lengths = [KINDS[self.model.tasks[lease.task].kind].lease for lease in leases]
        assert renew(self.db, leases, lengths) == self.model.renew(leases)

    @precondition(lambda self: not all(map(self.model.held, self.leases)))
    @rule(pick=picks)
    def a_zombie_writes(self, pick: int) -> None:
        """Everything it can, preferably while another runs its task."""
        lost = [lease for lease in self.leases if not self.model.held(lease)]
        taken = [lease for lease in lost if self.model.tasks[lease.task].status == "running"]
        pool = taken if taken and pick % 4 else lost
        lease = pool[pick % len(pool)]
        assert complete(self.db, [lease]) == release(self.db, [lease]) == set()
        assert snooze(self.db, [lease], [SECOND]) == set()
        assert fail(self.db, [lease], ["late"]) == {}
        assert renew(self.db, [lease], [SECOND]) == {}

    @rule()
    def look(self) -> None:
        """At every lease there ever was, and at what comes next."""
        looks = second_look(self.db, self.leases)
        assert {lease: tuple(found) for lease, found in looks.items()} == {
            lease: self.model.look(lease) for lease in self.leases
        }
        due = self.model.next_due()
        leases = {name: kind.lease for name, kind in KINDS.items()}
        found = next_due(self.db, leases, list(KINDS))
        assert found == (None if due is None else due.total_seconds())

    # Time. A crash is no step: its lease is never used again, and time goes on.

    @rule(by=seconds | jumps)
    def advance(self, by: int) -> None:
        self.model.now = self.clock.advance(by * SECOND)

    @rule(limit=st.sampled_from([1, 1_000]))
    def reclaim(self, limit: int) -> None:
        expired = self.model.expired()
        taken = reclaim(self.db, limit)
        numbers = {each.lease.task for each in taken}
        assert len(numbers) == min(limit, len(expired))
        left = [since for number, since in expired.items() if number not in numbers]
        assert all(expired[number] <= since for number in numbers for since in left)
        for each in taken:
            task = self.model.tasks[each.lease.task]
            assert (each.lease.token, each.lease.owner) == (task.token, task.owner)
            assert each.status == self.model.reclaim(each.lease.task)

    @rule()
    def hold_on(self) -> None:
        """Renewed before it is over, a lease is held for longer than its first length."""
        self.claim(3, 3, False)
        self.advance(29)
        self.renew_all([lease for lease in self.leases if self.model.held(lease)])
        self.advance(29)
        self.reclaim(1_000)

    @rule()
    def take_over(self) -> None:
        """Every holder crashes or sleeps past its lease, and another worker claims: zombies."""
        self.advance(61)
        self.reclaim(1_000)
        self.claim(3, 3, False)

    # What recurs.

    @rule(
        period=st.sampled_from([60, 90]),
        on_dead=st.sampled_from(["stop", "continue"]),
        left_out=st.sampled_from(["", *sorted(MISSED)]),
    )
    def declare(self, period: int, on_dead: OnDead, left_out: str) -> None:
        declared = registry(period, on_dead, left_out)
        declare_schedules(self.db, declared)
        self.model.declare(
            {
                name: Schedule(period * SECOND, MISSED[name], on_dead, self.model.now)
                for name in declared.schedules
            }
        )

    @precondition(lambda self: self.model.schedules)
    @rule()
    def plan(self) -> None:
        expected = self.model.plan()
        before = max(self.model.tasks, default=0)
        plan_due(self.db, 10)
        rows = self.db.execute(
            "select id, schedule, occurrence from scheduler.tasks where id > %s", [before]
        ).fetchall()
        assert sorted((name, at) for _, name, at in rows) == sorted(expected)
        for number, name, at in rows:
            task = Task("rest", at, 1, ME, schedule=name, occurrence=at)
            self.model.tasks[number] = task  # it does not count against a cap

    @rule(name=names, paused=st.booleans())
    def pause_or_resume(self, name: str, paused: bool) -> None:
        names = (pause_schedules if paused else resume_schedules)(self.db, [name])
        assert names == ([name] if name in self.model.schedules else [])
        if names:
            self.model.pause(name, paused)

    # What operators do.

    @rule(source=sources, most=st.sampled_from([None, 0, 2, 5]))
    def cap(self, source: str, most: int | None) -> None:
        limit_source(self.db, source, most)
        self.model.cap(source, most)

    @rule(kind=kinds, most=st.sampled_from([None, 1, 2]))
    def limit(self, kind: str, most: int | None) -> None:
        declare_limits(self.db, {kind: most})
        self.model.limits.pop(kind, None)
        if most is not None:
            self.model.limits[kind] = most

    def choose(self, numbers: list[int], *statuses: str) -> list[int]:
        """Tasks: of four, three with these statuses, if there are any."""
        tasks = sorted(
            self.model.tasks, key=lambda task: self.model.tasks[task].status not in statuses
        )
        wanted = sum(task.status in statuses for task in self.model.tasks.values())
        ends = [(wanted if wanted and number % 4 else len(tasks)) for number in numbers]
        chosen = (tasks[number % end] for number, end in zip(numbers, ends, strict=True))
        return list(dict.fromkeys(chosen))

    @precondition(lambda self: self.model.tasks)
    @rule(numbers=some)
    def cancel(self, numbers: list[int]) -> None:
        tasks = self.choose(numbers, "pending", "running")
        assert cancel(self.db, tasks) == self.model.cancel(tasks)

    @precondition(lambda self: self.model.tasks)
    @rule(numbers=some)
    def requeue(self, numbers: list[int]) -> None:
        tasks = self.choose(numbers, "dead")
        assert requeue(self.db, tasks) == self.model.requeue(tasks)

    @precondition(lambda self: self.model.tasks)
    @rule(numbers=some)
    def discard(self, numbers: list[int]) -> None:
        tasks = self.choose(numbers, "dead")
        assert discard(self.db, tasks) == self.model.discard(tasks)

    @invariant()
    def the_database_is_the_model(self) -> None:
        TaskLife.steps += 1
        tasks, log, caps, schedules, limits, effects, audit = read(self.db)
        model = self.model
        assert {number: Task(*columns) for number, *columns in tasks} == model.tasks
        assert sorted(log) == sorted(model.log)
        assert {name: Source(*columns) for name, *columns in caps} == model.sources
        assert {
            name: Schedule(period * SECOND, *columns) for name, period, *columns in schedules
        } == model.schedules
        assert dict(limits) == model.limits
        assert sorted(effects) == sorted(model.effects)
        assert audit == model.audit
