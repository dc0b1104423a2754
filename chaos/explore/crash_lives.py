"""The lives whose every crash point is tried, each as a program of three actors.

`a` lives the life, and goes on after a lost connection as its documentation says: a worker gives
back the claim whose reply it never got and looks again at what it wrote; a client asks again under
its unique key, or looks for its own row. `b` takes over when the lease of `a` is over, and dies
with what it claimed. `c` comes last: it repeats what a client may repeat, takes back what has
expired and finishes all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from psycopg import Connection

from chaos.explore import clock, scheduler_programs, wire
from chaos.explore import crash_actors as act
from chaos.explore.program import Endings, Program
from chaos.explore.scheduler_actors import KIND, LEASE
from chaos.explore.scheduler_watch import Watch
from scheduler import Every, Registry, cancel, discard, requeue
from scheduler.access import limit_source, restrict_kind
from scheduler.dispatch import declare_limits
from scheduler.finish import fail
from scheduler.floors import find_floors
from scheduler.lease import Attempt, Lease, reclaim
from scheduler.outcome import Outcome
from scheduler.schedules import declare_schedules, pause_schedules, plan_due, resume_schedules
from scheduler.statements import SQL

# A statement is called by the name of its file, which its first line gives away on the wire.
NAMES = {wire.title(file.read_text()): file.stem for file in sorted(SQL.glob("*.sql"))}

RESET = (
    "delete from scheduler.kind_limits; delete from scheduler.kind_sources;"
    " delete from scheduler.claim_floors; delete from scheduler.sources;"
    " delete from scheduler.schedules; delete from explorer_orders;"
    " select setval(pg_get_serial_sequence('scheduler.tasks', 'id'), 100)"
)
_WRONG = """
select format('%%stask %%s is %%s, not %%s',
    case when status in ('pending', 'running') then 'progress: ' else '' end,
    id, status, %(ends)s::text)
from scheduler.tasks where status <> %(ends)s
union all
select format(
    'task %%s was claimed %%s times, and %%s attempts were logged', id, lease_token, logged)
from (
    select id, lease_token,
        (select count(*) from scheduler.run_log where task_id = id) as logged
    from scheduler.tasks) as task
where lease_token <> logged
union all
select format(
    'source %%s has %%s tasks outstanding on paper and %%s in truth', name, outstanding, truth)
from (
    select name, outstanding, (
        select count(*) from scheduler.tasks
        where source = name and counted and status in ('pending', 'running', 'dead')) as truth
    from scheduler.sources) as source
where outstanding <> truth
union all
select format('%%s tasks, not %%s', count(*), %(tasks)s::int)
from scheduler.tasks having count(*) <> %(tasks)s
"""


def _registry(every: timedelta) -> Registry:
    registry = Registry()
    job = registry.kind(KIND, int, lease=LEASE)(act.WORK.handler)
    registry.schedule("daily", job, 1, Every(every))
    return registry


_DAILY = _registry(timedelta(days=1))
_RARELY = _registry(timedelta(days=300))

_cancel: act.Act = partial(cancel, tasks=[1, 2])
_requeue: act.Act = partial(requeue, tasks=[1])
_discard: act.Act = partial(discard, tasks=[1])
_declare: act.Act = partial(declare_schedules, registry=_DAILY)
_plan: act.Act = partial(plan_due, limit=10)
_reclaim: act.Act = partial(reclaim, limit=10)
_SETTINGS: tuple[act.Act, ...] = (
    partial(declare_schedules, registry=_RARELY),
    partial(pause_schedules, names=["daily"]),
    partial(resume_schedules, names=["daily"]),
    partial(limit_source, source="shop", most=5),
    partial(restrict_kind, kind="other", sources=["shop"]),
    partial(declare_limits, limits={KIND: 2}),
)


_hour: act.Act = partial(clock.advance, by=act.OVER)
TAKEN: tuple[act.Act, ...] = (partial(act.take, owner="z/1"),)
DEAD: tuple[act.Act, ...] = (
    *TAKEN,
    partial(fail, leases=[Lease(1, 1, "z/1")], errors=["it failed"]),
    _hour,
    partial(act.take, owner="z/2"),
    partial(fail, leases=[Lease(1, 2, "z/2")], errors=["it failed again"]),
)
PLANNED: tuple[act.Act, ...] = (_declare, partial(clock.advance, by=timedelta(days=1)))


# What must hold at the end.


def _at_end(connection: Connection, endings: Endings, ends: str, tasks: int, also: str) -> None:
    for name, ending in endings.items():
        assert ending.error is None, f"{name} gave up: {ending.error!r}"
    wrong = [text for (text,) in connection.execute(_WRONG, {"ends": ends, "tasks": tasks})]
    if also:
        wrong += [text for (text,) in connection.execute(also.encode())]
    assert not wrong, "; ".join(wrong)


_EFFECTS = (
    "select format('task %s has %s effects', id, effects) from (select id, (select count(*) from"
    " explorer_effects where task = id) as effects from scheduler.tasks) as task where effects <> 1"
)
_STANDING = (
    "select 'the settings are not what was set' where not exists (select from scheduler.schedules"
    " where name = 'daily' and declared and not paused and rule = 'every 25920000s')"
    " or not exists (select from scheduler.sources where name = 'shop' and max_outstanding = 5)"
    " or not exists (select from scheduler.kind_sources where kind = 'other' and source = 'shop')"
    " or not exists (select from scheduler.kind_limits where kind = 'job' and max_running = 2)"
)


def install(connection: Connection) -> None:
    """As for the other programs, and a client's own table. The lives can share one database."""
    [(standing,)] = connection.execute("select to_regclass('explorer_orders')")
    if standing is None:
        scheduler_programs.install(connection)
        connection.execute("create table explorer_orders (number integer primary key)")


