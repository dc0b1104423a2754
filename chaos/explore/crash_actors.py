"""The actors of the crash points: what a worker, a client or an operator does from begin to end,
how each goes on after a lost connection, and who recovers what they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

import psycopg
from psycopg import Connection

from chaos.explore import clock
from chaos.explore.scheduler_actors import KIND, LEASE, complete_and_commit
from scheduler import Registry, Unique, enqueue, enqueue_unique
from scheduler.access import limit_source
from scheduler.dispatch import (
    claim,
    complete_and_claim,
    declare_limits,
    next_due,
    release_claims,
)
from scheduler.finish import begin_attempt, complete
from scheduler.lease import Attempt, reclaim, renew, second_look
from scheduler.outcome import Outcome
from scheduler.settle import write_batches
from scheduler.slots import LEASE_LOST

T = TypeVar("T")
Act = Callable[[Connection], object]

OVER = timedelta(hours=1)  # by when every lease is over, and every retry due
ROUNDS = 10  # of `rest`: more is a task that never ends
NONE: Mapping[str, int | None] = {}
DONE = Outcome("completed")


def _never(attempt: Attempt, payload: int) -> None:
    raise AssertionError("no handler runs here")


WORK = Registry().kind(KIND, int, lease=LEASE)(_never)


class Client:
    """A connection, and another one when that is lost: at most one of these is lost in a life."""

    def __init__(self, connection: Connection) -> None:
        self._dsn = connection.info.dsn
        self._connection = connection
        self._own: Connection | None = None

    def do(
        self, act: Callable[[Connection], T], again: Callable[[Connection], T] | None = None
    ) -> T:
        """Do it; if the connection is lost meanwhile do it again, or what is to be done instead."""
        try:
            return act(self._connection)
        except psycopg.OperationalError:
            if self._own is not None or not self._connection.closed:
                raise
            self._own = self._connection = psycopg.connect(self._dsn, autocommit=True)
            return (again or act)(self._connection)

    def close(self) -> None:
        """Close the connection that was opened here."""
        if self._own is not None:
            self._own.close()


def take(
    connection: Connection, owner: str, limit: int = 1, limited: Sequence[str] = ()
) -> list[Attempt]:
    """Claim for the length of a lease."""
    return claim(connection, owner, {KIND: LEASE}, limit, 0.0, limited)


def _take_again(connection: Connection, limited: Sequence[str]) -> list[Attempt]:
    release_claims(connection, ["a/1"])
    return take(connection, "a/2", limited=limited)


# The lives. Each is `a`.


def worker(
    connection: Connection, outcome: Outcome, limits: Mapping[str, int | None] = NONE
) -> None:
    """Claim one task, renew, write down how it ended and look whether that arrived."""
    with closing(Client(connection)) as client:
        limited = list(limits)
        if limits:
            client.do(lambda c: declare_limits(c, limits))
        attempts = client.do(
            lambda c: take(c, "a/1", limited=limited), lambda c: _take_again(c, limited)
        )
        if attempts:
            [attempt] = attempts
            client.do(lambda c: renew(c, [attempt.lease], [LEASE]))
            client.do(lambda c: write_batches(c, [(attempt, outcome)]))
            looks = client.do(lambda c: second_look(c, [attempt.lease]))
            assert not looks[attempt.lease].held, f"{attempt} was neither ended nor lost"
        client.do(lambda c: next_due(c, {KIND: LEASE}))


def one_after_another(connection: Connection) -> None:
    """Claim one task, complete it and claim the next with one commit, and complete that."""
    with closing(Client(connection)) as client:
        attempts = client.do(lambda c: take(c, "a/1"), lambda c: _take_again(c, ()))
        if attempts:
            [first] = attempts
            attempts = client.do(lambda c: _next(c, first), lambda c: _next_again(c, first))
            rest = [(attempt, DONE) for attempt in attempts]
            client.do(lambda c: write_batches(c, rest))
            leases = [first.lease, *(attempt.lease for attempt in attempts)]
            looks = client.do(lambda c: second_look(c, leases))
            assert not any(look.held for look in looks.values()), "neither ended nor lost"


def _next(connection: Connection, first: Attempt) -> list[Attempt]:
    return complete_and_claim(connection, [first.lease], "a/3", {KIND: LEASE}, 1, 0.0)[1]


def _next_again(connection: Connection, first: Attempt) -> list[Attempt]:
    # As a worker does: whether either was done is not known.
    write_batches(connection, [(first, DONE)])
    release_claims(connection, ["a/3"])
    return take(connection, "a/4")


def forgetter(connection: Connection) -> None:
    """Claim, and give back by owner, as a worker does whose claim got no reply."""
    with closing(Client(connection)) as client:
        client.do(lambda c: take(c, "a/1"), lambda c: [])
        client.do(lambda c: release_claims(c, ["a/1"]))


def transactional(connection: Connection, ends: Callable[[Connection, Attempt], None]) -> None:
    """Claim, then write the effect and the completion in one transaction; a failure is written."""
    with closing(Client(connection)) as client:
        attempts = client.do(lambda c: take(c, "a/1"), lambda c: _take_again(c, ()))
        if attempts:
            [attempt] = attempts
            try:
                client.do(lambda c: ends(c, attempt), lambda c: _fail(c, attempt))
            except psycopg.DatabaseError as error:
                if error.sqlstate != LEASE_LOST:
                    raise


def _fail(connection: Connection, attempt: Attempt) -> None:
    # Whether the COMMIT arrived is not known. If it did, the fence refuses this.
    write_batches(connection, [(attempt, Outcome("failed", "the connection was lost"))])
    looks = second_look(connection, [attempt.lease])
    assert not looks[attempt.lease].held, f"{attempt} was neither ended nor lost"


def with_effect(connection: Connection, attempt: Attempt) -> None:
    """As the worker's slots do: the effect, then the completion and its COMMIT in one message."""
    begin_attempt(connection, attempt.lease, LEASE)
    effect(connection, attempt)
    try:
        complete_and_commit(connection, attempt.lease)
    except psycopg.Error:
        connection.close()
        raise


