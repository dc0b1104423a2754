"""Following dead letters: each is told once, whatever commits when and whoever hangs up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import discard, requeue
from scheduler.dead_letter_follow import Follower
from scheduler.finish import fail
from scheduler.retry import RetryPolicy
from scheduler.statements import fetch, statement
from tests.scheduler.working import kind, nodes, put, take_one
from tests.waiting import wait_for

ONCE = kind(retry=RetryPolicy(max_attempts=1))


def die(db: Connection) -> int:
    """The id of a task that has just failed on its only attempt."""
    [number] = put(db, 1, ONCE)
    fail(db, [take_one(db).lease], [f"no {number}"])
    return number


def read(follower: Follower, db: Connection) -> list[int]:
    return [letter.id for letter in follower.read(db)]


def test_what_stands_comes_first_and_then_each_new_one_once(db: Connection) -> None:
    standing = [die(db) for _ in range(3)]
    follower = Follower()
    assert read(follower, db) == standing
    assert read(follower, db) == []
    new = [die(db) for _ in range(2)]
    assert read(follower, db) == new
    assert read(follower, db) == []


def test_a_letter_is_shown_as_the_export_shows_it(db: Connection) -> None:
    number = die(db)
    first, second = Follower(), Follower()
    [standing] = first.read(db)
    read(second, db)
    requeue(db, [number])
    fail(db, [take_one(db).lease], ["again"])
    [new] = second.read(db)
    assert (standing.id, standing.kind, standing.payload) == (number, "work", "0")
    assert (standing.attempts, standing.last_error) == (1, f"no {number}")
    assert (new.id, new.attempts, new.last_error) == (number, 1, "again")
    assert new.finished_at > standing.finished_at


def test_a_death_that_commits_after_a_later_one_is_not_lost(db: Connection, dsn: str) -> None:
    follower = Follower()
    assert read(follower, db) == []
    with psycopg.connect(dsn) as other:
        early = die(other)
        late = die(db)
        assert read(follower, db) == [late]
        other.commit()
    assert read(follower, db) == [early]
    assert read(follower, db) == []


def test_a_death_that_commits_while_what_stands_is_read_comes_later_and_once(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.dead_letter_follow.PAGE", 1)
    follower = Follower()
    with psycopg.connect(dsn) as other:
        early = die(other)
        standing = [die(db) for _ in range(3)]
        reading = follower.read(db)
        assert next(reading).id == standing[0]
        other.commit()
        late = die(db)
    assert [letter.id for letter in reading] == standing[1:]
    assert read(follower, db) == [early, late]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_new_ones_are_read_page_by_page(
    db: Connection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("scheduler.dead_letter_follow.PAGE", 2)
    follower = Follower()
    read(follower, db)
    ids = [die(db) for _ in range(count)]
    assert read(follower, db) == ids
    assert read(follower, db) == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_page_may_end_between_the_deaths_of_transactions_that_overlap(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("scheduler.dead_letter_follow.PAGE", size)
    follower = Follower()
    read(follower, db)
    with psycopg.connect(dsn) as other:
        first = [die(other)]
        second = [die(db), die(db)]
        first += [die(other), die(other)]
        third = [die(db)]
        other.commit()
    assert read(follower, db) == first + second + third
    assert read(follower, db) == []


def test_a_page_of_new_ones_is_read_by_itself_however_many_there_are(db: Connection) -> None:
    [task] = put(db, 1, ONCE)
    [(before,)] = db.execute("select pg_current_snapshot()::text").fetchall()
    for _ in range(20):
        db.execute(
            "insert into scheduler.deaths"
            " (task_id, lease_token, kind, attempts, last_error, died_at)"
            " select %s, 1, 'work', 1, 'no', now() from generate_series(1, 500)",
            [task],
        )
    [(after,)] = db.execute("select pg_current_snapshot()::text").fetchall()
    [(died_in, death)] = db.execute(
        "select died_in::text, id from scheduler.deaths order by id offset 9000 limit 1"
    ).fetchall()
    values = {"seen": before, "until": after, "after_in": died_in, "after": death}
    [[[explained]]] = db.execute(
        b"explain (analyze, format json) " + statement("new_letters"),
        {**values, "kind": None, "limit": 20},
    ).fetchall()
    [deaths] = [it for it in nodes(explained["Plan"]) if it.get("Relation Name") == "deaths"]
    assert deaths["Actual Rows"] + deaths.get("Rows Removed by Filter", 0) <= 21, explained


def test_a_death_that_was_rolled_back_is_none(db: Connection, dsn: str) -> None:
    follower = Follower()
    read(follower, db)
    with psycopg.connect(dsn) as other:
        die(other)
        other.rollback()
    assert read(follower, db) == []


def test_a_task_that_was_put_back_is_told_of_if_it_died_since_and_not_if_it_died_before(
    db: Connection,
) -> None:
    follower = Follower()
    requeue(db, [die(db)])
    assert read(follower, db) == []
    fail(db, [take_one(db).lease], ["again"])
    number = die(db)
    requeue(db, [number])
    assert number in read(follower, db)


def test_what_stands_is_each_task_that_is_dead_by_its_latest_death(
    db: Connection, clock: Clock
) -> None:
    first, second, given_up, twice = (die(db) for _ in range(4))  # all in one moment
    discard(db, [given_up])
    requeue(db, [twice])
    fail(db, [take_one(db).lease], ["again"])
    letters = [(letter.id, letter.last_error) for letter in Follower().read(db)]
    assert letters == [(first, f"no {first}"), (second, f"no {second}"), (twice, "again")]


def test_a_page_of_what_stands_has_no_more_than_asked_for(db: Connection) -> None:
    ids = [die(db) for _ in range(3)]
    # It is moved to the table's end, and no index has it in front again.
    db.execute("update scheduler.deaths set attempts = 1 where task_id = %s", [ids[0]])
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    [(until,)] = fetch(db, "current_snapshot", {})
    page = {"until": until, "after": 0, "kind": None, "limit": 2}
    assert [letter[2] for letter in fetch(db, "standing_letters", page)] == ids[:2]


def test_of_a_kind_that_is_followed_all_deaths_are_told_and_no_others(db: Connection) -> None:
    def die_both() -> int:
        [other] = put(db, 1, kind("other", ONCE.retry))
        db.execute(
            "update scheduler.tasks set attempts = 1, status = 'dead', last_error = 'no',"
            " finished_at = now() where id = %s",
            [other],
        )
        return die(db)

    standing = die_both()
    follower = Follower("work")
    assert read(follower, db) == [standing]
    new = die_both()
    assert read(follower, db) == [new]


def test_only_one_kind_can_be_followed(db: Connection) -> None:
    follower = Follower("other")
    die(db)
    assert read(follower, db) == []
    die(db)
    assert read(follower, db) == []
    with pytest.raises(ValueError, match="a kind has a name"):
        Follower("")


def test_a_log_that_was_restored_from_another_server_stands(db: Connection) -> None:
    number = die(db)
    for died_in in (
        "'9000000000'",
        "(pg_current_xact_id()::text::bigint + 1)::text::xid8",  # the one that is next
    ):
        db.execute(f"update scheduler.deaths set died_in = {died_in}".encode())
        follower = Follower()
        assert read(follower, db) == [number]
        assert read(follower, db) == []


# The command


@contextmanager
def following(dsn: str, errors: Path) -> Iterator[subprocess.Popen[str]]:
    with errors.open("w") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "scheduler", "dead-letter", "export", "--follow"],
            env={**os.environ, "SCHEDULER_DATABASE": dsn},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    with child:
        try:
            yield child
        finally:
            child.kill()


def next_id(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    return int(json.loads(child.stdout.readline())["id"])


def test_the_command_follows_over_a_lost_connection_and_ends_at_ctrl_c(
    dsn: str, db: Connection, tmp_path: Path
) -> None:
    standing = die(db)
    with following(dsn, tmp_path / "errors") as child:
        assert next_id(child) == standing
        new = die(db)
        assert next_id(child) == new
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        meanwhile = die(db)
        assert next_id(child) == meanwhile
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
        assert child.stdout is not None
        assert child.stdout.read() == ""
    said = (tmp_path / "errors").read_text()
    assert said.startswith("connecting again: ")
    assert "Traceback" not in said


def test_the_command_ends_once_nobody_reads_even_if_nothing_dies(
    dsn: str, db: Connection, tmp_path: Path
) -> None:
    standing = die(db)
    with following(dsn, tmp_path / "errors") as child:
        assert next_id(child) == standing
        assert child.stdout is not None
        child.stdout.close()
        assert wait_for(lambda: child.poll() is not None, "the command to end")
        assert child.returncode == 1
    assert (tmp_path / "errors").read_text() == ""
