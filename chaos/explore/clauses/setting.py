"""What programs for single clauses are made of: what was done before, who acts, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clauses import actors as act
from chaos.explore.crash_actors import OVER
from chaos.explore.crash_lives import RESET, install
from chaos.explore.program import Actor, Endings, Program
from chaos.explore.run import Bounds
from chaos.explore.scheduler_programs import Known, ended_well
from chaos.explore.scheduler_watch import Watch
from scheduler.lease import Lease, reclaim

Act = Callable[[Connection], object]

hour: Act = partial(clock.advance, by=OVER)
reclaim_all: Act = partial(reclaim, limit=10)


def take(owner: str, limit: int = 1) -> Act:
    """A claim by this owner."""
    return partial(act.take, owner=owner, limit=limit)


def sql(text: str) -> Act:
    """A statement by hand."""
    return lambda connection: connection.execute(text.encode())


def end_one(connection: Connection, end: str) -> object:
    """End the first task's first attempt, as `z/1` would who holds it."""
    return act.ENDS[end](connection, [Lease(1, 1, "z/1")])


def _within_limits(connection: Connection) -> None:
    """No more leases than the limits of their kinds allow, nor tasks than the caps of sources."""
    over = connection.execute(
        "select kind, max_running, running from (select kind, max_running, (select count(*) from"
        " scheduler.tasks as held where held.kind = limited.kind and status = 'running') as running"
        " from scheduler.kind_limits as limited) as limited where running > max_running"
    ).fetchone()
    assert over is None, "limit-held: {} is limited to {}, and {} run".format(*(over or ()))
    over = connection.execute(
        "select name, max_outstanding, outstanding from scheduler.sources"
        " where outstanding > max_outstanding"
    ).fetchone()
    assert over is None, "limit-held: {} may have {} tasks, and has {}".format(*(over or ()))


def _ended(connection: Connection, endings: Endings, returned: Mapping[str, object]) -> None:
    ended_well(connection, endings)
    for name, expected in returned.items():
        found = endings[name].returned
        assert found == expected, f"progress: {name} got {found}, not {expected}"


def known(
    name: str,
    about: str,
    actors: Mapping[str, Actor],
    *,
    tasks: int,
    rows: str = "",
    before: Sequence[Act] = (),
    claims: int = 10,
    limits: bool = False,
    returned: Mapping[str, object] | None = None,
) -> tuple[str, Known]:
    """`rows`: what makes the tasks other than all due and alike. `before`: what was done to them
    until the actors begin. `returned`: what actors must return in every schedule."""
    watch = Watch(tasks=tasks, attempts=2, claims=claims)

    def setup(connection: Connection) -> None:
        watch.setup(connection)
        connection.execute(f"{RESET}; {rows}".encode())
        for one in before:
            watch.invariant(connection)
            one(connection)

    def invariant(connection: Connection) -> None:
        watch.invariant(connection)
        if limits:
            _within_limits(connection)

    program = Program(
        setup=setup,
        actors=actors,
        invariant=invariant,
        at_end=partial(_ended, returned=returned or {}),
        install=install,
        advance=clock.advance,
        autocommit=True,
        imported=f"chaos.explore.clauses.programs:CLAUSES[{name!r}].program",
    )
    return name, Known(program, Bounds(preemptions=None), about)
