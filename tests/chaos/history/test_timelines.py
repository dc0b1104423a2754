"""The witness across a failover of real servers: one order, nothing twice, the lost tail exact."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import Postgres, postgres
from chaos.cluster.standby import Standby, standby
from chaos.history.events import Commit, Row
from chaos.history.timelines import Timelines
from chaos.history.watched import Watched
from tests.chaos.cluster.following import catch_up
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def read(values: Mapping[str, str | None]) -> Row:
    """A task of a table that has hardly any columns."""
    number, state = int(values["id"] or 0), values["state"] or ""
    return Row(number, "toy", state, 0, 0, 1, 0, None, None, None, None, values["error"])


TASKS = Watched("public.tasks", ("id", "state", "error"), read, "id")
INSERT = "insert into tasks values (%s, 'pending', %s)"


class Pair(NamedTuple):
    """A witnessed primary with a table of tasks, and its standby."""

    primary: Postgres
    second: Standby
    log: Timelines


@contextmanager
def pair(synchronous: bool) -> Iterator[Pair]:
    # Nothing here survives the machine's crash, but a killed server's commits are in its log.
    kept = {"synchronous_commit": "on"}
    with (
        postgres(settings=kept) as primary,
        standby(primary, synchronous=synchronous) as second,
    ):
        with connect(primary.dsn()) as db:
            db.execute("create table tasks (id bigint primary key, state text, error text)")
            db.execute("alter table tasks alter error set storage external")
        log = Timelines(primary.dsn(), [TASKS])
        log.open()
        try:
            yield Pair(primary, second, log)
        finally:
            log.close()


def connect(dsn: str) -> Connection:
    """A session that commits each statement."""
    return psycopg.connect(dsn, autocommit=True, connect_timeout=10)


def promote(servers: Pair) -> None:
    """Fail over, up to where clients could be let in."""
    primary, second, log = servers
    second.keep_out()
    primary.crash()
    second.promote()

    def old() -> AbstractContextManager[str]:
        return primary.in_private("postgres")

    died = time.time_ns() // 1000
    log.follow(second.dsn(), second.switch_point(), old, died=died, synchronous=second.synchronous)


def tasks(commits: tuple[Commit, ...] | list[Commit]) -> list[int]:
    return [change.task for commit in commits for change in commit.changes]


def test_commits_of_both_timelines_have_one_order_and_come_once() -> None:
    text = "".join(random.Random(1).choices("abcdefghij", k=9000))
    with pair(synchronous=False) as servers:
        primary, second, log = servers
        with connect(primary.dsn()) as db:
            db.execute(INSERT, [1, text])  # too long for the row: no update will send it again
            db.execute(INSERT, [2, ""])
            log.drain()
            db.execute(INSERT, [3, ""])
            catch_up(second)
            second.cut()
            db.execute("update tasks set error = %s where id = 1", [text[::-1]])
            db.execute(INSERT, [4, ""])
            log.drain()  # what will be lost was read already
            assert tasks(log.commits) == [1, 2, 3, 1, 4]
            db.execute("update tasks set state = 'completed' where id = 2")
            db.execute(INSERT, [5, ""])
        assert log.done == 0
        promote(servers)
        # Nobody comes in until he is let in, and never again at the old primary.
        with pytest.raises(psycopg.OperationalError, match="read-only"):
            connect(second.pair_dsn())
        second.let_in()
        with connect(second.pair_dsn()) as db:
            assert db.info.port == second.port
            db.execute(INSERT, [4, "another"])
            db.execute("update tasks set state = 'completed' where id = 1")
        log.drain()
        assert not primary.running
        with connect(second.dsn()) as db:
            db.execute(INSERT, [6, ""])
        log.drain()
        [failover] = log.failovers
        assert tasks(failover.lost) == [1, 4, 2, 5]
        assert tasks(log.commits) == [1, 2, 3, 4, 1, 6]
        assert [commit.seq for commit in log.commits] == [0, 1, 2, 7, 8, 9]
        assert [commit.seq for commit in failover.lost] == [3, 4, 5, 6]
        assert all(commit.at < failover.died for commit in failover.lost)
        assert all((commit.at >= failover.opened) is (commit.seq > 6) for commit in log.commits)
        # As it was kept, not as the lost update left it.
        last = log.rows[1]
        assert last is not None
        assert (last.state, last.error) == ("completed", text)
        assert log.rows[4] == read({"id": "4", "state": "pending", "error": "another"})
        assert log.done == 1


@pytest.mark.parametrize(
    "synchronous", [False, pytest.param(True, marks=pytest.mark.chaos_long)], ids=["async", "sync"]
)
def test_what_the_promoted_server_has_is_kept_and_all_else_lost(synchronous: bool) -> None:
    """Writers write as fast as they can while the primary is killed under them."""
    with pair(synchronous) as servers, ThreadPoolExecutor(3) as pool:
        primary, second, log = servers
        told: list[int] = []

        def write(first: int) -> None:
            with connect(primary.dsn()) as db:
                for number in range(first, 1_000_000, 3):
                    db.execute(INSERT, [number, ""])
                    told.append(number)

        writers = [pool.submit(write, first) for first in range(3)]
        wait_for(lambda: len(told) > 100, "some commits")
        log.drain()
        second.cut()
        if synchronous:
            waits = "select from pg_stat_activity where wait_event = 'SyncRep'"
            with connect(primary.dsn()) as db:
                wait_for(lambda: len(db.execute(waits).fetchall()) == 3, "the writers to wait")
        else:
            before = len(told)
            wait_for(lambda: len(told) > before + 50, "commits that will be lost")
        promote(servers)
        for writer in writers:
            assert isinstance(writer.exception(30), psycopg.OperationalError)
        second.let_in()
        log.drain()
        [failover] = log.failovers
        kept, lost = tasks(log.commits), tasks(failover.lost)
        with connect(second.dsn()) as db:
            there = {number for (number,) in db.execute("select id from tasks")}
        assert len(kept) == len(there)
        assert set(kept) == there
        assert there.isdisjoint(lost)
        if synchronous:
            assert len(lost) == 3
            assert set(told) <= there
        else:
            assert len(lost) > 50
            assert set(told) <= there.union(lost)


@pytest.mark.chaos_long
def test_an_old_log_that_cannot_be_read_now_is_read_by_a_later_drain() -> None:
    with pair(synchronous=False) as servers:
        primary, second, log = servers
        second.keep_out()
        primary.crash()
        second.promote()
        tries = 0

        @contextmanager
        def old() -> Iterator[str]:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise psycopg.OperationalError("not yet")
            with primary.in_private("postgres") as dsn:
                yield dsn

        log.follow(second.dsn(), second.switch_point(), old, died=1, synchronous=False)
        second.let_in()
        with connect(second.dsn()) as db:
            db.execute(INSERT, [1, ""])
        with pytest.raises(psycopg.OperationalError, match="not yet"):
            log.drain()
        assert (log.failovers, log.commits) == ([], [])
        log.drain()
        assert tasks(log.commits) == [1]
        assert [one.lost for one in log.failovers] == [()]
