"""What is read off the server and the machine during and after a drain."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import psutil
import psycopg
from psycopg import Connection

LOOK_EVERY = 0.1
RUNNING = "CPU"  # what an active session without a wait event does, or waits for


class Times(NamedTuple):
    """What the run log says of a drain. Times in seconds since 1970."""

    began: float
    ended: float
    claims: int


class Written(NamedTuple):
    """What a drain did to the tables."""

    updates: int
    hot_updates: int
    dead_tuples: int
    vacuums: int


class WaitEvents:
    """Counts what active sessions wait for; `look` is the turn of a background thread.

    sessions: a LIKE pattern of application names.
    """

    def __init__(self, dsn: str, sessions: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._sessions = sessions
        self._seen: Counter[str] = Counter()

    def look(self) -> bool:
        """One look at the sessions of this database."""
        rows = self._connection.execute(
            "select coalesce(wait_event_type || ':' || wait_event, %s), count(*)"
            " from pg_stat_activity"
            " where state = 'active' and application_name like %s"
            " and datname = current_database() group by 1",
            [RUNNING, self._sessions],
        )
        self._seen.update(dict(rows.fetchall()))
        return True

    def shares(self) -> dict[str, float]:
        """The share of each event among all that was seen."""
        total = self._seen.total()
        return {event: count / total for event, count in self._seen.most_common()}

    def close(self) -> None:
        """End the session that looks."""
        self._connection.close()


def cpu_of(pids: list[int]) -> float:
    """CPU seconds that these processes have used so far; one that is gone counts nothing."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def cpu_of_server(pid: int) -> float:
    """CPU seconds of a server: its main process, its sessions, and all that ended before."""
    main = psutil.Process(pid)
    times = main.cpu_times()
    ended = times.children_user + times.children_system
    children = [child.pid for child in main.children(recursive=True)]
    return times.user + times.system + ended + cpu_of(children)


def times_of(connection: Connection) -> Times:
    """When the drain began and ended, and how many claims got something. An owner is one claim."""
    row = connection.execute(
        "select extract(epoch from min(claimed_at))::double precision,"
        " extract(epoch from max(finished_at))::double precision,"
        " count(distinct lease_owner) from scheduler.run_log"
    ).fetchone()
    assert row is not None
    return Times(*row)


def written(connection: Connection) -> Written:
    """What was written to the task table, by the server's own statistics.

    To be asked when the drain's sessions are gone: a session reports at its end at the latest.
    """
    row = connection.execute(
        "select n_tup_upd, n_tup_hot_upd, n_dead_tup, vacuum_count + autovacuum_count"
        " from pg_stat_user_tables where schemaname = 'scheduler' and relname = 'tasks'"
    ).fetchone()
    assert row is not None
    return Written(*row)


def wal_position(connection: Connection) -> int:
    """How many bytes of WAL the server has written since it was made."""
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])
