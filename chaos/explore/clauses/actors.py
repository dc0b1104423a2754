"""Actors that meet the clauses of the scheduler's statements one by one, and say what is wrong.

Each asserts what the statement it runs promises; the sentence begins with the invariant that would
be broken. What is committed meanwhile is judged by the invariants themselves, after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import psycopg
from psycopg import Connection

from chaos.explore import clock
from chaos.explore.crash_actors import WORK
from chaos.explore.scheduler_actors import KIND, LEASE, complete_and_commit
from scheduler import CapReachedError, enqueue
from scheduler.dispatch import claim, release_claims
from scheduler.finish import begin_attempt, complete, fail, release, snooze
from scheduler.floors import Floor
from scheduler.lease import Attempt, Lease, reclaim, renew, second_look
from scheduler.slots import LEASE_LOST

End = Callable[[Connection, Sequence[Lease]], object]

DELAY = timedelta(seconds=5)


def _complete_each(connection: Connection, leases: Sequence[Lease]) -> set[int]:
    """Each in a transaction of its own, as transactional handlers do; those that were not lost."""
    done = set()
    for lease in leases:
        begin_attempt(connection, lease, LEASE)
        try:
            complete_and_commit(connection, lease)
            done.add(lease.task)
        except psycopg.DatabaseError as error:
            if error.sqlstate != LEASE_LOST:
                raise
            connection.rollback()
    return done


ENDS: Mapping[str, End] = {
    "complete": complete,
    "complete_in_transaction": _complete_each,
    "fail": lambda c, leases: fail(c, leases, ["it failed:\0"] * len(leases)),
    "snooze": lambda c, leases: snooze(c, leases, [DELAY] * len(leases)),
    "release": release,
    "renew": lambda c, leases: renew(c, leases, [LEASE] * len(leases)),
    "release_claim": lambda c, leases: release_claims(c, [lease.owner for lease in leases]),
}
_ROW = "select to_jsonb(task) from scheduler.tasks as task order by id"


def take(
    connection: Connection,
    owner: str,
    limit: int = 1,
    kinds: Sequence[str] = (KIND,),
    limited: Sequence[str] = (),
    floors: Sequence[Floor] = (),
) -> list[Attempt]:
    """Claim some kinds, each for the length of a lease."""
    return claim(connection, owner, dict.fromkeys(kinds, LEASE), limit, 0.0, limited, floors)


def rows(connection: Connection) -> list[dict[str, object]]:
    """All tasks as they are, in the order of their ids."""
    return [row for (row,) in connection.execute(_ROW).fetchall()]


def plainly(connection: Connection) -> None:
    """Read tables as they lie: what an index happens to have in order is no promise."""
    connection.execute(
        "select set_config('enable_indexscan', 'off', false),"
        " set_config('enable_bitmapscan', 'off', false),"
        " set_config('enable_indexonlyscan', 'off', false)"
    )


# Fences. Task 1 is held by z/2 under token 2, after z/1 lost it; task 2 by z/3 under token 1.

STALE = (
    Lease(1, 1, "z/1"),  # the zombie's
    Lease(1, 1, "z/2"),  # each of the three that fence, wrong alone
    Lease(1, 2, "z/1"),
    Lease(2, 2, "z/2"),
    Lease(2, 1, "z/1"),
    Lease(3, 1, "z/1"),
)


def intruder(connection: Connection) -> None:
    """End attempts by leases that nobody holds, in every way: nothing may change."""
    before = rows(connection)
    for name, end in ENDS.items():
        if name != "release_claim":  # goes by owner alone
            ended = end(connection, STALE)
            assert not ended, f"fenced: {name} let a lost lease through: {ended}"
            assert rows(connection) == before, f"fenced: {name} changed what others hold"
    looks = second_look(connection, STALE)
    for lease, look in looks.items():
        outcome = "reclaimed" if lease == STALE[0] else None
        assert look == (False, outcome), f"fenced: a second look at {lease} found {look}"
    assert looks.keys() == set(STALE), f"fenced: a second look told of {looks.keys()}"


def overtaken(connection: Connection) -> None:
    """End an attempt whose task was cancelled meanwhile, in every way: it stays cancelled."""
    before = rows(connection)
    for name, end in ENDS.items():
        ended = end(connection, [Lease(1, 1, "z/1")])
        assert not ended, f"fenced: {name} let through the lease of a cancelled task"
        assert rows(connection) == before, f"fenced: {name} changed a cancelled task"


def one_of_two(connection: Connection, end: str) -> None:
    """Claim two tasks at once, and a third; end one. It alone changes, and as it should."""
    mine = [attempt.lease for attempt in take(connection, "a/1", 2)]
    take(connection, "a/2")
    # No statement takes place at the instant of the claim.
    clock.advance(connection, timedelta(seconds=10))
    before = {row["id"]: row for row in rows(connection)}
    ended = ENDS[end](connection, mine[:1])
    after = {row["id"]: row for row in rows(connection)}
    named = {lease.task for lease in (mine if end == "release_claim" else mine[:1])}
    changed = {task for task, row in after.items() if row != before[task]}
    assert changed == named, f"fenced: {end} of {named} changed {changed}"
    told = {one.task if isinstance(one, Lease) else one for one in _ids(ended)}
    assert told == named, f"fenced: {end} of {named} said that it was {told}"
    _changed_rightly(connection, end, after[mine[0].task])


def _ids(ended: object) -> list[object]:
    assert isinstance(ended, list | set | dict)
    return list(ended)


_DUE_IN = {"snooze": DELAY, "fail": timedelta(seconds=1), "renew": LEASE}


def _changed_rightly(connection: Connection, end: str, row: Mapping[str, object]) -> None:
    """When the task is next due, or the lease over, is as far from the end as was asked for."""
    if end not in _DUE_IN:
        return
    column = "lease_expires_at" if end == "renew" else "next_run_at"
    [(wrong,)] = connection.execute(
        # Two looks at the clock are some milliseconds apart.
        "select abs(extract(epoch from %s::timestamptz - scheduler.now() - %s)) > 1",
        [row[column], _DUE_IN[end]],
    ).fetchall()
    assert not wrong, f"backs-off: {end} set {column} to {row[column]}"


def twice(connection: Connection, by: str) -> None:
    """Fail twice, the second time for good: what is kept is the second error, and the due time."""
    for error in ("it failed", "it failed again"):
        leases = [attempt.lease for attempt in take(connection, f"a/{error}")]
        assert leases, "progress: a task that failed once is not claimed again"
        due = rows(connection)[0]["next_run_at"]
        clock.advance(connection, timedelta(hours=1))
        if by == "fail":
            fail(connection, leases, [error])
        else:
            reclaim(connection, 10)
        clock.advance(connection, timedelta(hours=1))
    [row] = rows(connection)
    error = "it failed again" if by == "fail" else "lease expired: worker a/it failed again did"
    assert row["status"] == "dead", f"attempts-bounded: after its last attempt it is {row}"
    assert str(row["last_error"]).startswith(error), f"attempts-bounded: it died of {row}"
    assert row["next_run_at"] == due, f"attempts-bounded: a dead task is due anew: {row}"


def one_reclaimed(connection: Connection) -> None:
    """Two leases have expired and one runs; a reclaim of one takes the one that expired first."""
    plainly(connection)
    first = take(connection, "a/1")
    renew(connection, [first[0].lease], [3 * LEASE])
    second = take(connection, "a/2")
    clock.advance(connection, 4 * LEASE)
    take(connection, "a/3")
    for expected in ([second[0].lease], [first[0].lease], []):
        taken = [one.lease for one in reclaim(connection, 1)]
        assert taken == expected, f"reclaimed-in-time: a reclaim took {taken}, not {expected}"


def last_instant(connection: Connection) -> None:
    """The lease is over right now: it is held to its very end."""
    # Whatever a session does before its first statement is done by this one: it would take time.
    taken = reclaim(connection, 10)
    assert not taken, f"no-overlap: {taken} was taken back long before the lease's end"
    connection.execute(
        "update explorer_clock.reading set at = (select lease_expires_at from scheduler.tasks)"
        " - (select (last_value + 1) * interval '1 ms' from explorer_clock.ticks)"
    )
    taken = reclaim(connection, 10)
    assert not taken, f"no-overlap: {taken} was taken back in the lease's last instant"


def unfinished(connection: Connection) -> None:
    """End the transaction within the handler, and complete: it is refused."""
    [attempt] = take(connection, "a/1")
    begin_attempt(connection, attempt.lease, LEASE)
    connection.execute("commit")
    connection.execute("begin")
    refused = None
    try:
        complete_and_commit(connection, attempt.lease)
    except psycopg.DatabaseError as error:
        connection.rollback()
        refused = error.sqlstate
    assert refused == "LP008", f"effect-once: the completion was refused with {refused}"


# Claims.


def chooser(
    connection: Connection,
    expected: Sequence[int],
    limit: int,
    kinds: Sequence[str] = (KIND,),
    limited: Sequence[str] = (),
    floors: Sequence[Floor] = (),
) -> None:
    """Claim once; these tasks are claimed and no others."""
    plainly(connection)
    attempts = take(connection, "a/1", limit, kinds, limited, floors)
    found = sorted(attempt.task for attempt in attempts)
    assert found == sorted(expected), f"progress: claimed {found}, not {sorted(expected)}"
    for attempt in attempts:
        assert 0 <= attempt.late < 86_400, f"not-early: {attempt} is {attempt.late} s late"


def limited_claimer(connection: Connection, owner: str, kinds: Sequence[str]) -> list[int]:
    """Claim kinds that have limits."""
    return [one.task for one in take(connection, owner, 2, kinds, kinds)]


# Sources with caps.


def enqueuer(connection: Connection) -> bool:
    """Enqueue one task; whether the cap of its source let it in."""
    try:
        enqueue(connection, WORK, 1)
    except CapReachedError:
        return False
    return True


def stale_and_uncounted(connection: Connection) -> None:
    """Complete by leases that nobody holds, a task of the same source that no cap counts, and one
    of another that is counted."""
    done = complete(connection, [*STALE, Lease(3, 1, "z/0"), Lease(4, 1, "z/4")])
    assert done == {3, 4}, f"fenced: completed {done}, not tasks 3 and 4"


def each_completed(connection: Connection, end: str) -> None:
    """Complete the held tasks one by one; a place is freed only by those that took one."""
    for task, owner, outstanding in ((2, "z/2", 1), (1, "z/1", 0), (3, "z/3", 0)):
        ended = ENDS[end](connection, [Lease(task, 1, owner)])
        assert ended == {task}, f"progress: task {task} cannot be completed: {ended}"
        found = connection.execute(
            "select name, outstanding from scheduler.sources order by name"
        ).fetchall()
        expected = [("mall", 7), ("shop", outstanding)]
        assert found == expected, f"limit-held: after task {task} sources count {found}"


def together(connection: Connection) -> None:
    """Complete tasks of two sources at once: each source gets back its own."""
    leases = [Lease(task, 1, f"z/{task}") for task in (1, 2, 3)]
    complete(connection, leases)
    found = connection.execute("select name, outstanding from scheduler.sources order by name")
    counted = found.fetchall()
    assert counted == [("mall", 7), ("shop", 0)], f"limit-held: sources count {counted}"
