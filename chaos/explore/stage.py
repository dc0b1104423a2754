"""The stage: actors on real connections, moved one step at a time.

Everything here happens in one thread, which owns every socket. After a step it waits until the
whole stage is at rest: each actor has its next statement parked at its gate, has ended, or waits
for a lock, which only the server can tell. At most one actor's code runs at any moment.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos.explore import wire
from chaos.explore.actor import ActorThread
from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.program import Ending, Endings, Program, Violation
from chaos.explore.schedule import (
    CRASH,
    CRASH_AFTER,
    LOST_REPLY,
    STEP,
    TERMINATE,
    Advance,
    Choice,
    Step,
)
from chaos.explore.session import Part, Session

LIMIT = 10.0  # seconds that anything but a lock wait may take
ASK_AFTER = 0.004  # seconds without an answer after which the server is asked whether it waits
CHECKED_WITHIN = 0.5  # seconds within which a waiting session reports its deadlock check

# Of every session of an actor. A wait for a lock is checked for a deadlock after one millisecond,
# and the session says when that is over: so of two sessions that wait for each other it is always
# the later one that is refused, and a schedule means the same thing every time. Plans are
# generic from the first execution on, or they would depend on how often a session was used before.
_SETTINGS = {
    "deadlock_timeout": "1ms",
    "log_lock_waits": "on",
    "client_min_messages": "log",
    "log_min_messages": "panic",
    "plan_cache_mode": "force_generic_plan",
}
_RESET = "reset all; select pg_advisory_unlock_all(); unlisten *; discard temp"
_READ = select.POLLIN | select.POLLHUP | select.POLLERR


class Event(NamedTuple):
    """What one step did, as far as it is the same whenever the schedule is run again."""

    step: str
    did: str
    waiting: tuple[str, ...]  # the actors that wait for a lock afterwards

    def __str__(self) -> str:
        waits = f"   [{', '.join(self.waiting)} waiting]" if self.waiting else ""
        return f"{self.step:<6} {self.did}{waits}"


class _Actor:
    """An actor's thread, its listener, and the sessions it has opened."""

    def __init__(self, name: str, listener: socket.socket, thread: ActorThread) -> None:
        self.name = name
        self.listener = listener
        self.thread = thread
        self.sessions: list[Session] = []
        self.started = False
        self.ended = True
        self.crashed = False
        self.blocked: Session | None = None

    def parked(self) -> Session | None:
        """The session whose next step waits to be granted."""
        for session in self.sessions:
            part = session.parked()
            if part is not None and part.kind != "pass":
                return session
        return None

    @property
    def at_rest(self) -> bool:
        """Whether its code has ended or waits for an answer; it waits for none when it closes."""
        parts = [session.parked() for session in self.sessions]
        return self.ended or any(p is not None and p.kind not in ("pass", "close") for p in parts)

    @property
    def current(self) -> Session | None:
        """The session that the actor used last."""
        return self.blocked or self.parked() or (self.sessions[-1] if self.sessions else None)


