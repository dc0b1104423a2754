"""`chaos bench transactional`: tasks whose effect and completion are one commit, beside pgbench.

The tasks are those of every drain. What differs is the handler, which writes one row on the
connection that its worker gives it. The axis is how many handlers run at once, that is the slots of
all workers: pgbench has as many clients, and each claims as many tasks at once as a worker does. So
both have the same number of sessions that write effects, and as many tasks a claim. With default
settings that is the number of slots: what a worker claims in advance depends on its pace.

pgbench's cycle: claim, and then for each task three messages: BEGIN with `begin_attempt.sql`, the
insert of the effect, and the completion (`complete_in_transaction.sql`) with its COMMIT. Each has
its values put into its text, as the worker sends the first and the last. The claim is prepared, as
the worker's is.
What a worker does besides: between two handlers its session forgets what the first may have set
(`discard all`), and another session claims, renews and listens.

After each drain each task must also have exactly one effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from chaos.bench import effect
from chaos.bench.computer import SETTINGS, Clock
from chaos.bench.contention import NO_PGBENCH
from chaos.bench.crew import Workers
from chaos.bench.drain import Crew, Place, in_turn, prepare
from chaos.bench.limit import (
    NEW_OWNER,
    Cycle,
    Pgbench,
    find_pgbench,
    floor_columns,
    gathered,
    plain,
    say_if_vain,
)
from chaos.bench.noop import KIND, LEASE_SECONDS
from chaos.bench.result import LIMIT, OURS, Key, Result
from chaos.bench.setting import DEFAULT, Setting
from chaos.bench.tell import Tell
from chaos.cluster.postgres import Postgres, postgres
from scheduler import Priority
from scheduler.finish import BEGIN

_OWNER = "':owner'"  # pgbench puts the value inside the quotes
_CLAIM = {
    "owner": "$1",
    "kinds": "$2",
    "leases": "$3",
    "limit": "$4",
    "floor_kinds": "$2",
    "floor_times": "$5",
    "floor_ids": "$6",
    "floor_priorities": f"'{{{Priority.NORMAL:d}}}'",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. tasks: for every drain."""

    settings: tuple[Setting, ...]
    workers: tuple[int, ...]
    tasks: int
    repeats: int

    def cells(self, with_limit: bool) -> list[Key]:
        """One repeat, in its order: at each number of workers ours, then the limit of each."""
        cells = []
        for workers in self.workers:
            ours = [Key(OURS, one.name, _batch(one), workers * one.slots) for one in self.settings]
            cells += ours
            if with_limit:
                cells += [Key(LIMIT, str(key.batch), key.batch, key.at) for key in ours]
        return list(dict.fromkeys(cells))


def _batch(setting: Setting) -> int:
    """How many tasks a client of pgbench claims at once. As many as default settings could come to
    would leave nothing to most clients."""
    return setting.slots if setting.name == DEFAULT else setting.batch


def run(plan: Plan, command: str, tell: Tell) -> Result:
    """Measure all of the plan. Raises WrongDrainError, BenchError or ClusterError."""
    clock = Clock(command)
    settings = {setting.name: setting for setting in plan.settings}
    with (
        postgres(settings=SETTINGS, durable=True) as server,
        TemporaryDirectory(prefix="leaseproof-bench-") as scratch,
    ):
        clock.start(server)
        pgbench = find_pgbench(server)
        place = prepared(server, plan.tasks, Path(scratch))

        def crew(key: Key, dsn: str, directory: Path) -> Crew:
            if key.system == OURS:
                setting = settings[key.setting]
                return Workers(dsn, setting, key.at // setting.slots, directory, transactional=True)
            assert pgbench is not None
            return Pgbench(pgbench, dsn, cycle(key.batch), key.at, directory)

        cells = plan.cells(with_limit=pgbench is not None)
        measurements = in_turn(cells, plan.repeats, lambda _: place, crew, tell)
        notes = [NO_PGBENCH] if pgbench is None else []
        return clock.result("transactional", "handlers at once", server, notes, measurements)


def prepared(server: Postgres, tasks: int, scratch: Path) -> Place:
    """The template of every drain, with the table of effects."""
    place = prepare(server, tasks, scratch)
    with psycopg.connect(server.dsn(place.template), autocommit=True) as connection:
        connection.execute(effect.TABLE)
    return place._replace(violations=effect.violations)


def cycle(batch: int) -> Cycle:
    """Claim at most so many tasks; for each one transaction with its effect and completion.

    The protocol is the simple one, since no other sends two statements in one message. A statement
    that is prepared is then so by SQL.
    """
    variables = {
        "kinds": f"'{{{KIND}}}'",
        "leases": f"""'{{"{LEASE_SECONDS} s"}}'""",
        "limit": batch,
        "idle": f"'{LEASE_SECONDS * 1000}ms'",
        "lock": f"'{LEASE_SECONDS * 500}ms'",
        "prepared": 0,
        "floor_times": "{}",
        "floor_ids": "{}",
    }

    def script(vain: Path) -> str:
        columns = ", ".join(
            f"(array_agg(id))[{n}] as task_{n}, (array_agg(lease_token))[{n}] as token_{n}"
            for n in range(1, batch + 1)
        )
        claim = gathered(plain("claim", _CLAIM.__getitem__), "update", "claimed") + (
            f"select count(*) as claimed, array_agg(payload) as payloads, {columns},"
            f" {floor_columns('claimed')} from claimed"
        )
        return (
            "\\if :prepared = 0\n"
            "prepare claim (text, text[], interval[], integer, timestamptz[], bigint[])"
            f" as {claim};\n"
            "\\set prepared 1\n"
            "\\endif\n"
            f"{NEW_OWNER}execute claim({_OWNER}, :kinds, :leases, :limit,"
            " ':floor_times', ':floor_ids')\\gset\n"
            f"{''.join(_attempt(number) for number in range(1, batch + 1))}{say_if_vain(vain)}"
        )

    return Cycle("simple", variables, script)


def _attempt(number: int) -> str:
    """The transaction of the claim's task of this number, if it got so many."""
    of_task = {"task": f":task_{number}", "token": f":token_{number}", "owner": _OWNER}
    mark = f"concat_ws(':', {of_task['task']}, {of_task['owner']}, {of_task['token']})"
    begin = plain("begin_attempt", {"mark": mark, "idle": ":idle", "lock": ":lock"}.__getitem__)
    complete = plain("complete_in_transaction", of_task.__getitem__)
    return (
        f"\\if :claimed >= {number}\n"
        f"{BEGIN.decode()} \\;\n"
        f"{begin};\n"
        f"insert into public.effects values ({of_task['task']});\n"
        f"{complete} \\;\n"
        "commit;\n"
        "\\endif\n"
    )
