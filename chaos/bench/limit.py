"""The limit: pgbench, a C program, runs the worker's own statements.

It does so in two ways. It completes its last batch and claims the next in one statement, as a
worker does; or it claims and then completes, which are two statements and commits.

The statements are read from the scheduler's files at each run, so the limit is always that of the
SQL that our workers run. pgbench keeps one row of a result, so the rows of a claim are gathered by
an aggregate around it, and so is what a completion left over; nothing else is changed. Claims begin
at the place of the earliest task of the last one, as a worker's do; a worker also looks twice a
second for what lies below, which pgbench is spared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from chaos.bench import BenchError
from chaos.bench.noop import KIND, LEASE_SECONDS
from chaos.bench.worker import VAIN, Seen
from chaos.cluster.postgres import Postgres
from scheduler import Priority
from scheduler.session import OWN_STATEMENTS
from scheduler.statements import statement

NEW_OWNER = "\\set owner random(1, 4611686018427387903)\n"
LONGEST = 3600  # seconds; the bench ends it when the drain is over
# What our sessions have that matters to speed, and what a worker's have besides: see
# scheduler/session.py.
SESSION = "-c jit=off -c default_transaction_isolation=read\\ committed"
WORKERS_SESSION = SESSION + "".join(f" -c {name}={to}" for name, to in OWN_STATEMENTS.items())
_PARAMETER = re.compile(r"%\((\w+)\)s")
_COMMENT = re.compile(r"--.*")


class Cycle(NamedTuple):
    """What each client of pgbench does again and again.

    protocol: pgbench's. variables: what it begins with. script: given the file to touch when there
    was nothing to claim.
    """

    protocol: str
    variables: Mapping[str, object]
    script: Callable[[Path], str]


def find_pgbench(server: Postgres) -> Path | None:
    """The server's own pgbench, else one on PATH; None if this machine has none."""
    beside = server.binaries.bindir / "pgbench"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("pgbench")
    return None if found is None else Path(found)


def complete_and_claim(batch: int) -> Cycle:
    """Complete what was claimed last and claim at most so many tasks, in one statement; say so if
    there was nothing to claim.

    A completion skips rows that are locked, for a moment, by a claim that came too late for them.
    Like the worker, the client writes those again with its next batch.
    """

    def script(vain: Path) -> str:
        both = gathered_both(plain("complete_and_claim"))
        return f"{NEW_OWNER}{both}\\gset\n{say_if_vain(vain)}"

    return Cycle("prepared", _variables(batch, "tasks", "tokens", "owners"), script)


def claim_then_complete(batch: int) -> Cycle:
    """Claim at most so many tasks, then complete them, and again what was locked; say so if there
    was nothing to claim."""

    def script(vain: Path) -> str:
        return (
            f"{NEW_OWNER}{gathered_claim(plain('claim'))}\\gset\n"
            "\\if :n > 0\n"
            f"{gathered_complete(plain('complete'))}\\gset\n"
            f"\\endif\n{say_if_vain(vain)}"
        )

    return Cycle("prepared", _variables(batch, "left_tasks", "left_tokens", "left_owners"), script)


def _variables(batch: int, *empty: str) -> dict[str, object]:
    return {
        "kinds": f"{{{KIND}}}",
        "leases": f'{{"{LEASE_SECONDS} s"}}',
        "limit": batch,
        "floor_kinds": f"{{{KIND}}}",
        "floor_priorities": f"{{{Priority.NORMAL:d}}}",
        **dict.fromkeys(("floor_times", "floor_ids", *empty), "{}"),
    }


def floor_columns(rows: str) -> str:
    """The place of the earliest task of these rows, a FROM clause's: floor_times and floor_ids,
    from which the next claim begins. Both are empty if there are no rows, and unnest makes nulls of
    that: the claim begins at the start."""
    places = (
        f"array(select {column} from {rows} order by next_run_at, id limit 1) as floor_{name}"
        for name, column in (("times", "next_run_at"), ("ids", "id"))
    )
    return ", ".join(places)


def say_if_vain(vain: Path) -> str:
    """The end of a script: touch the file if nothing was claimed, and wait a little."""
    return f"\\if :claimed = 0\n\\shell touch '{vain}'\n\\sleep 20 ms\n\\endif\n"


def gathered_both(both: str) -> str:
    """The statement that does both with its rows as one: how many were claimed (claimed), and the
    arrays of what the next one completes: those, and what this one left over. Raises BenchError for
    a statement that is no longer a SELECT after a WITH list.

    The payloads are gathered too: they have to reach the client.
    """
    return gathered(
        both, "select", "returned (id, token, kind, payload, number, most, next_run_at)"
    ).rstrip() + (
        ",\nrunning as (\n"
        "select id, token, :owner::text as owner, payload, next_run_at\n"
        "from returned where token is not null\n"
        "union all\n"
        "select id, token, owner, null, null from held\n"
        "where id not in (select id from returned where token is null)\n)\n"
        "select count(payload) as claimed, coalesce(array_agg(id), '{}') as tasks,"
        " coalesce(array_agg(token), '{}') as tokens, coalesce(array_agg(owner), '{}') as owners,"
        " array_agg(payload) as payloads,"
        f" {floor_columns('running where payload is not null')} from running"
    )