class Stage:
    """A program on its stage. A context manager; the database is the caller's."""

    def __init__(self, dsn: str, program: Program) -> None:
        self.program = program
        self.events: list[Event] = []
        self.degraded: set[str] = set()
        self._dsn = dsn
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._actors: dict[str, _Actor] = {}
        self._orphans: list[Session] = []  # sessions whose client is gone and which go on
        self._did: list[str] = []
        self._touched = True  # whether the last step can have changed what is committed

    def __enter__(self) -> Self:
        self.admin = _connect_admin(self._dsn)
        try:
            self._set()
        except BaseException:
            self._close()
            raise
        return self

    def _set(self) -> None:
        """Put the program and its actors on it."""
        row = self.admin.execute(
            "select to_regprocedure('pg_isolation_test_session_is_blocked(integer, integer[])')"
            " is not null"
        ).fetchone()
        self._ask_sql = "select pid from unnest(%s::int[]) as pid where " + (
            "pg_isolation_test_session_is_blocked(pid, %s::int[])"
            if row is not None and row[0]
            else "pg_blocking_pids(pid) && %s::int[]"
        )
        if self.program.install is not None:
            self.program.install(self.admin)
        for name, body in self.program.actors.items():
            listener = socket.create_server(("127.0.0.1", 0))
            dsn = _gate_dsn(self._dsn, self.admin, listener.getsockname()[1])
            thread = ActorThread(name, body, dsn, self.program.autocommit)
            actor = _Actor(name, listener, thread)
            self._actors[name] = actor
            self._watch(listener, partial(self._accept, actor))
            self._watch(thread.wake, partial(self._ended, actor))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.abandon()
        finally:
            self._close()

    def _close(self) -> None:
        # Sockets first: a thread ends when it sees them closed.
        for session in self._orphans:
            session.close()
        for actor in self._actors.values():
            for session in actor.sessions:
                session.close()
            actor.listener.close()
            actor.thread.close()
        self.admin.close()

    # What a search asks.

    @property
    def server_version(self) -> str:
        """The server's own name for its version."""
        return self.admin.info.parameter_status("server_version") or "unknown"

    def ready(self) -> list[str]:
        """The actors that can take a step."""
        return [name for name, actor in self._actors.items() if actor.parked() is not None]

    def live(self) -> list[str]:
        """The actors that have not ended, waiting ones included."""
        return [name for name, actor in self._actors.items() if not actor.ended]

    def commits_next(self, name: str) -> bool:
        """Whether the actor's next step commits."""
        session = self._actors[name].parked()
        part = session.parked() if session is not None else None
        return part is not None and part.kind == "commit"

    def started(self, name: str) -> bool:
        """Whether the actor has taken a step in this schedule."""
        return self._actors[name].started

    def endings(self) -> Endings:
        """How each actor ended, so far as they have."""
        endings = {}
        for name, actor in self._actors.items():
            ending = actor.thread.ending
            if actor.crashed:
                endings[name] = Ending(crashed=True)
            elif ending is not None:
                endings[name] = ending
        return endings

    def check(self) -> Violation | None:
        """Whether what must always hold does not hold now."""
        for name, ending in self.endings().items():
            error = ending.error
            if error is not None and not isinstance(error, psycopg.Error):
                return Violation("actor", f"{name} raised {type(error).__name__}: {error}")
        # A statement in an open transaction changes nothing that anybody else can see: what held
        # before it holds after it.
        return self._judge("invariant", self.program.invariant) if self._touched else None

    def check_end(self) -> Violation | None:
        """Whether the schedule, being over, ended as it must not."""
        stuck = self.live()
        if stuck:
            return Violation(
                "stuck", f"{', '.join(stuck)} wait for a lock that nobody is left to release"
            )
        at_end = self.program.at_end
        if at_end is None:
            return None
        return self._judge("at-end", lambda admin: at_end(admin, self.endings()))

    def _judge(self, what: str, check: Callable[[Connection], object] | None) -> Violation | None:
        if check is not None:
            try:
                check(self.admin)
            except AssertionError as error:
                return Violation(what, str(error) or "an assertion without a message failed")
        return None

    # Moving it.

    def begin(self) -> None:
        """Put everything back to where a schedule starts."""
        self.finish()
        self.events.clear()
        for actor in self._actors.values():
            for session in list(actor.sessions):
                closing = session.parked() is not None  # the schedule before ended first
                if closing or session.client_gone or session.server_gone:
                    self._drop(actor, session)
                else:
                    session.housekeeping(_RESET)
        # Before the setup, which may raise: answers that nobody read would be the client's next.
        self._settle()
        self.program.setup(self.admin)
        for actor in self._actors.values():
            actor.started = actor.ended = actor.crashed = False
            actor.thread.start()
            self._settle()
        self._did.clear()
        self._touched = True

    def take(self, choice: Choice) -> None:
        """Make one step happen and wait until the stage is at rest.

        Raises ScheduleError if the actor cannot take it now.
        """
        self._touched = isinstance(choice, Advance) or choice.what != STEP or bool(self._orphans)
        if isinstance(choice, Advance):
            if self.program.advance is None:
                raise ScheduleError(
                    f"{choice} cannot happen: the program does not say how to `advance` the clock"
                )
            self.program.advance(self.admin, choice.by)
            self._did.append("the clock moves")
        else:
            self._act(choice)
        self._settle()
        self._tell(Event(str(choice), "", ()))

    def follow(self) -> bool:
        """Let a dead client's statement that had to wait for a lock commit; whether one did.

        A server that has a statement with all that follows it commits without a client, and as soon
        as the lock is free. But then that is a commit of its own, after the one that freed the
        lock: whoever judges one commit at a time must be let in between.
        """
        for session in self._orphans:
            if session.withheld and session.sent is None:
                part, session.done = session.done, None
                if part is not None:
                    self._did.append(f"{_describe(session.actor, part)}, and what followed it")
                session.send_withheld()
                self._touched = True
                self._settle()
                self._tell(self.events.pop())  # it belongs to the step that freed the lock
                return True
        return False

    def abandon(self) -> None:
        """Leave a schedule in the middle: cut every actor that has not ended."""
        for actor in self._actors.values():
            if not actor.ended:
                actor.crashed = True
                for session in actor.sessions:
                    if session.pid and not session.server_gone:
                        self._terminate(session)
                    session.hang_up()
        for session in self._orphans:
            self._terminate(session)
        self._wait(lambda: all(actor.ended for actor in self._actors.values()), "the actors to end")
        self._wait(self._bury, "sessions to end")
        for actor in self._actors.values():
            actor.blocked = None

    def finish(self) -> None:
        """Clean up after a schedule, be it over or not."""
        if self.live() or self._orphans:
            self.abandon()

    def _act(self, step: Step) -> None:
        actor = self._actors.get(step.actor)
        if actor is None:
            raise ScheduleError(
                f"there is no actor {step.actor!r}; there are {', '.join(self._actors)}"
            )
        session = actor.parked() if step.what in (STEP, LOST_REPLY) else actor.current
        # An actor that has ended may have closed a connection in a transaction: until the server is
        # told, which is a step too, that transaction keeps its locks.
        if session is None or (actor.ended and step.what != STEP):
            state = "has ended" if actor.ended else "waits for a lock"
            raise ScheduleError(f"{step} cannot happen: {actor.name} {state} by then")
        actor.started = True
        if step.what == STEP:
            session.grant()
        elif step.what == TERMINATE:
            self._terminate(session)
            self._did.append("session terminated")
            self._wait(lambda: session.server_gone, f"the session of {actor.name} to end")
        else:
            self._cut(actor, session, step.what)

    def _cut(self, actor: _Actor, session: Session, what: str) -> None:
        """The connection breaks; the server's side goes on alone for as long as it has work."""
        part = session.parked()
        self._did.append(
            {CRASH: "crashed", CRASH_AFTER: "crashed after", LOST_REPLY: "reply lost"}[what]
            + (f": {wire.title(part.sql)}" if part is not None else "")
        )
        if what != LOST_REPLY:
            actor.crashed = True
        # Should the statement have to wait for a lock, it was sent together with what follows it,
        # and that is withheld only for `follow` to see the moment.
        session.withheld = session is actor.blocked
        if what != CRASH and part is not None and part.kind == "statement":
            session.withheld = True
            session.grant()
        elif what != CRASH and session is not actor.blocked:
            session.send_rest()
        gone = list(actor.sessions) if actor.crashed else [session]
        for each in gone:
            if not each.withheld:
                each.cut()
            self._orphan(actor, each)
        # Only when the server is done may the client know: nothing happens at the same time.
        self._settle_orphans()
        if session.withheld and session.sent is None and actor.blocked is None:
            session.send_withheld()  # it did not have to wait
            self._settle_orphans()
        actor.blocked = None
        for each in gone:
            each.hang_up()

    def _tell(self, event: Event) -> None:
        """Write down what happened, after what the event has already, and who waits now."""
        did = "; ".join([event.did, *self._did] if event.did else self._did)
        waiting = tuple(name for name, actor in self._actors.items() if actor.blocked is not None)
        self.events.append(Event(event.step, did, waiting))
        self._did.clear()

    def _terminate(self, session: Session) -> None:
        self.admin.execute("select pg_terminate_backend(%s)", [session.pid])

    # Waiting for rest.

    def _settle(self) -> None:
        """Wait until every actor is parked, ended or blocked, and say who is blocked."""
        while True:
            self._settle_orphans()
            for actor in self._actors.values():
                self._settle_actor(actor)
            blocked = [a for a in self._actors.values() if a.blocked is not None]
            if not blocked and not self._orphans:
                return
            still = self._ask([a.blocked for a in blocked if a.blocked] + self._orphans)
            released = [a for a in blocked if a.blocked is not None and a.blocked.pid not in still]
            released += [a for a in blocked if a.blocked is not None and a.blocked.sent is None]
            for actor in released:
                actor.blocked = None
            if not released and all(session.pid in still for session in self._busy_orphans()):
                return

    def _settle_actor(self, actor: _Actor) -> None:
        while actor.blocked is None:
            for session in list(actor.sessions):
                self._note(session)
                if session.passes:
                    session.grant()
                if session.deliverable:
                    session.deliver()
                if session.server_gone and session.client_gone:
                    self._drop(actor, session)
            busy = next((s for s in actor.sessions if s.sent is not None), None)
            if busy is not None:
                self._await_answer(actor, busy)
            elif actor.at_rest:
                return
            else:
                self._wait(
                    lambda: (
                        actor.at_rest
                        or any(s.passes or s.sent for s in actor.sessions)
                        or any(s.server_gone or s.deliverable for s in actor.sessions)
                    ),
                    f"actor {actor.name} to reach its next statement (explored code must not wait"
                    " for anything but the database)",
                )

    def _await_answer(self, actor: _Actor, session: Session) -> None:
        """Wait until the server has answered, or says that the session waits for a lock.

        It is asked when the session has reported its deadlock check, or has taken long.
        """
        began = time.monotonic()
        while True:
            self._pump(ASK_AFTER)
            part = session.sent
            if part is None:
                return
            waited = time.monotonic() - began
            if not session.deadlock_checked and waited < ASK_AFTER:
                continue
            if self._ask([session]):
                if not session.deadlock_checked and waited < CHECKED_WITHIN:
                    continue  # it waits, but might still be refused because of a deadlock
                if not session.deadlock_checked:
                    self.degraded.add(
                        f"a session of {actor.name} waited without reporting its deadlock check"
                    )
                actor.blocked = session
                if not part.waited:
                    part.waited = True
                    self._did.append(f"{actor.name} waits: {wire.title(part.sql)}")
                return
            session.deadlock_checked = False
            if waited > LIMIT:
                raise ExplorerError(
                    f"a statement of {actor.name} has had no answer for {LIMIT:.0f} s, and no other"
                    f" actor blocks it: {wire.title(part.sql)}"
                )

    def _settle_orphans(self) -> None:
        began = time.monotonic()
        while busy := self._busy_orphans():
            self._pump(ASK_AFTER)
            if time.monotonic() - began > ASK_AFTER:
                waiting = self._ask(busy)
                if all(session.pid in waiting for session in self._busy_orphans()):
                    return
            if time.monotonic() - began > LIMIT:
                raise ExplorerError(f"a cut session did not end within {LIMIT:.0f} s")

    def _busy_orphans(self) -> list[Session]:
        """The orphans that the server has not done with, but for those that wait for `follow`."""
        self._bury()
        return [one for one in self._orphans if not (one.withheld and one.sent is None)]

    def _bury(self) -> bool:
        """Forget orphans whose session has ended; whether none is left."""
        for session in list(self._orphans):
            if session.server_gone:
                self._orphans.remove(session)
                self._forget(session)
        return not self._orphans

    def _ask(self, sessions: list[Session]) -> set[int]:
        """Which of these sessions wait for a lock that one of ours holds: the server knows."""
        everyone = [s.pid for actor in self._actors.values() for s in actor.sessions]
        everyone += [session.pid for session in self._orphans]
        if not sessions:
            return set()
        rows = self.admin.execute(self._ask_sql, [[s.pid for s in sessions], everyone])
        return {pid for (pid,) in rows}

    def _note(self, session: Session) -> None:
        """Write down what a session has finished."""
        part, session.done = session.done, None
        if part is not None and part.kind != "pass":
            self._touched |= part.kind != "statement"
            self._did.append(_describe(session.actor, part))

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise ExplorerError(f"waited {LIMIT:.0f} s in vain for {what}")
            self._pump(0.1)

    # Sockets.

    def _pump(self, seconds: float) -> None:
        for file, _ in self._poll.poll(seconds * 1000):
            reader = self._readers.get(file)
            if reader is not None:
                reader()

    def _watch(self, readable: socket.socket, reader: Callable[[], None]) -> None:
        self._readers[readable.fileno()] = reader
        self._poll.register(readable.fileno(), _READ)

    def _unwatch(self, readable: socket.socket) -> None:
        if self._readers.pop(readable.fileno(), None) is not None:
            self._poll.unregister(readable.fileno())

    def _accept(self, actor: _Actor) -> None:
        client, _ = actor.listener.accept()
        if actor.crashed:
            client.close()  # a dead process opens no connections
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session(actor.name, client, _connect_server(self.admin))
        actor.sessions.append(session)
        self._watch(client, lambda: self._read(client, session.client_sent))
        self._watch(session.server, lambda: self._read(session.server, session.server_sent))

    def _read(self, readable: socket.socket, take: Callable[[bytes], None]) -> None:
        try:
            data = readable.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self._unwatch(readable)
        take(data)

    def _ended(self, actor: _Actor) -> None:
        actor.thread.wake.recv(1)
        actor.ended = True

    def _orphan(self, actor: _Actor, session: Session) -> None:
        actor.sessions.remove(session)
        self._orphans.append(session)

    def _drop(self, actor: _Actor, session: Session) -> None:
        session.hang_up()
        session.cut()
        actor.sessions.remove(session)
        if session.server_gone:
            self._forget(session)
        else:
            self._orphans.append(session)

    def _forget(self, session: Session) -> None:
        session.hang_up()
        self._unwatch(session.client)
        self._unwatch(session.server)
        session.close()


