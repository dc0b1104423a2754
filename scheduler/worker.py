"""The worker: claims due tasks, keeps their leases alive, runs them and writes down how they ended.

Four kinds of thread, each with one job and none waiting for another: the dispatcher (the caller of
`run`) claims, reclaims and writes outcomes on one connection; the keeper renews leases on a second;
slots run handlers; the watchdog ends what is over its time.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Event, Thread

import psycopg
from psycopg import Connection

from scheduler import finish
from scheduler.dispatch import claim, new_owner, next_due, release_claims
from scheduler.errors import DatabaseUnreachableError
from scheduler.kinds import Registry
from scheduler.lease import Attempt, Lease, reclaim, renew, second_look
from scheduler.migrate import MONTHS_AHEAD, check_schema
from scheduler.session import connect_worker
from scheduler.slots import Outcome, Slots
from scheduler.watchdog import Observe, Watchdog

log = logging.getLogger("scheduler")

SHORTEST_POLL = timedelta(milliseconds=10)
LONGEST_WAIT = timedelta(days=1)
RECLAIM_LIMIT = 500
PAUSE = 0.5  # seconds between attempts to reconnect
SHORTEST_IDLE = 0.01  # seconds between claims while all that is due is locked by others
RETRY_LOCKED = 0.02  # seconds until an outcome whose row was locked is written again
LONGEST_CALL = 30.0  # seconds that a call to the database may take, however long the leases are
UPKEEP_AGAIN = 60.0  # seconds until the run log is looked at again when others were using it
UPKEEP_EVERY = 6 * 3600.0  # seconds between looks at the run log's partitions
AFTER_GRACE = 2.0  # seconds that interrupted handlers get to say how they ended


class Worker:
    """Runs the tasks of one registry until stopped.

    queues: serve only the kinds in these queues; all of the registry's by default.
    slots: how many handlers run at once.
    prefetch: how many more tasks may be claimed and wait here; 0 leaves them to other workers.
    poll: how long an idle worker waits before it asks again.
    reclaim_every: how often it looks for leases that expired, whoever held them.
    grace: how long handlers may go on after `stop`.
    give_up: how long the database may be away before `run` raises.
    observe: told of every step of every attempt; called from several threads, must not block.
    """

    def __init__(
        self,
        registry: Registry,
        dsn: str,
        *,
        name: str | None = None,
        queues: Collection[str] | None = None,
        slots: int = 10,
        prefetch: int = 0,
        poll: timedelta = timedelta(seconds=1),
        reclaim_every: timedelta = timedelta(seconds=5),
        grace: timedelta = timedelta(seconds=30),
        give_up: timedelta = timedelta(minutes=5),
        monotonic: Callable[[], float] = time.monotonic,
        observe: Observe = lambda what, lease, detail: None,
    ) -> None:
        served = [kind for kind in registry if queues is None or kind.queue in queues]
        if not served:
            where = "" if queues is None else f" in the queues {', '.join(sorted(queues))}"
            raise ValueError(
                f"the registry has no kinds{where}: a worker would have nothing to run"
            )
        if not 1 <= slots <= 10_000 or not 0 <= prefetch <= 10_000:
            raise ValueError("slots must be from 1 to 10000 and prefetch from 0 to 10000")
        for what, least, value in (
            ("poll", SHORTEST_POLL, poll),
            ("reclaim_every", SHORTEST_POLL, reclaim_every),
            ("grace", timedelta(0), grace),
            ("give_up", timedelta(0), give_up),
        ):
            if not isinstance(value, timedelta):
                raise TypeError(f"{what} must be a timedelta, not {value!r}")
            if not least <= value <= LONGEST_WAIT:
                raise ValueError(f"{what} must be from {least} to {LONGEST_WAIT}, not {value}")
        if name is not None and not name.isprintable():
            raise ValueError(f"a worker's name must be printable text, not {name!r}")
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._dsn = dsn
        self._queues = sorted({kind.queue for kind in served})
        self._leases = {kind.name: kind.lease for kind in served}
        self._shortest = min(self._leases.values())
        self._room = slots + prefetch
        self._poll = poll.total_seconds()
        self._reclaim_every = reclaim_every.total_seconds()
        self._grace = grace.total_seconds()
        self._give_up = give_up.total_seconds()
        self._monotonic = monotonic
        self._observe = observe = _guarded(observe)
        lease = self._shortest.total_seconds()
        self._call_limit = min(max(1.0, lease / 3), LONGEST_CALL)
        self._tick = max(0.02, min(1.0, lease / 20))

        # The dispatcher sleeps on its inbox. A SimpleQueue may be put to from a signal handler.
        self._inbox: SimpleQueue[tuple[Attempt, Outcome] | None] = SimpleQueue()
        self._stopping = False
        self._over = Event()
        self._keeper_error: Exception | None = None
        self._unwritten: list[tuple[Attempt, Outcome]] = []
        self._doubtful: dict[str, float] = {}  # owners of claims without a reply, until when to ask
        self._next_reclaim = 0.0
        self._next_upkeep = 0.0
        self._watchdog = Watchdog(self._tick, monotonic, observe)
        self._slots = Slots(
            slots, registry, self._connect, self._watchdog, monotonic, observe, self._report
        )

    def stop(self) -> None:
        """Ask the worker to drain and return from `run`. Safe from any thread or signal handler."""
        self._stopping = True
        self._inbox.put(None)

    def run(self) -> None:
        """Work until `stop`. Raises SchemaError or DatabaseUnreachableError if it cannot."""
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

    def _work(self, connection: Connection) -> None:
        keeper = Thread(target=self._keep, name="scheduler-keeper", daemon=True)
        keeper.start()
        self._slots.start()
        log.info(
            "worker %s started, slots=%d queues=%s kinds=%s",
            self.name,
            self._slots.count,
            ",".join(self._queues),
            ",".join(sorted(self._leases)),
        )
        try:
            self._dispatch(connection)
        finally:
            self._over.set()
            self._slots.drain()
            keeper.join(self._call_limit + 1)
            log.info("worker %s stopped", self.name)

    def _start(self) -> Connection:
        """The first session, on a database that this package can use."""
        try:
            connection = self._connect()
            try:
                with self._watchdog.limited(connection, self._call_limit):
                    check_schema(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.OperationalError as error:
            raise DatabaseUnreachableError(
                f"cannot connect to the database: {str(error).strip()}"
            ) from error
        return connection

    def _connect(self) -> Connection:
        return connect_worker(self._dsn, self.name, self._shortest)

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        self._inbox.put((attempt, outcome))

    # The dispatcher.

    def _dispatch(self, connection: Connection) -> None:
        failing_since: float | None = None
        draining_until: float | None = None
        while True:
            try:
                if connection.closed:
                    connection = self._connect()
                while draining_until is None or not self._drained(draining_until):
                    if self._stopping and draining_until is None:
                        draining_until = self._monotonic() + self._grace
                        self._slots.drain()
                    self._sleep(self._turn(connection))
                    failing_since = None
                self._write(connection)
                connection.close()
                return
            except psycopg.Error as error:
                # Whatever went wrong, a new session is the way out: the server may have restarted,
                # or this may be a former primary that is read-only now.
                log.warning("worker %s lost its database session: %s", self.name, error)
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

    def _turn(self, connection: Connection) -> float:
        """One round of the dispatcher's work; returns for how long it may sleep."""
        # Without its keeper or watchdog this worker would hold tasks that it no longer looks after.
        for broken in (self._keeper_error, self._watchdog.error):
            if broken is not None:
                raise broken
        self._write(connection)
        now = self._monotonic()
        if now >= self._next_upkeep:
            self._next_upkeep = now + UPKEEP_EVERY
            self._upkeep(connection)
        if now >= self._next_reclaim:
            self._next_reclaim = now + self._reclaim_every
            self._reclaim(connection)
        if self._doubtful:
            self._release_doubtful(connection)
        idle = self._poll
        if not self._stopping:
            idle = self._claim(connection)
        if self._unwritten:
            return RETRY_LOCKED
        if self._stopping:
            return self._tick  # to see the end of the grace in time
        return min(idle, max(0.0, self._next_reclaim - self._monotonic()))

    def _sleep(self, seconds: float) -> None:
        """Wait for news, at most so long, and take all of it in."""
        try:
            news = self._inbox.get(timeout=max(seconds, 0.001))
            while True:
                if news is not None:
                    self._unwritten.append(news)
                news = self._inbox.get_nowait()
        except Empty:
            return

    def _claim(self, connection: Connection) -> float:
        """Claim for the free slots; returns for how long there is nothing more to claim."""
        room = self._room - self._watchdog.count()
        if room <= 0:
            return self._poll  # an attempt that ends wakes us
        owner, sent = new_owner(self.name), self._monotonic()
        self._doubtful[owner] = sent + max(self._leases.values()).total_seconds()
        with self._watchdog.limited(connection, self._call_limit):
            attempts = claim(connection, owner, self._leases, room, sent, self._queues)
        del self._doubtful[owner]
        self._watchdog.hold(attempts)
        for attempt in attempts:
            self._observe("claimed", attempt.lease, "")
            self._slots.submit(attempt)
        if attempts:
            # Fewer than asked for does not mean that no more are due: others may have had them
            # locked. Look again as soon as there is room.
            return 0.0 if len(attempts) < room else self._poll
        # What is enqueued from here on is announced, and the keeper has been listening since
        # before this claim: between "nothing due" and going to sleep there is no gap.
        with self._watchdog.limited(connection, self._call_limit):
            due = next_due(connection, self._leases, self._queues)
        return self._poll if due is None else min(self._poll, max(due, SHORTEST_IDLE))

    def _release_doubtful(self, connection: Connection) -> None:
        with self._watchdog.limited(connection, self._call_limit):
            released = release_claims(connection, list(self._doubtful))
        if released:
            log.info("worker %s released %d tasks of lost claims", self.name, len(released))
        now = self._monotonic()
        self._doubtful = {owner: end for owner, end in self._doubtful.items() if end > now}

    def _reclaim(self, connection: Connection) -> None:
        with self._watchdog.limited(connection, self._call_limit):
            for taken in reclaim(connection, RECLAIM_LIMIT):
                log.warning(
                    "reclaimed task=%d kind=%s by=%s previous_owner=%s token=%d now=%s",
                    taken.lease.task,
                    taken.kind,
                    self.name,
                    taken.lease.owner,
                    taken.lease.token,
                    taken.status,
                )
                self._observe("reclaimed", taken.lease, taken.status)

    def _upkeep(self, connection: Connection) -> None:
        with self._watchdog.limited(connection, self._call_limit):
            try:
                connection.execute("select scheduler.add_run_log_partitions(%s)", [MONTHS_AHEAD])
            except psycopg.errors.InsufficientPrivilege:
                # Nothing is lost: the run log has a partition for what no other takes.
                log.warning("the run log wants partitions: run `scheduler migrate` as its owner")
            except psycopg.errors.LockNotAvailable:
                self._next_upkeep = self._monotonic() + UPKEEP_AGAIN

    def _write(self, connection: Connection) -> None:
        """Write down how attempts ended; what was neither written nor refused stays for later."""
        for attempt, outcome in self._unwritten:
            if outcome.what in ("committed", "lost"):
                self._watchdog.drop(attempt.lease)
        waiting = [
            (attempt, outcome)
            for attempt, outcome in self._unwritten
            if outcome.what not in ("committed", "lost")
        ]
        self._unwritten = waiting
        if not waiting:
            return
        with self._watchdog.limited(connection, self._call_limit):
            written = _write_batches(connection, waiting)
            # Two attempts of one task may both end here, a zombie and its successor, and `written`
            # tells them not apart.
            ends = Counter(attempt.task for attempt, _ in waiting)
            missing = [
                attempt.lease
                for attempt, _ in waiting
                if attempt.task not in written or ends[attempt.task] > 1
            ]
            looks = second_look(connection, missing) if missing else {}
        unwritten = []
        for attempt, outcome in waiting:
            look = looks.get(attempt.lease)
            if look is not None and look.held:
                unwritten.append((attempt, outcome))  # merely locked, by our own renewal perhaps
                continue
            # `completed` under our own fence is ours: a COMMIT whose reply was lost.
            if look is None or look.outcome in (outcome.what, "completed"):
                _log_end(attempt, outcome, written.get(attempt.task, "settled"))
            else:
                self._observe("refused", attempt.lease, outcome.what)
                self._watchdog.lose(attempt, look.outcome or "the task is gone")
            self._watchdog.drop(attempt.lease)
        self._unwritten = unwritten

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
                log.warning("worker %s abandons task %d to its lease", self.name, attempt.task)
            return True
        return False

    # The keeper.

    def _keep(self) -> None:
        try:
            while not self._over.is_set():
                self._keep_session()
        except Exception as error:  # noqa: BLE001 - raised again by the dispatcher
            self._keeper_error = error
            self._inbox.put(None)

    def _keep_session(self) -> None:
        try:
            with self._connect() as connection:
                connection.execute("listen scheduler_wake")
                self._inbox.put(None)  # what was enqueued before we listened
                while not self._over.is_set():
                    self._renew(connection)
                    self._listen(connection)
        except psycopg.Error as error:
            # The dispatcher decides when the database has been away for too long.
            log.warning("worker %s cannot renew its leases: %s", self.name, error)
            self._over.wait(PAUSE)

    def _listen(self, connection: Connection) -> None:
        """Wait for news of tasks that are due, one tick at most; pass it on to the dispatcher."""
        for news in connection.notifies(timeout=self._tick, stop_after=1):
            if news.payload in self._queues:
                self._inbox.put(None)

    def _renew(self, connection: Connection) -> None:
        sent = self._monotonic()
        due = [
            attempt
            for attempt in self._watchdog.held()
            if not attempt.lost
            and attempt.believed_until - sent <= attempt.lease_length.total_seconds() * 2 / 3
        ]
        if not due:
            return
        with self._watchdog.limited(connection, self._call_limit):
            renewed = renew(connection, [a.lease for a in due], [a.lease_length for a in due])
            missing = [attempt.lease for attempt in due if attempt.lease not in renewed]
            looks = second_look(connection, missing) if missing else {}
        for attempt in due:
            if attempt.lease in renewed:
                attempt.renewed(sent)
                expires = int(renewed[attempt.lease].timestamp() * 1_000_000)
                self._observe("renewed", attempt.lease, str(expires))
            elif not looks[attempt.lease].held:
                outcome = looks[attempt.lease].outcome
                if outcome in ("reclaimed", "cancelled", None):
                    self._observe("refused", attempt.lease, "renew")
                    self._watchdog.lose(attempt, outcome or "the task is gone")