def effect(connection: Connection, attempt: Attempt) -> None:
    """What a transactional handler writes."""
    connection.execute(
        "insert into explorer_effects (task, token) values (%s, %s)", attempt.lease[:2]
    )


def completed(connection: Connection, attempt: Attempt) -> None:
    """Complete it, as after a plain handler."""
    complete(connection, [attempt.lease])


def repeated(connection: Connection, acts: Sequence[Act]) -> None:
    """What may be done again after a lost reply, one after the other."""
    with closing(Client(connection)) as client:
        for act in acts:
            client.do(act)


def order(connection: Connection) -> None:
    """A client's own row and its task in one transaction; the row says whether it happened."""
    with connection.transaction():
        mine = connection.execute(
            "insert into explorer_orders (number) values (1) on conflict do nothing returning 1"
        )
        if mine.fetchone():
            enqueue(connection, WORK, 1)


def unique(connection: Connection) -> None:
    """One task under a key, asked for as often as it takes."""
    enqueue_unique(connection, WORK, 1, Unique("order 1", timedelta(days=1)))


def cap(connection: Connection) -> None:
    """Let this source have one task outstanding: a second one would be refused."""
    limit_source(connection, connection.info.user, 1)


# Who recovers: `b` and `c`.


def rival(connection: Connection, limited: Sequence[str]) -> None:
    """Take over what has expired, and die holding it."""
    clock.advance(connection, OVER)
    reclaim(connection, 10)
    take(connection, "b/1", 10, limited)


def rest(
    connection: Connection,
    repeats: Sequence[Act],
    limited: Sequence[str],
    ends: Callable[[Connection, Attempt], object],
) -> None:
    """Repeat what may be repeated, take back what has expired, and end all there is."""
    for act in repeats:
        act(connection)
    for round_ in range(ROUNDS):
        clock.advance(connection, OVER)
        reclaim(connection, 10)
        attempts = take(connection, f"c/{round_}", 10, limited)
        if not attempts:
            return
        for attempt in attempts:
            ends(connection, attempt)
    raise AssertionError(f"tasks are still due after {ROUNDS} rounds")