def _describe(actor: str, part: Part) -> str:
    result = f"SQLSTATE {part.sqlstate}" if part.sqlstate else ", ".join(part.tags)
    if part.kind == "statement" or wire.commits_last(part.sql):
        return f"{actor}: {wire.title(part.sql)} -> {result}"
    return f"{actor}: {part.kind}" + (f" -> {result}" if part.sqlstate else "")


def _connect_admin(dsn: str) -> Connection:
    try:
        admin = psycopg.connect(
            dsn,
            autocommit=True,
            application_name="explorer",
            options="-c lock_timeout=10s -c timezone=UTC",
        )
    except psycopg.OperationalError as error:
        raise ExplorerError(f"cannot connect to the database: {error}") from error
    if admin.info.parameter_status("is_superuser") != "on":
        admin.close()
        raise ExplorerError(
            "the explorer sets deadlock_timeout and log_lock_waits for its sessions, which only a"
            " superuser may: connect as one, on a server that you can spare"
        )
    return admin


def _gate_dsn(dsn: str, admin: Connection, port: int) -> str:
    """What an actor connects to: the same database, through its gate."""
    given = conninfo_to_dict(dsn)
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    gate: dict[str, str | int | None] = {
        **{key: value for key, value in given.items() if key not in ("host", "hostaddr", "port")},
        "host": "127.0.0.1",
        "port": port,
        "user": admin.info.user,
        "password": admin.info.password or None,
        "dbname": admin.info.dbname,
        "sslmode": "disable",
        "gssencmode": "disable",
        "options": f"{given['options']} {options}" if given.get("options") else options,
    }
    return make_conninfo("", **gate)


def _connect_server(admin: Connection) -> socket.socket:
    host, port = admin.info.host, admin.info.port
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server
    server = socket.create_connection((admin.info.hostaddr or host, port), LIMIT)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server