class Life(NamedTuple):
    """A life and what it is about."""

    program: Program
    about: str


def _life(
    name: str,
    about: str,
    lives: act.Act,
    *,
    tasks: int = 1,
    attempts: int = 5,
    before: Sequence[act.Act] = (),
    repeats: Sequence[act.Act] = (),
    limited: Sequence[str] = (),
    finishes: Callable[[Connection, Attempt], object] = act.completed,
    ends: str = "completed",
    makes: int | None = None,
    also: str = "",
) -> tuple[str, Life]:
    """`makes`: how many tasks there are at the end, if not those of the beginning."""
    watch = Watch(tasks=tasks, attempts=attempts, claims=10)

    def setup(connection: Connection) -> None:
        watch.setup(connection)
        connection.execute(RESET.encode())
        for one in before:
            watch.invariant(connection)
            one(connection)

    program = Program(
        setup=setup,
        actors={
            "a": lives,
            "b": partial(act.rival, limited=limited),
            "c": partial(act.rest, repeats=repeats, limited=limited, ends=finishes),
        },
        invariant=watch.invariant,
        at_end=partial(_at_end, ends=ends, tasks=tasks if makes is None else makes, also=also),
        install=install,
        autocommit=True,
        imported=f"{__name__}:LIVES[{name!r}].program",
    )
    return name, Life(program, about)


_LIMITS: dict[str, int | None] = {KIND: 1}
_look = partial(find_floors, kinds=[KIND], age=timedelta(0))  # anew each time

LIVES = dict(
    [
        _life(
            "complete",
            "an attempt is renewed and completed",
            partial(act.worker, outcome=Outcome("completed")),
        ),
        _life(
            "succeed",
            "an attempt is completed and the next claimed with one commit",
            act.one_after_another,
            tasks=2,
        ),
        _life(
            "fail",
            "an attempt fails and is tried again",
            partial(act.worker, outcome=Outcome("failed", "no")),
        ),
        _life(
            "die",
            "the last attempt fails",
            partial(act.worker, outcome=Outcome("failed", "no")),
            attempts=1,
            ends="dead",
        ),
        _life(
            "snooze",
            "an attempt is put off",
            partial(act.worker, outcome=Outcome("snoozed", delay=timedelta(seconds=5))),
        ),
        _life(
            "release", "an attempt is given back", partial(act.worker, outcome=Outcome("released"))
        ),
        _life("forget", "a claim without a reply is given back by its owner", act.forgetter),
        _life(
            "limited",
            "a kind of which one may run at once",
            partial(act.worker, outcome=Outcome("completed"), limits=_LIMITS),
            tasks=2,
            repeats=[partial(declare_limits, limits=_LIMITS)],
            limited=[KIND],
        ),
        _life(
            "effect",
            "an effect and its completion are one transaction",
            partial(act.transactional, ends=act.with_effect),
            finishes=act.with_effect,
            also=_EFFECTS,
        ),
        _life(
            "reclaim",
            "what a dead worker held is taken back",
            partial(act.repeated, acts=[_reclaim, _reclaim]),
            before=[*TAKEN, _hour],
        ),
        _life(
            "look",
            "where the earliest waiting task is, other workers are told",
            partial(act.repeated, acts=[_look, _look]),
            repeats=[_look],
        ),
        _life(
            "enqueue",
            "a task and its client's own row are one transaction",
            partial(act.repeated, acts=[act.cap, act.order]),
            tasks=0,
            repeats=[act.cap, act.order],
            makes=1,
        ),
        _life(
            "unique",
            "a task is asked for under a key until there is an answer",
            partial(act.repeated, acts=[act.cap, act.unique]),
            tasks=0,
            repeats=[act.cap, act.unique],
            makes=1,
        ),
        _life(
            "cancel",
            "a waiting and a running task are cancelled",
            partial(act.repeated, acts=[_cancel]),
            tasks=2,
            before=TAKEN,
            repeats=[_cancel],
            ends="cancelled",
        ),
        _life(
            "requeue",
            "a dead task is put back to work",
            partial(act.repeated, acts=[_requeue]),
            attempts=2,
            before=DEAD,
            repeats=[_requeue],
        ),
        _life(
            "discard",
            "a dead task is given up",
            partial(act.repeated, acts=[_discard]),
            attempts=2,
            before=DEAD,
            repeats=[_discard],
            ends="discarded",
        ),
        _life(
            "plan",
            "an occurrence of a schedule is planned",
            partial(act.repeated, acts=[_declare, _plan]),
            tasks=0,
            before=PLANNED,
            repeats=[_plan],
            makes=1,
        ),
        _life(
            "settings",
            "schedules, caps, restrictions and limits are set",
            partial(act.repeated, acts=_SETTINGS),
            tasks=0,
            repeats=_SETTINGS,
            makes=0,
            also=_STANDING,
        ),
    ]
)