def gathered_claim(claim: str) -> str:
    """The claim with its rows as one: how many (claimed), and with what the last completion left
    over, how many are to be completed (n) and the arrays for it. Raises BenchError likewise."""
    return gathered(claim, "update", "claimed") + (
        "select count(*) as claimed, count(*) + cardinality(:left_tasks::bigint[]) as n,"
        " coalesce(array_agg(id), '{}') || :left_tasks::bigint[] as tasks,"
        " coalesce(array_agg(lease_token), '{}') || :left_tokens::bigint[] as tokens,"
        " array_fill(:owner::text, array[count(*)::integer]) || :left_owners::text[] as owners,"
        f" array_agg(payload) as payloads, {floor_columns('claimed')} from claimed"
    )


def gathered_complete(complete: str) -> str:
    """The completion with what it did not return as arrays. Raises BenchError likewise."""
    return gathered(complete, "insert", "logged") + (
        "select coalesce(array_agg(id), '{}') as left_tasks,"
        " coalesce(array_agg(token), '{}') as left_tokens,"
        " coalesce(array_agg(owner), '{}') as left_owners"
        " from held where id not in (select task_id from logged)"
    )


def gathered(text: str, verb: str, name: str) -> str:
    """The statement's last part, which begins with the verb, as one more CTE of its WITH list.

    Raises BenchError if it is of another form.
    """
    changed, times = re.subn(rf"^\)\n(?={verb} )", f"),\n{name} as (\n", text, flags=re.MULTILINE)
    if times != 1:
        raise BenchError(
            f"the statement that pgbench is to run is no longer one {verb.upper()} after a WITH"
            f" list, so chaos/bench/limit.py cannot gather its rows:\n{text}"
        )
    return f"{changed}\n)\n"


def plain(name: str, parameter: Callable[[str], str] = ":{}".format) -> str:
    """A statement of the scheduler without comments, its parameters as pgbench variables, or as
    `parameter` writes them."""
    text = _COMMENT.sub("", statement(name).decode())
    return _PARAMETER.sub(lambda found: parameter(found[1]), text).strip()


def defined(variables: Mapping[str, object]) -> list[str]:
    """The options by which pgbench's variables get their first values."""
    return [word for name, value in variables.items() for word in ("-D", f"{name}={value}")]


class Pgbench:
    """`clients` clients of pgbench, each with the same cycle."""

    def __init__(
        self, program: Path, dsn: str, cycle: Cycle, clients: int, directory: Path
    ) -> None:
        self._program = program
        self._dsn = dsn
        self._cycle = cycle
        self._clients = clients
        self._directory = directory
        self._threads = min(os.cpu_count() or 1, clients)
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[str] | None = None

    @property
    def sessions(self) -> str:
        """How pgbench calls its sessions."""
        return "pgbench"

    def assemble(self) -> None:
        """Write the script. pgbench itself connects all its clients before the first begins."""
        script = self._cycle.script(self._directory / VAIN)
        (self._directory / "script.sql").write_text(script)

    def begin(self) -> None:
        """Start pgbench."""
        self._said = (self._directory / "said").open("w+")
        self._process = subprocess.Popen(
            [
                *(str(self._program), "--no-vacuum", f"--protocol={self._cycle.protocol}"),
                *(f"--client={self._clients}", f"--jobs={self._threads}", f"--time={LONGEST}"),
                *defined(self._cycle.variables),
                f"--file={self._directory / 'script.sql'}",
                self._dsn,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PGOPTIONS": WORKERS_SESSION, "LC_ALL": "C"},
        )

    def asked_in_vain(self) -> bool:
        """Whether a client found nothing to claim."""
        if self._running().poll() is not None:
            raise BenchError(f"pgbench ended by itself; it says:\n{self._words()}")
        return (self._directory / VAIN).exists()

    def pids(self) -> list[int]:
        """The one process, if it has begun."""
        return [] if self._process is None else [self._process.pid]

    def end(self) -> list[Seen]:
        """Stop it. It sees no single claims."""
        process = self._running()
        process.terminate()
        process.wait()
        # A client whose statement failed is gone from then on: what the others did is no limit.
        if "error" in (words := self._words()):
            raise BenchError(f"a client of pgbench failed; it says:\n{words}")
        return []

    def destroy(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._said is not None:
            self._said.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise BenchError("pgbench was not started")
        return self._process

    def _words(self) -> str:
        assert self._said is not None
        self._said.seek(0)
        return self._said.read().strip()
