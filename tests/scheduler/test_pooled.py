"""Workers, callers and commands through a transaction pooler leave nothing in its sessions.

The pool has two sessions a database, fewer than one worker would have to itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor, Connection
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from chaos.cluster.pgbouncer import PgBouncer, pgbouncer
from chaos.cluster.postgres import Postgres, postgres
from scheduler import (
    Attempt,
    DatabaseUnreachableError,
    Registry,
    SessionError,
    Unique,
    Worker,
    enqueue,
    enqueue_many,
    enqueue_unique,
    migrate,
)
from scheduler.cli import main
from scheduler.dispatch import claim, declare_limits, new_owner
from scheduler.statements import fetch
from tests.scheduler.working import (
    QUICK,
    SHORT,
    ignore,
    outcomes,
    over,
    row,
    running,
    task,
    worker,
)
from tests.waiting import wait_for

POOL = 2
OTHERS = "set others.setting = 'theirs'"  # what another user of the pool left in its sessions
# What a session of the pool must not keep, and must not lose either.
LEFT = """
    select
        current_setting('lock_timeout'),
        current_setting('idle_in_transaction_session_timeout'),
        (select count(*) from pg_prepared_statements),
        (select count(*) from pg_listening_channels()),
        coalesce(current_setting('scheduler.attempt', true), ''),
        coalesce(current_setting('scheduler.limits', true), ''),
        current_setting('others.setting', true)
"""
NOTHING = ("0", "0", 0, 0, "", "", "theirs")


@pytest.fixture(scope="module")
def pooler(server: Postgres, real_pgbouncer: Path) -> Iterator[PgBouncer]:
    """A pooler in front of the tests' server."""
    with pgbouncer(server, pool_size=POOL) as running_one:
        yield running_one


@pytest.fixture
def pooled_dsn(dsn: str, pooler: PgBouncer) -> str:
    """The test's database, through the pooler."""
    return make_conninfo(dsn, port=pooler.port)


def pooled(registry: Registry, dsn: str, **settings: Any) -> Worker:
    """A worker that knows of the pooler."""
    return worker(registry, dsn, pooled=True, **settings)


@contextmanager
def whole_pool(dsn: str) -> Iterator[list[Connection]]:
    """All sessions of the pool: each connection holds one in its transaction."""
    with ExitStack() as stack:
        connections = [
            stack.enter_context(psycopg.connect(dsn, prepare_threshold=None)) for _ in range(POOL)
        ]
        pids = {str(each.execute("select pg_backend_pid()").fetchall()) for each in connections}
        assert len(pids) == POOL
        yield connections


def lent(dsn: str) -> int:
    """How many sessions the pooler has lent out, except to its own console."""
    console = make_conninfo(dsn, dbname="pgbouncer")
    with psycopg.connect(console, autocommit=True) as connection:
        servers = ClientCursor(connection, row_factory=dict_row).execute("show servers").fetchall()
    return sum(each["state"] == "active" for each in servers)


@contextmanager
def left_as_it_was(dsn: str) -> Iterator[None]:
    """What is done inside changes nothing in the pool's sessions, which exist from here on."""
    with whole_pool(dsn) as connections:
        for connection in connections:
            connection.execute(OTHERS.encode())
            connection.commit()
    with whole_pool(dsn) as connections:
        before = [connection.execute(LEFT.encode()).fetchall() for connection in connections]
    assert before == [[NOTHING]] * POOL
    yield
    with whole_pool(dsn) as connections:
        after = [connection.execute(LEFT.encode()).fetchall() for connection in connections]
    assert after == [[NOTHING]] * POOL


