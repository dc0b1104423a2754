"""The worker: claims due tasks, keeps their leases alive, runs them and writes down how they ended.

Each thread has one job and none waits for another: the dispatcher (the caller of `run`) claims,
writes outcomes and does the upkeep on one connection; the keeper renews leases on a second; slots
run handlers, async ones in an event loop that has a thread of its own; the watchdog ends what is
over its time.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple

import psycopg
from psycopg import Connection

from scheduler import checks, finish
from scheduler.access import LONGEST_KIND
from scheduler.dispatch import (
    at_limit,
    claim,
    complete_and_claim,
    declare_limits,
    log_claim,
    new_owner,
    next_due,
    release_claims,
)
from scheduler.errors import DatabaseUnreachableError
from scheduler.events import event, one_line
from scheduler.floors import Floors, find_floors
from scheduler.isolation import refuse_isolated_worker
from scheduler.keeper import PAUSE, Keeper
from scheduler.kinds import Registry
from scheduler.lease import Attempt, Lease, rank
from scheduler.migrate import check_schema
from scheduler.outcome import Outcome
from scheduler.pace import Fixed, Pace
from scheduler.roles import needing, refused
from scheduler.schedules import declare_schedules
from scheduler.session import (
    HandlerConnection,
    check_session,
    connect_handlers,
    connect_worker,
)
from scheduler.settle import Complete, log_losses, settle
from scheduler.slots import Slots
from scheduler.upkeep import SHORTEST_IDLE, Upkeep
from scheduler.watchdog import Observe, ObserveClaim, ObserveLimited, Watchdog, guarded
from scheduler.wire import WorkerConnection

log = logging.getLogger("scheduler")

SHORTEST_POLL = timedelta(milliseconds=10)
RETRY_LOCKED = 0.02  # seconds until an outcome whose row was locked is written again, at first
RETRY_LOCKED_LONGEST = 1.0  # and at last, twice as long each time that nothing could be written
MOST_PAYLOADS = 8 * 2**20  # characters in one claim's payloads; after more, claims are smaller
MOST_LOCKED = 1000  # such outcomes: with more the worker claims nothing
LONGEST_CALL = 30.0  # seconds that a call to the database may take, however long the leases are
AFTER_GRACE = 2.0  # seconds that interrupted handlers get to say how they ended


class _Ask(NamedTuple):
    """One claim. room: how many more tasks this worker may hold; limit: how many it asks for;
    bound: the most that a claim was to ask for before this one."""

    owner: str
    sent: float
    room: int
    limit: int
    bound: int


class Worker:
    """Runs the tasks of one registry until stopped.

    queues: serve only the kinds in these queues; all of the registry's by default.
    slots: how many handlers run at once.
    prefetch: how many more tasks may be claimed and wait here; 0 leaves them to other workers.
        None, the default: as many as the slots finish in 50 ms, judged by what they did of late,
        490 at most; once one has waited for 250 ms all that wait are given back, and at once if it
        is the last attempt, which is not to be lost by waiting. Nothing in advance if a kind's
        tasks are tried only once, or a kind has a limit, whose places are not for what waits.
    poll: how long an idle worker waits before it asks again.
    reclaim_every: how often it looks for leases that expired, whoever held them.
    grace: how long handlers may go on after `stop`.
    give_up: how long the database may be away before `run` raises.
    pooled: whether the dsn leads to a transaction pooler, such as PgBouncer: then nothing is left
        in a session, `poll` alone wakes the worker, and a transactional handler must not count on
        a session either: `set local` at most, no temporary tables, LISTEN or session locks. Each
        one that runs keeps a session of the pool, which needs more of them than run at once.
    observe: told of every step of every attempt; called from several threads, must not block.
    observe_claim: told of every claim, how many tasks it took and how many seconds; the same holds.
    observe_limited: told of every claim that found nothing to take while tasks were due of kinds at
        their limit, and of which kinds; the same holds.
    """

    def __init__(
        self,
        registry: Registry,
        dsn: str,
        *,
        name: str | None = None,
        queues: Collection[str] | None = None,
        slots: int = 10,
        prefetch: int | None = None,
        poll: timedelta = timedelta(seconds=1),
        reclaim_every: timedelta = timedelta(seconds=5),
        grace: timedelta = timedelta(seconds=30),
        give_up: timedelta = timedelta(minutes=5),
        pooled: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        observe: Observe = lambda what, lease, detail: None,
        observe_claim: ObserveClaim = lambda tasks, seconds: None,
        observe_limited: ObserveLimited = lambda kinds: None,
    ) -> None:
        checks.of_type("registry", registry, Registry)
        checks.dsn(dsn)
        if queues is not None:
            queues = checks.texts("a queue", queues, LONGEST_KIND)
        served = [kind for kind in registry if queues is None or kind.queue in queues]
        if not served:
            where = "" if queues is None else f" in the queues {', '.join(sorted(queues))}"
            raise ValueError(
                f"the registry has no kinds{where}: a worker would have nothing to run"
            )
        checks.slots(slots, prefetch)
        checks.waits(SHORTEST_POLL, poll=poll, reclaim_every=reclaim_every)
        checks.waits(timedelta(0), grace=grace, give_up=give_up)
        checks.worker_name(name)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._registry = registry
        self._dsn = dsn
        self._pooled = pooled
        self._queues = sorted({kind.queue for kind in served})
        self._leases = {kind.name: kind.lease for kind in served}
        self._limits = {kind.name: kind.limit for kind in served}
        self._limited = [name for name, limit in self._limits.items() if limit is not None]
        self._shortest = min(self._leases.values())
        if prefetch is None and any(
            kind.retry.max_attempts == 1 or kind.limit is not None for kind in served
        ):
            prefetch = 0
        self._ahead = Pace(slots, monotonic) if prefetch is None else Fixed(prefetch)
        self._holds_at_most = slots + self._ahead.most
        self._poll = poll.total_seconds()
        self._grace = grace.total_seconds()
        self._give_up = give_up.total_seconds()
        self._monotonic = monotonic
        self._observe = observe = guarded(observe)
        self._observe_claim = guarded(observe_claim)
        self._observe_limited = guarded(observe_limited)
        lease = self._shortest.total_seconds()
        self._call_limit = min(max(1.0, lease / 3), LONGEST_CALL)
        self._tick = max(0.02, min(1.0, lease / 20))

        # The dispatcher sleeps on its inbox. A SimpleQueue may be put to from a signal handler.
        self._inbox: SimpleQueue[tuple[Attempt, Outcome] | None] = SimpleQueue()
        self._stopping = False
        self._unwritten: list[tuple[Attempt, Outcome]] = []
        self._locked: list[tuple[Attempt, Outcome]] = []  # to be written again at `_locked_until`
        self._locked_until = 0.0
        self._locked_wait = RETRY_LOCKED
        self._claim_bound = self._holds_at_most  # tasks that a claim asks for, at most
        self._floors = Floors(poll, monotonic)
        self._doubtful: dict[str, float] = {}  # owners of claims without a reply, until when to ask
        self._watchdog = Watchdog(self._tick, monotonic, observe)
        self._upkeep = Upkeep(
            self.name,
            self._bounded,
            monotonic,
            observe,
            self._poll,
            reclaim_every.total_seconds(),
            pooled,
        )
        self._keeper = Keeper(
            self.name,
            self._connect,
            self._watchdog,
            monotonic,
            observe,
            self._wake,
            [] if pooled else self._queues,
            self._tick,
            self._call_limit,
        )
        self._slots = Slots(
            slots,
            registry,
            self._connect_handlers,
            pooled,
            self._watchdog,
            monotonic,
            observe,
            self._report,
        )

    def stop(self) -> None:
        """Ask the worker to drain and return from `run`. Safe from any thread or signal handler."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Work until `stop`. Raises SchemaError, SessionError, AccessError or
        DatabaseUnreachableError if it cannot."""
        refuse_isolated_worker()
        self._watchdog.start()  # first, since it bounds what follows
        started = False
        try:
            connection = self._start()
            started = True
            self._work(connection)
        finally:
            self._watchdog.stop()
            self._watchdog.join()
            if started:
                # After the watchdog, which may have a handler in the event loop to interrupt.
                self._slots.close()

    def _work(self, connection: WorkerConnection) -> None:
        self._keeper.start()
        self._slots.start()
        event(
            log,
            logging.INFO,
            "worker-started",
            worker=self.name,
            slots=self._slots.count,
            queues=",".join(self._queues),
            kinds=",".join(sorted(self._leases)),
        )
        try:
            self._dispatch(connection)
        finally:
            self._keeper.stop()
            self._slots.drain()
            self._keeper.join(self._call_limit + 1)
            event(log, logging.INFO, "worker-stopped", worker=self.name)

    def _start(self) -> WorkerConnection:
        """The first session, on a database that this package can use."""
        try:
            connection = self._connect()
            try:
                # It holds no lease yet that a slow answer could cost.
                with (
                    needing(connection, "scheduler_worker"),
                    self._watchdog.limited(connection, LONGEST_CALL),
                ):
                    check_session(connection, self._shortest, self._pooled)
                    check_schema(connection)
                    declare_limits(connection, self._limits)
                    declare_schedules(connection, self._registry)
            except BaseException:
                connection.close()
                raise
        except psycopg.OperationalError as error:
            raise DatabaseUnreachableError(
                f"cannot connect to the database: {str(error).strip()}"
            ) from error
        return connection

    def _connect(self) -> WorkerConnection:
        return connect_worker(self._dsn, self.name, self._shortest, self._pooled)

    def _connect_handlers(self) -> HandlerConnection:
        return connect_handlers(self._dsn, self.name, self._shortest, self._pooled)

    def _bounded(self, connection: WorkerConnection) -> AbstractContextManager[None]:
        """Around a call to the database: it may take so long and no longer."""
        return self._watchdog.limited(connection, self._call_limit)

    def _wake(self) -> None:
        self._inbox.put(None)

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        self._inbox.put((attempt, outcome))

    def _dispatch(self, connection: WorkerConnection) -> None:
        failing_since: float | None = None
        draining_until: float | None = None
        while True:
            try:
                if connection.closed:
                    connection = self._connect()
                    self._floors.clear()  # this may be another server, which has lost claims
                while draining_until is None or not self._drained(draining_until):
                    if self._stopping and draining_until is None:
                        draining_until = self._monotonic() + self._grace
                        self._slots.drain()
                    self._sleep(self._turn(connection))
                    failing_since = None
                self._locked_until = 0.0
                self._write(connection)
                connection.close()
                return
            except psycopg.errors.InsufficientPrivilege as error:
                # No new session would change that, and waiting would not tell anybody.
                role = connection.info.user
                connection.close()
                raise refused(role, "scheduler_worker", error) from error
            except psycopg.Error as error:
                # Whatever went wrong, a new session is the way out: the server may have restarted,
                # or this may be a former primary that is read-only now.
                text = one_line(error)
                event(log, logging.WARNING, "session-lost", worker=self.name, error=text)
                if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                    self._keeper.move()
                connection.close()
                # From the first failure on, not from the last success: this process may itself
                # have stood still in between, and has asked nobody yet.
                now = self._monotonic()
                failing_since = now if failing_since is None else failing_since
                away = now - failing_since
                if away > self._give_up or (self._stopping and away > self._grace):
                    raise DatabaseUnreachableError(
                        f"the database has not answered for {away:.0f} s: {str(error).strip()}"
                    ) from error
                self._sleep(PAUSE)

    def _turn(self, connection: WorkerConnection) -> float:
        """One round of the dispatcher's work; returns for how long it may sleep."""
        # Without its keeper or watchdog this worker would hold tasks that it no longer looks after.
        for broken in (self._keeper.error, self._watchdog.error):
            if broken is not None:
                raise broken
        # Whoever stops claims nothing; what a lost claim took is given back before more is asked
        # for; limited kinds need a transaction of their own; upkeep comes before a claim, which
        # then finds what was taken back and planned; and so does a look for what lies below floors.
        apart = (
            self._stopping
            or self._doubtful
            or self._limited
            or self._upkeep.due()
            or self._floors.old()
        )
        if self._unwritten and not apart:
            idle = self._write_and_claim(connection)
        else:
            self._write(connection)
            if self._doubtful:  # before upkeep, which may fail: others wait for these
                self._release_doubtful(connection)
            self._upkeep.do(connection, self._stopping)
            idle = self._poll if self._stopping else self._claim(connection)
        if self._stopping:
            # To see the end of the grace in time; at once if that need not be waited for.
            idle = self._tick if self._watchdog.count() else 0.0
        else:
            # Also for new plans, which come better now than when a task has just arrived.
            idle = min(idle, self._upkeep.due_in(), self._give_back_late())
        if self._locked:
            idle = min(idle, self._locked_until - self._monotonic())
        return idle

    def _give_back_late(self) -> float:
        """Withdraw what waits for a slot once the first has waited too long; returns in how many
        seconds that may be. It was claimed in advance by this worker's own choice."""
        late_in = self._ahead.late_in(self._slots.waiting())
        if late_in is None:
            return self._poll
        if late_in <= 0:
            self._slots.withdraw()
            self._ahead.given_back()
            return 0.0
        return late_in

    def _sleep(self, seconds: float) -> None:
        """Wait for news, at most so long, and take all of it in."""
        try:
            news = self._inbox.get(timeout=max(seconds, 0.001))
            while True:
                if news is not None:
                    self._unwritten.append(news)
                    if news[1].what not in ("released", "lost"):
                        self._ahead.ended(news[1].seconds)
                news = self._inbox.get_nowait()
        except Empty:
            return

    def _claim(self, connection: WorkerConnection) -> float:
        """Claim what there is room for; returns for how long there is nothing more to claim."""
        if self._floors.old():
            looked = self._monotonic()
            with self._bounded(connection):
                floors = find_floors(connection, self._leases, self._floors.age)
            self._floors.replace(floors, looked)
        ask = self._ask(ending=0)
        if ask is None:
            return self._poll  # an attempt that ends wakes us
        with self._bounded(connection):
            attempts = claim(
                connection,
                ask.owner,
                self._leases,
                ask.limit,
                ask.sent,
                self._limited,
                self._floors.known(),
            )
        return self._take(connection, ask, attempts)

    def _write_and_claim(self, connection: WorkerConnection) -> float:
        """Write down how attempts ended, and claim with the same commit if any was completed;
        returns for how long there is nothing more to claim."""
        # Of some the end is known to be written, and they are held no longer: their write failed.
        ending = sum(self._watchdog.holds(attempt.lease) for attempt, _ in self._unwritten)
        ask = self._ask(ending)
        if ask is None:
            self._write(connection)
            return self._claim(connection)
        claimed: list[list[Attempt]] = []

        def complete(connection: Connection, leases: Sequence[Lease]) -> set[int]:
            if claimed:  # however often completions are written, this claims once
                return finish.complete(connection, leases)
            completed, attempts = complete_and_claim(
                connection,
                leases,
                ask.owner,
                self._leases,
                ask.limit,
                ask.sent,
                self._floors.known(),
            )
            claimed.append(attempts)
            return completed

        # Should this fail after the claim, the claim stays doubtful, and is given back.
        self._write(connection, complete)
        if claimed:
            return self._take(connection, ask, claimed[0])
        # No completion went through with it, so nothing was taken.
        del self._doubtful[ask.owner]
        self._claim_bound = ask.bound
        return self._claim(connection)

    def _ask(self, ending: int) -> _Ask | None:
        """What to ask the database for now; None if there is no room. ending: how many attempts
        have ended, and are held no longer once that is written."""
        # What is over and cannot be written yet takes no slot: whoever locks one source's record
        # for long must not keep this worker from the tasks of all others.
        held = self._watchdog.count() - len(self._locked) - ending
        room = self._slots.count + self._ahead.ahead() - held
        if room <= 0 or len(self._locked) >= MOST_LOCKED:
            return None
        owner, sent = new_owner(self.name), self._monotonic()
        self._doubtful[owner] = sent + max(self._leases.values()).total_seconds()
        # A reply that is too large for the line, or for the time a call may take, never arrives:
        # after one that did not, the next is of one task, and then of ever more again.
        bound, self._claim_bound = self._claim_bound, 1
        return _Ask(owner, sent, room, min(room, bound), bound)

    def _take(self, connection: WorkerConnection, ask: _Ask, attempts: Sequence[Attempt]) -> float:
        """Hand what was claimed to the slots; returns for how long there is nothing more."""
        self._claim_bound = min(max(ask.bound, 2 * ask.limit), self._holds_at_most)
        del self._doubtful[ask.owner]
        if (size := sum(len(attempt.payload) for attempt in attempts)) > MOST_PAYLOADS:
            self._claim_bound = max(1, ask.limit * MOST_PAYLOADS // size)
        free = max(0, self._slots.count - (self._watchdog.count() - len(self._locked)))
        now = self._monotonic()
        in_time = [attempt for attempt in attempts if attempt.believed_until > now]
        self._watchdog.hold(in_time)
        below = bool(self._floors.known())  # whether there may be some that this claim passed
        self._floors.claimed(attempts, ask.sent)
        self._observe_claim(len(attempts), now - ask.sent)
        log_claim(attempts)
        for attempt in attempts:
            detail = f"{attempt.kind} {attempt.number} {attempt.late:.6f}"
            self._observe("claimed", attempt.lease, detail)
        in_time.sort(key=rank)  # the statement returns them in no order
        kept = self._ahead.kept(in_time, free)
        for attempt in kept:
            self._slots.submit(attempt)
        self._ahead.submitted(len(kept))
        if len(kept) < len(attempts):
            here = {attempt.lease for attempt in kept}
            back = [attempt for attempt in attempts if attempt.lease not in here]
            self._unwritten += [(attempt, Outcome("released")) for attempt in back]
            self._ahead.given_back()
        if len(in_time) < len(attempts):
            # This process stood still between its clock and the database: there the lease may be
            # fresh, and what nobody started can be had by others at once.
            late = len(attempts) - len(in_time)
            event(log, logging.WARNING, "claim-too-late", worker=self.name, tasks=late)
            self._write(connection)
            self._claim_bound = 1  # perhaps they were too many to come in time
            return PAUSE
        if len(kept) < len(attempts):
            return 0.0
        if attempts:
            # Fewer than asked for does not mean that no more are due: others may have had them
            # locked. Look again as soon as there is room.
            return 0.0 if len(attempts) < ask.room else self._poll
        # What is enqueued from here on is announced, and the keeper has been listening since
        # before this claim: between "nothing due" and going to sleep there is no gap. (Through a
        # pooler nothing is announced, and a poll finds it.)
        with self._bounded(connection):
            due = next_due(connection, self._leases, self._limited)
            full = at_limit(connection, self._limited) if self._limited else []
        if full:
            self._observe_limited(full)
        if due is not None and due <= 0 and below:
            return 0.0
        return self._poll if due is None else min(self._poll, max(due, SHORTEST_IDLE))

    def _release_doubtful(self, connection: WorkerConnection) -> None:
        with self._bounded(connection):
            released = release_claims(connection, list(self._doubtful))
        if released:
            count = len(released)
            event(log, logging.INFO, "lost-claims-released", worker=self.name, tasks=count)
        now = self._monotonic()
        self._doubtful = {owner: end for owner, end in self._doubtful.items() if end > now}

    def _write(self, connection: WorkerConnection, complete: Complete = finish.complete) -> None:
        """Write down how attempts ended; what was neither written nor refused stays for later."""
        log_losses(self._watchdog)
        again = set[Lease]()
        if self._locked and self._monotonic() >= self._locked_until:
            again = {attempt.lease for attempt, _ in self._locked}
            self._unwritten, self._locked = self._unwritten + self._locked, []
        if not self._unwritten:
            return
        with self._bounded(connection):
            locked = settle(connection, self._unwritten, self._watchdog, self._observe, complete)
        self._unwritten = []
        if again:
            all_locked = again <= {attempt.lease for attempt, _ in locked}
            self._locked_wait = (
                min(2 * self._locked_wait, RETRY_LOCKED_LONGEST) if all_locked else RETRY_LOCKED
            )
        if locked and not self._locked:  # those that wait already are not put off by new ones
            self._locked_until = self._monotonic() + self._locked_wait
        self._locked += locked
        for attempt, _ in locked:
            attempt.payload = ""  # its handler is over, and there may be many, for long

    def _drained(self, until: float) -> bool:
        """Whether nothing is held any more, or the grace is over and handlers were interrupted."""
        if self._watchdog.count() == 0:
            return True
        now = self._monotonic()
        if now >= until:
            self._watchdog.interrupt_all()
        if now >= until + AFTER_GRACE:
            for attempt in self._watchdog.held():
                # A plain function cannot be stopped. Its lease runs out after this process is gone.
                event(log, logging.WARNING, "abandoned", worker=self.name, task=attempt.task)
            return True
        return False
