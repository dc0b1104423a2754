"""Real workers are struck where their renewal or reclaim is committed and they do not know yet."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import psycopg
import pytest

from chaos.cluster.postgres import Postgres
from chaos.faults import Arena
from chaos.faults.moments import catch, let_go
from chaos.faults.worker import Kill, Pause
from chaos.history.events import STARVED, Note
from chaos.history.journal import Journal, read_journal
from chaos.systems import Order
from chaos.systems.moments import DIRECTORY, HELD, HERE, Failpoints
from chaos.testing import StartFleet
from chaos.workload import Job
from scheduler.dispatch import claim
from tests.chaos.faults.arena import arena
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

LONG = Order(Job(0, "slow", 600, 0), delay=0, max_attempts=9)


@pytest.fixture
def where(fleet: StartFleet, server: Postgres, empty_dsn: str) -> Arena:
    """An arena with one worker. It is in the middle of a long task, and leaves quick ones alone."""
    with psycopg.connect(empty_dsn) as connection:
        one = arena(server, connection.info.dbname)
    one.system.install(empty_dsn)
    one.leases = lambda: one.system.holders(empty_dsn)
    one.system.enqueue(empty_dsn, [LONG])
    one.fleet = fleet("leaseproof", [empty_dsn], lease=6, old=1, lacks=("quick",))
    wait_for(lambda: any(note.what == "started" for note in said(one)), "the start")
    return one


def said(where: Arena) -> list[Note]:
    """What the first worker said of itself so far."""
    notes = read_journal(where.fleet.directory / "journals", "w1.1", 0)
    return [note for note in notes if note.what != STARVED]


def expiry(where: Arena) -> int:
    """Until when the database says that the long task is the worker's, in microseconds."""
    with psycopg.connect(where.dsn) as connection:
        row = connection.execute(
            "select (extract(epoch from lease_expires_at) * 1000000)::bigint from scheduler.tasks"
            " where status = 'running' and kind = 'slow'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_worker_is_killed_in_a_renewal_that_it_never_heard_of(where: Arena) -> None:
    where.fleet.seats[0].dsn = "host=127.0.0.1 port=1"  # who comes after it takes nothing back
    where.fleet.died = lambda seat, code: None
    kill, claimed = Kill(kind="kill", count=1, aim="in-renewal"), expiry(where)
    wait_for(lambda: kill.inject(where) is not None, "a renewal")
    assert where.fleet.seats[0].name == "w1.2"
    *before, last = said(where)
    assert last.what == "in-renewal"
    heard = [int(note.detail) for note in before if note.what == "renewed"]
    assert expiry(where) > max(claimed, *heard, 0)
    assert list((where.fleet.directory / DIRECTORY).iterdir()) == []


def test_a_worker_is_stopped_in_a_reclaim_and_hears_of_it_when_it_is_continued(
    where: Arena,
) -> None:
    pause = Pause(kind="pause", count=1, lasts=2, aim="in-reclaim")
    assert pause.inject(where) is None  # there is nothing to take back
    where.system.enqueue(where.dsn, [Order(Job(1, "quick", 0, 0), delay=0, max_attempts=9)])
    with psycopg.connect(where.dsn) as connection:  # of somebody who will not be back
        [gone] = claim(connection, "gone/1", {"quick": timedelta(seconds=0.5)}, 1, 0)
    strike = wait_for(lambda: pause.inject(where), "a reclaim")
    assert strike is not None
    with psycopg.connect(where.dsn) as connection:
        logged = connection.execute(
            "select outcome from scheduler.run_log where task_id = %s", [gone.task]
        ).fetchall()
    assert logged == [("reclaimed",)]
    notes = said(where)
    assert "in-reclaim" in [note.what for note in notes]
    assert ("reclaimed", gone.task) not in [(note.what, note.task) for note in notes]
    strike.heal()
    wait_for(
        lambda: ("reclaimed", gone.task) in [(note.what, note.task) for note in said(where)],
        "the word of the reclaim",
    )


def test_who_is_not_caught_goes_on_at_once_and_is_not_asked_again_within_a_lease(
    tmp_path: Path,
) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / f"w2.1.in-renewal{HERE}").touch()
    (tmp_path / DIRECTORY / "w3.1.in-renewal").touch()
    assert catch(tmp_path, "in-renewal", ["w1.1", "w2.1", "w3.1"], Random(1)) == "w2.1"
    (tmp_path / DIRECTORY / f"w3.1.in-renewal{HERE}").touch()
    let_go(tmp_path, "w2.1")
    (tmp_path / DIRECTORY / f"w2.1.in-renewal{HERE}").touch()
    assert catch(tmp_path, "in-renewal", ["w2.1", "w3.1"], Random(1)) is not None
    assert [file.suffix for file in (tmp_path / DIRECTORY).iterdir()] == [HELD]
    journal = Journal(journals, "w4.1")
    points = Failpoints(journals, "w4.1", journal, lease=600)
    for _ in range(2):
        (tmp_path / DIRECTORY / "w4.1.in-renewal").touch()
        points._stay("in-renewal")
    assert [note.what for note in read_journal(journals, "w4.1", 0)] == ["in-renewal"]


def test_a_worker_that_nobody_comes_for_goes_on(where: Arena) -> None:
    directory = where.fleet.directory / DIRECTORY
    directory.mkdir()
    (directory / "w1.1.in-renewal").touch()
    (directory / "w1.2.in-renewal").touch()

    def went_on() -> bool:
        notes = [note.what for note in said(where)]
        return "in-renewal" in notes and "renewed" in notes[notes.index("in-renewal") :]

    wait_for(went_on, "the next renewal")
    assert [file.name for file in directory.iterdir()] == ["w1.2.in-renewal"]
