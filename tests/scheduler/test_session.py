"""A worker's session: its settings end what a stopped client holds."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from scheduler import SessionError
from scheduler.dispatch import claim
from scheduler.lease import reclaim
from scheduler.session import check_session, connect_worker, replan
from tests.scheduler.working import LEASE, SHORT, process, put
from tests.waiting import wait_for

EXPECTED = {
    "idle_in_transaction_session_timeout": "9s",
    "lock_timeout": "4500ms",
    "tcp_user_timeout": "9000",
    "tcp_keepalives_idle": "3",
    "default_transaction_isolation": "read committed",
    "transaction_isolation": "read committed",
    "TimeZone": "UTC",
}


def test_a_workers_session_has_its_settings(dsn: str) -> None:
    with connect_worker(dsn, "name", timedelta(seconds=9)) as connection:
        for setting, value in EXPECTED.items():
            assert connection.execute("select current_setting(%s)", [setting]).fetchone() == (
                value,
            ), setting
        assert connection.execute(
            "select application_name from pg_stat_activity where pid = pg_backend_pid()"
        ).fetchone() == ("scheduler name",)


@pytest.mark.parametrize(("for_handlers", "mode"), [(False, "force_generic_plan"), (True, "auto")])
def test_handlers_statements_are_planned_as_the_server_sees_fit(
    dsn: str, for_handlers: bool, mode: str
) -> None:
    with connect_worker(dsn, "name", LEASE, for_handlers=for_handlers) as connection:
        assert connection.execute("show plan_cache_mode").fetchone() == (mode,)


@pytest.mark.parametrize("seconds", [0.5, 61, 86_400])
def test_a_session_of_its_own_is_what_a_worker_relies_on(dsn: str, seconds: float) -> None:
    lease = timedelta(seconds=seconds)
    with connect_worker(dsn, "name", lease) as connection:
        check_session(connection, lease, pooled=False)
        connection.execute("set idle_in_transaction_session_timeout = 0")
        with pytest.raises(SessionError, match="ignored the settings"):
            check_session(connection, lease, pooled=False)


def test_the_applications_own_options_are_kept(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=5MB")
    for given, expected in ((dsn, "5MB"), (make_conninfo(dsn, options="-c work_mem=7MB"), "7MB")):
        with connect_worker(given, "name", LEASE) as connection:
            assert connection.execute("show work_mem").fetchone() == (expected,)
            assert connection.execute("show timezone").fetchone() == ("UTC",)


def test_a_database_with_another_isolation_does_not_change_a_workers(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"alter database {name} set default_transaction_isolation = serializable".encode()
        )
    with connect_worker(dsn, "name", LEASE) as connection:
        assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)
        with connection.transaction():
            shown = connection.execute("show transaction_isolation").fetchone()
        assert shown == ("read committed",)


STOPS_BEFORE_COMMIT = """
import sys, time
from datetime import timedelta
import psycopg
from scheduler.finish import complete
from scheduler.lease import Lease
from scheduler.session import connect_worker

dsn, how, task, token, owner = sys.argv[1:]
if how == "worker":
    connection = connect_worker(dsn, "stopped", timedelta(seconds=0.5))
else:
    connection = psycopg.connect(dsn, autocommit=True, application_name="scheduler stopped")
with connection.transaction():
    assert complete(connection, [Lease(int(task), int(token), owner)])
    print("completed", flush=True)
    time.sleep(60)
"""

IDLE = """
    select from pg_stat_activity
    where application_name = 'scheduler stopped' and state = 'idle in transaction'
      and datname = current_database() and clock_timestamp() - state_change > interval '1.5 s'
"""


@pytest.mark.slow
def test_a_worker_stopped_before_its_commit_gives_way_after_a_lease(
    db: Connection, dsn: str
) -> None:
    """And with an ordinary session it does not: the row is still locked after three leases."""
    for how in ("ordinary", "worker"):
        (number,) = put(db)
        (attempt,) = claim(db, f"stopped/{how}", {"work": SHORT}, 1, 0.0)
        arguments = (str(number), str(attempt.token), attempt.owner)
        with process(STOPS_BEFORE_COMMIT, dsn, how, *arguments) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "completed\n"
            os.kill(child.pid, signal.SIGSTOP)
            if how == "ordinary":
                wait_for(lambda: db.execute(IDLE).fetchone() is not None, "three leases to pass")
                assert reclaim(db, 10) == []
            else:
                taken = wait_for(lambda: reclaim(db, 10), "the row to be reclaimed")
                assert [each.lease for each in taken] == [attempt.lease]
        db.execute("delete from scheduler.tasks")


def test_a_plan_made_for_an_empty_table_is_not_kept_for_a_full_one(
    db: Connection, dsn: str
) -> None:
    db.execute("alter table scheduler.tasks set (autovacuum_enabled = off)")

    def reads_all() -> bool:
        plan = worker.execute("explain execute look(1)").fetchall()
        return any("Seq Scan" in line for (line,) in plan)

    with connect_worker(dsn, "name", LEASE) as worker:
        worker.execute("vacuum analyze scheduler.tasks")
        worker.execute(
            "prepare look (bigint) as select * from unnest(array[$1]) as held (id)"
            " join scheduler.tasks as task on task.id = held.id"
        )
        assert reads_all()
        put(db, 20_000)
        assert reads_all()
        replan(worker)
        assert not reads_all()