def _write_batches(
    connection: Connection, waiting: Sequence[tuple[Attempt, Outcome]]
) -> dict[int, str]:
    """Write outcomes; returns what became of each task written.

    An outcome that the database refuses must not keep the others from being written, again and
    again: then each is written by itself, and the refused one becomes a failure.
    """
    try:
        return _write_together(connection, waiting)
    except (psycopg.DataError, psycopg.IntegrityError):
        became: dict[int, str] = {}
    for attempt, outcome in waiting:
        try:
            became |= _write_together(connection, [(attempt, outcome)])
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            refused = f"the database refused to write that it {outcome.what}: {error}"
            became |= finish.fail(connection, [attempt.lease], [refused])
    return became


def _write_together(
    connection: Connection, waiting: Sequence[tuple[Attempt, Outcome]]
) -> dict[int, str]:
    """Write each kind of outcome in one statement; returns what became of each task written."""
    ended: defaultdict[str, tuple[list[Lease], list[Outcome]]] = defaultdict(lambda: ([], []))
    for attempt, outcome in waiting:
        leases, outcomes = ended[outcome.what]
        leases.append(attempt.lease)
        outcomes.append(outcome)
    became: dict[int, str] = {}
    for what, (leases, outcomes) in ended.items():
        match what:
            case "completed":
                became |= dict.fromkeys(finish.complete(connection, leases), "completed")
            case "failed":
                became |= finish.fail(connection, leases, [one.error for one in outcomes])
            case "snoozed":
                delays = [one.delay for one in outcomes]
                became |= dict.fromkeys(finish.snooze(connection, leases, delays), "pending")
            case "released":
                became |= dict.fromkeys(finish.release(connection, leases), "pending")
    return became


def _guarded(observe: Observe) -> Observe:
    """An observer whose errors are logged: none may end a thread that keeps leases."""

    def guarded(what: str, lease: Lease, detail: str) -> None:
        try:
            observe(what, lease, detail)
        except Exception:
            log.exception("the observer failed on %r of task %d", what, lease.task)

    return guarded


def _log_end(attempt: Attempt, outcome: Outcome, became: str) -> None:
    """One line an attempt; failures are for people to see, the others for debugging."""
    level = logging.DEBUG
    if outcome.what == "failed":
        level = logging.ERROR if became == "dead" else logging.WARNING
    log.log(
        level,
        "%s task=%d kind=%s attempt=%d/%d token=%d now=%s%s",
        outcome.what,
        attempt.task,
        attempt.kind,
        attempt.number,
        attempt.max_attempts,
        attempt.token,
        became,
        f" error={finish.storable(outcome.error).partition(chr(10))[0]}" if outcome.error else "",
    )