def test_several_workers_complete_tasks_of_every_style_once(
    db: Connection, dsn: str, pooled_dsn: str
) -> None:
    registry, ran = Registry(), Counter[int]()
    db.execute("create table effects (task bigint)")

    @registry.kind("plain", int)
    def plain(attempt: Attempt, payload: int) -> None:
        ran[attempt.task] += 1

    @registry.kind("one-at-a-time", int, limit=1)
    def one_at_a_time(attempt: Attempt, payload: int) -> None:
        ran[attempt.task] += 1

    @registry.kind("async", int)
    async def in_a_loop(attempt: Attempt, payload: int) -> None:
        ran[attempt.task] += 1

    @registry.transactional("both", int)
    def both(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("insert into effects values (%s)", [attempt.task])

    numbers = [
        number
        for each in (plain, one_at_a_time, in_a_loop, both)
        for number in enqueue_many(db, each, range(10))
    ]
    with (
        left_as_it_was(pooled_dsn),
        running(*(pooled(registry, pooled_dsn, slots=3) for _ in range(3))),
    ):
        for number in numbers:
            over(db, number)
    assert ran == Counter(numbers[:30])
    effects = db.execute("select task from effects order by task").fetchall()
    assert [number for (number,) in effects] == numbers[30:]
    for number in numbers:
        assert (outcomes(db, number), row(db, number)["attempts"]) == (["completed"], 1)


def test_an_idle_worker_keeps_no_session_of_the_pool(db: Connection, pooled_dsn: str) -> None:
    """psycopg ends a pipeline with a Flush. A pooler that has had its session back by then would
    lend one for it, until more is sent; so there are no pipelines."""
    registry = Registry()

    @registry.transactional("both", int)
    def both(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("select")

    limited = registry.kind("limited", int, limit=1)(ignore)
    numbers = [*enqueue_many(db, both, range(20)), *enqueue_many(db, limited, range(5))]
    # It does not look again by itself.
    with running(pooled(registry, pooled_dsn, slots=3, poll=timedelta(days=1))):
        for number in numbers:
            over(db, number)
        wait_for(lambda: not lent(pooled_dsn), "all sessions to be back")


def test_a_claim_of_limited_kinds_limits_itself(db: Connection, pooled_dsn: str) -> None:
    """A worker that is stopped in the middle of it must not keep the kind from others."""
    kind = Registry().kind("limited", int, lease=SHORT, limit=1)(ignore)
    declare_limits(db, {"limited": 1})
    enqueue(db, kind, 1)
    with closing(psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None)) as stopped:
        stopped.execute("begin")
        values = {"kinds": ["limited"], "idle": f"{SHORT // timedelta(milliseconds=1)}ms"}
        fetch(stopped, "lock_limits", values)
        leases = {"limited": kind.lease}

        def claimed() -> list[Attempt]:
            return claim(db, new_owner("other"), leases, 1, 0.0, ["limited"])

        assert not claimed()
        wait_for(claimed, "the server to end the other's transaction")


def test_a_transaction_limits_itself(db: Connection, pooled_dsn: str) -> None:
    registry, seen = Registry(), dict[str, str]()
    settings = ("idle_in_transaction_session_timeout", "lock_timeout", "transaction_isolation")

    @registry.transactional("work", int, lease=timedelta(seconds=9))
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        for name in settings:
            [(seen[name],)] = connection.execute("select current_setting(%s)", [name]).fetchall()

    number = enqueue(db, work, 1)
    with running(pooled(registry, pooled_dsn)):
        over(db, number)
    assert [seen[name] for name in settings] == ["9s", "4500ms", "read committed"]


def test_the_server_ends_a_transaction_that_idles_for_a_lease(
    db: Connection, pooled_dsn: str
) -> None:
    registry = Registry()

    @registry.transactional("work", int, lease=SHORT)
    def work(attempt: Attempt, payload: int, connection: Connection) -> None:
        [(backend,)] = connection.execute("select pg_backend_pid()").fetchall()
        there = "select from pg_stat_activity where pid = %s"
        wait_for(lambda: not db.execute(there, [backend]).fetchall(), "the session to end")

    number = enqueue(db, work, 1)
    with running(pooled(registry, pooled_dsn)):
        wait_for(lambda: outcomes(db, number), "the attempt to end")
    assert outcomes(db, number)[0] == "failed"


def test_a_lease_is_renewed_through_the_pool(db: Connection, dsn: str, pooled_dsn: str) -> None:
    registry = Registry()

    @registry.kind("long", int, lease=SHORT)
    def long(attempt: Attempt, payload: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as beside:
            expiries = set()

            def renewed() -> bool:
                expiries.add(row(beside, attempt.task)["lease_expires_at"])
                return len(expiries) == 4

            wait_for(renewed, "three renewals")

    number = enqueue(db, long, 1)
    with running(pooled(registry, pooled_dsn)):
        over(db, number)
    assert outcomes(db, number) == ["completed"]


def test_an_idle_worker_finds_a_new_task_by_polling(db: Connection, pooled_dsn: str) -> None:
    registry = Registry()
    work = registry.kind("work", int)(ignore)
    with running(pooled(registry, pooled_dsn, poll=2 * QUICK)):
        over(db, enqueue(db, work, 1))
        over(db, enqueue(db, work, 2))


def test_a_worker_goes_on_when_the_pooler_is_back(
    db: Connection, dsn: str, server: Postgres, real_pgbouncer: Path
) -> None:
    registry = Registry()
    work = registry.kind("work", int)(ignore)
    db.execute("create table effects (task bigint)")

    @registry.transactional("both", int)
    def both(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("insert into effects values (%s)", [attempt.task])

    with (
        pgbouncer(server, pool_size=POOL) as own,
        running(pooled(registry, make_conninfo(dsn, port=own.port), slots=1)),
    ):
        over(db, enqueue(db, both, 1))
        own.crash()
        own.start()
        for each in (both, work):
            number = enqueue(db, each, 2)
            over(db, number)
            assert outcomes(db, number) == ["completed"]


@pytest.mark.slow
@pytest.mark.chaos_long
def test_a_worker_goes_on_when_the_server_behind_the_pooler_was_restarted(
    real_pgbouncer: Path,
) -> None:
    registry, started, done = Registry(), Event(), Event()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        started.set()
        assert done.wait(60)

    @registry.transactional("both", int)
    def both(attempt: Attempt, payload: int, connection: Connection) -> None:
        connection.execute("select scheduler.now()")

    with (
        postgres() as own,
        pgbouncer(own, pool_size=POOL) as pooler,
        psycopg.connect(pooler.dsn(), autocommit=True, prepare_threshold=None) as caller,
    ):
        migrate(pooler.dsn())
        with running(pooled(registry, pooler.dsn(), slots=2)):
            over(caller, enqueue(caller, both, 1))
            across = enqueue(caller, work, 1)
            assert started.wait(30)
            own.restart()
            done.set()
            with psycopg.connect(own.dsn(), autocommit=True) as db:
                number = enqueue(db, both, 2)
                for each in (across, number):
                    over(db, each)
                    assert outcomes(db, each) == ["completed"]


def test_without_pooled_the_error_says_what_to_pass(pooled_dsn: str) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with pytest.raises(SessionError, match=r"refuses the settings .* pass --pooled, in Python"):
        worker(registry, pooled_dsn).run()


def test_a_pooler_that_drops_what_it_does_not_know_is_found_out(
    dsn: str, server: Postgres, real_pgbouncer: Path
) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with (
        pgbouncer(server, settings={"ignore_startup_parameters": "options"}) as silent,
        pytest.raises(SessionError, match=r"ignored the settings .* pass --pooled, in Python"),
    ):
        worker(registry, make_conninfo(dsn, port=silent.port)).run()


def test_a_pooler_that_is_away_is_an_unreachable_database(
    dsn: str, server: Postgres, real_pgbouncer: Path
) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    with pgbouncer(server) as gone:
        gone.crash()
        with pytest.raises(DatabaseUnreachableError, match="cannot connect to the database"):
            pooled(registry, make_conninfo(dsn, port=gone.port)).run()


def test_a_pool_with_another_isolation_is_refused(db: Connection, pooled_dsn: str) -> None:
    """A single statement's level is the session's own: nothing of the worker's pins it."""
    registry = Registry()
    registry.kind("work", int)(ignore)
    change = f"alter database {db.info.dbname} set default_transaction_isolation = serializable"
    db.execute(change.encode())
    with pytest.raises(SessionError, match="run transactions at serializable, a worker needs"):
        pooled(registry, pooled_dsn).run()


def test_a_pooled_worker_may_have_a_server_to_itself(db: Connection, dsn: str) -> None:
    registry = Registry()
    work = registry.kind("work", int)(ignore)
    with running(pooled(registry, dsn)):
        over(db, enqueue(db, work, 1))


# Callers and commands.


def test_a_caller_enqueues_through_the_pool(db: Connection, pooled_dsn: str) -> None:
    work = Registry().kind("work", int)(ignore)
    with (
        left_as_it_was(pooled_dsn),
        psycopg.connect(pooled_dsn, prepare_threshold=None) as caller,
    ):
        numbers = [enqueue(caller, work, number) for number in range(10)]
        again = [enqueue_unique(caller, work, 1, Unique("key")) for _ in range(10)]
        caller.rollback()
        assert db.execute("select from scheduler.tasks").fetchall() == []
        numbers = [enqueue(caller, work, number) for number in range(10)]
        again = [enqueue_unique(caller, work, 1, Unique("key")) for _ in range(10)]
    assert [created for _, created in again] == [True, *[False] * 9]
    found = db.execute("select id from scheduler.tasks order by id").fetchall()
    assert [number for (number,) in found] == [*numbers, again[0].task]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application of the test's own, with the kind `work`."""
    (tmp_path / "pooled_app.py").write_text(
        "from scheduler import Registry\n"
        "app = Registry()\n"
        '@app.kind("work", int)\n'
        "def work(attempt, payload): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pooled_app", raising=False)
    return "pooled_app:app"


def test_commands_leave_no_setting_in_the_pool(
    db: Connection,
    pooled_dsn: str,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCHEDULER_DATABASE", pooled_dsn)

    def run(*arguments: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        return json.loads(out) if out else None

    with left_as_it_was(pooled_dsn):
        assert run("migrate", "--json") == {"applied": []}
        number = run("enqueue", "work", "1", "--app", app, "--json")["task"]
        assert run("enqueue", "work", "1", "--app", app, "--unique-key", "key", "--json")["created"]
        assert [count["count"] for count in run("status", "--json")["tasks"]] == [2]
        was = {"task": number, "was": "pending"}
        assert run("cancel", str(number), "--json")["cancelled"] == [was]
        assert run("history", str(number), "--json")["task"]["status"] == "cancelled"
        assert run("dead-letter", "export") is None
    assert task(db, number).status == "cancelled"


@pytest.mark.slow
@pytest.mark.chaos_long
def test_the_worker_command_through_the_pool(
    db: Connection, pooled_dsn: str, app: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "scheduler", "worker", app, "--poll", "0.05"]
    environment = {**os.environ, "SCHEDULER_DATABASE": pooled_dsn}
    refused = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: the database refuses the settings of a worker's")
    assert "pass --pooled" in refused.stderr
    assert refused.stderr.count("\n") == 1
    with subprocess.Popen(
        [*command, "--pooled"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        try:
            work = Registry().kind("work", int)(ignore)
            over(db, enqueue(db, work, 1))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
