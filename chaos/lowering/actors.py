"""What the actors of a script can do, by word: the scheduler's own code, as a worker, a client or
an operator runs it.

A word that ends an attempt ends the oldest one that the actor believes to hold, whether or not it
still does: that is for the fence to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, cast

import psycopg
from psycopg import Connection

from chaos.explore.crash_actors import WORK, Client
from chaos.explore.scheduler_actors import KIND, LEASE, complete_and_commit
from chaos.history.events import Note
from scheduler import (
    CapReachedError,
    Unique,
    cancel,
    discard,
    enqueue_many,
    enqueue_unique,
    requeue,
)
from scheduler.dispatch import claim, release_claims
from scheduler.finish import begin_attempt, complete, fail, release, snooze
from scheduler.lease import Lease, reclaim, renew
from scheduler.schedules import plan_due
from scheduler.slots import LEASE_LOST

KEY = "key"
PERIOD = timedelta(days=1)  # of a key that is had through a period
MANY = 10  # what a reaper or planner takes at once
SNOOZE = timedelta(seconds=5)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Player:
    """One actor while it plays its part; `notes` gets what a worker's journal would."""

    def __init__(
        self, connection: Connection, name: str, limited: bool, until: str, notes: list[Note]
    ) -> None:
        self.client = Client(connection)
        self.name = name
        self.limited = [KIND] if limited else []
        self.until = until
        self.notes = notes
        self.held: list[Lease] = []
        self.claims = 0

    def pop(self) -> list[Lease]:
        """The oldest lease that it believes to hold, which it does no longer then; if any."""
        oldest, self.held = self.held[:1], self.held[1:]
        return oldest


def play(
    connection: Connection, name: str, words: str, limited: bool, until: str, notes: list[Note]
) -> None:
    """Do what the words say, one after the other; see `WORDS`."""
    player = Player(connection, name, limited, until, notes)
    with closing(player.client):
        for word in words.split():
            act, _, number = word.partition(":")
            WORDS[act].act(player, int(number or 1))


def _claim(player: Player, limit: int) -> None:
    player.claims += 1
    owner = f"{player.name}/{player.claims}"

    def take(connection: Connection) -> list[Lease]:
        attempts = claim(connection, owner, {KIND: LEASE}, limit, 0.0, player.limited)
        return [attempt.lease for attempt in attempts]

    def give_back(connection: Connection) -> list[Lease]:
        release_claims(connection, [owner])
        return []

    player.held += player.client.do(take, give_back)


def _renew(player: Player, _: int) -> None:
    held = player.held
    if not held:
        return
    renewed = player.client.do(lambda c: renew(c, held, [LEASE] * len(held)))
    for lease, expires in renewed.items():
        at = str((expires - _EPOCH) // timedelta(microseconds=1))
        player.notes.append(Note(0, player.name, "renewed", *lease, at))


_End = Callable[[Connection, Sequence[Lease]], object]


def _ending(end: _End) -> Callable[[Player, int], None]:
    def act(player: Player, _: int) -> None:
        leases = player.pop()
        if leases:
            player.client.do(lambda c: end(c, leases))

    return act


def _fail(connection: Connection, leases: Sequence[Lease]) -> None:
    fail(connection, leases, [f"{lease.owner} failed" for lease in leases])


def _snooze(connection: Connection, leases: Sequence[Lease]) -> None:
    snooze(connection, leases, [SNOOZE])


def _transact(player: Player, _: int) -> None:
    """A failure is written if the connection is lost, since whether the COMMIT arrived is not
    known. If it did, the fence refuses that."""
    leases = player.pop()
    if not leases:
        return
    try:
        player.client.do(lambda c: _with_effect(c, leases[0]), lambda c: _fail(c, leases))
    except psycopg.DatabaseError as error:
        if error.sqlstate != LEASE_LOST:
            raise


def _with_effect(connection: Connection, lease: Lease) -> None:
    begin_attempt(connection, lease, LEASE)
    connection.execute(
        "insert into explorer_effects (task, token) values (%s, %s)", [lease.task, lease.token]
    )
    try:
        complete_and_commit(connection, lease)
    except psycopg.Error:
        connection.close()
        raise


def _enqueue(player: Player, number: int) -> None:
    def enqueue(connection: Connection) -> None:
        try:
            enqueue_many(connection, WORK, [1] * number)
        except CapReachedError:
            return  # refused, as a cap is meant to

    player.client.do(enqueue)


def _ask(player: Player, _: int) -> None:
    until = cast(Literal["started", "finished"], player.until)
    unique = Unique(KEY, PERIOD if player.until == "period" else until)
    player.client.do(lambda c: enqueue_unique(c, WORK, 1, unique))


def _doing(do: Callable[[Connection], object]) -> Callable[[Player, int], None]:
    def act(player: Player, _: int) -> None:
        player.client.do(do)

    return act


def _operating(
    operate: Callable[[Connection, Sequence[int]], object],
) -> Callable[[Player, int], None]:
    def act(player: Player, task: int) -> None:
        player.client.do(lambda c: operate(c, [task]))

    return act


class Word(NamedTuple):
    """What an actor does, and in how many steps if it does anything: a commit is a step of its own.

    The number after a word (`claim:2`) is how many, or for an operator which task; by default 1.
    """

    act: Callable[[Player, int], None]
    steps: int
    about: str


WORDS = {
    "claim": Word(_claim, 2, "claims a task, or as many"),
    "renew": Word(_renew, 2, "renews what it holds"),
    "complete": Word(_ending(complete), 2, "completes a task that it holds"),
    "transact": Word(_transact, 3, "the same, in one transaction with an effect"),
    "fail": Word(_ending(_fail), 2, "fails it"),
    "release": Word(_ending(release), 2, "gives it back"),
    "snooze": Word(_ending(_snooze), 2, "puts it off"),
    "reclaim": Word(_doing(lambda c: reclaim(c, MANY)), 2, "takes back what has expired"),
    "plan": Word(_doing(lambda c: plan_due(c, MANY)), 4, "plans what its schedule says is due"),
    "enqueue": Word(_enqueue, 2, "enqueues a task, or as many"),
    "ask": Word(_ask, 2, "enqueues a task under a key, unless one stands"),
    "cancel": Word(_operating(cancel), 2, "cancels task 1, or that one"),
    "requeue": Word(_operating(requeue), 2, "puts it back to work"),
    "discard": Word(_operating(discard), 2, "gives it up"),
}
