"""The fleet: real processes that start fast, die when told to, and never outlive the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.postgres import Postgres
from chaos.faults.worker import Pause
from chaos.fleet import Fleet, Seat
from chaos.history.events import STARVED
from chaos.history.journal import read_journals
from chaos.systems import Order, system
from chaos.testing import SETTINGS, StartFleet
from chaos.workload import Job
from tests.chaos.faults.arena import arena
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def target(empty_dsn: str) -> str:
    """A database with the system under test installed."""
    system("leaseproof").install(empty_dsn)
    return empty_dsn


def connected(dsn: str) -> int:
    """How many workers have a database session."""
    with psycopg.connect(dsn) as connection:
        return _one(
            connection,
            "select count(distinct application_name) from pg_stat_activity"
            " where application_name like 'scheduler w%' and datname = current_database()",
        )


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended, collected by its parent or not."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _one(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def said_by(worker: str, fleet: Fleet) -> list[str]:
    """What a worker said of itself, not what the harness noted of it."""
    notes = read_journals(fleet.directory / "journals", 0)
    return [note.what for note in notes if note.worker == worker and note.what != STARVED]


@pytest.mark.chaos_long
def test_fifty_workers_connect_and_stop_cleanly(fleet: StartFleet, target: str) -> None:
    failed: list[tuple[str, int | None]] = []
    workers = fleet("leaseproof", [target] * 50)
    workers.died = lambda seat, code: failed.append((seat.name, code))
    wait_for(lambda: connected(target) == 50, "50 connected workers", seconds=90)
    workers.stop()
    wait_for(lambda: connected(target) == 0, "no connected worker")
    assert failed == []


def test_a_killed_worker_is_replaced_by_a_process_with_a_new_name(
    fleet: StartFleet, target: str
) -> None:
    workers = fleet("leaseproof", [target])
    [seat] = workers.seats
    assert seat.pid is not None
    before, first = seat.name, psutil.Process(seat.pid)
    workers.kill([seat])
    assert not first.is_running()
    assert (before, seat.name) == ("w1.1", "w1.2")
    wait_for(lambda: connected(target) == 1, "the replacement")


def test_a_worker_that_ends_by_itself_is_reported_and_replaced(
    fleet: StartFleet, target: str
) -> None:
    deaths: list[int | None] = []

    def died(seat: Seat, code: int | None) -> None:
        deaths.append(code)

    workers = fleet("leaseproof", [target])
    workers.died = died
    job = Job(0, "poison", 0, 0)
    system("leaseproof").enqueue(target, [Order(job, delay=0, max_attempts=1)])

    def replaced() -> bool:
        workers.tend()
        return workers.seats[0].incarnation == 2

    wait_for(replaced, "the replacement of a worker that a poison task killed")
    assert deaths == [-signal.SIGKILL]


def test_all_workers_are_killed_at_once_and_replaced(fleet: StartFleet, target: str) -> None:
    workers = fleet("leaseproof", [target] * 5)
    first = [seat.pid for seat in workers.seats]
    workers.kill(workers.seats)
    assert [seat.name for seat in workers.seats] == [f"w{number}.2" for number in range(1, 6)]
    assert not set(first) & {seat.pid for seat in workers.seats}
    wait_for(lambda: connected(target) == 5, "the replacements")


def test_a_terminated_worker_ends_what_it_runs_and_is_replaced(
    fleet: StartFleet, target: str, tmp_path: Path
) -> None:
    under_test = system("leaseproof")
    workers = fleet("leaseproof", [target])
    under_test.enqueue(target, [Order(Job(0, "slow", 0.5, 0), delay=0, max_attempts=1)])
    # Not merely held: what has not started when the worker is told to stop is given back instead.
    journal = workers.directory / "journals" / "w1.1.journal"
    wait_for(lambda: journal.exists() and b"started" in journal.read_bytes(), "the start")
    workers.terminate(workers.seats[0])
    assert workers.find("w1.1") is None

    def replaced() -> bool:
        workers.tend()
        return workers.seats[0].incarnation == 2

    wait_for(replaced, "the replacement of a worker that was told to stop")
    assert under_test.unfinished(target) == 0
    assert said_by("w1.1", workers)[-2:] == ["finished", "settled"]


def test_a_worker_that_is_told_to_stop_before_it_is_up_ends_as_if_it_had_drained(
    fleet: StartFleet, target: str
) -> None:
    failed: list[tuple[str, int | None]] = []
    workers = fleet("leaseproof", [target] * 5)
    workers.died = lambda seat, code: failed.append((seat.name, code))
    workers.stop()
    assert failed == []


def test_a_worker_that_does_not_stop_is_reported(
    fleet: StartFleet, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[tuple[str, int | None]] = []
    workers = fleet("leaseproof", [target])
    workers.died = lambda seat, code: failed.append((seat.name, code))
    wait_for(lambda: connected(target) == 1, "the worker")
    monkeypatch.setattr("chaos.fleet.STOP_SECONDS", -SETTINGS.grace)  # no time at all
    workers.stop()
    assert failed == [("w1.1", None)]


def test_a_worker_that_cannot_start_is_not_started_in_circles(
    fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int | None] = []
    monkeypatch.setattr("chaos.fleet.RESTART_EVERY", 600.0)
    workers = fleet("leaseproof", ["host=127.0.0.1 port=1"])
    workers.died = lambda seat, code: codes.append(code)

    def ended() -> bool:
        workers.tend()
        return bool(codes)

    wait_for(ended, "the worker to give up")
    workers.tend()
    assert (codes, workers.seats[0].incarnation) == ([1], 1)
    monkeypatch.setattr("chaos.fleet.RESTART_EVERY", 0.0)
    workers.tend()
    assert workers.seats[0].incarnation == 2


def test_a_paused_worker_does_nothing_until_it_is_resumed(fleet: StartFleet, target: str) -> None:
    under_test = system("leaseproof")
    workers = fleet("leaseproof", [target])
    wait_for(lambda: connected(target) == 1, "the worker")
    workers.pause(workers.seats[0])
    assert workers.seats[0].pid is not None
    assert psutil.Process(workers.seats[0].pid).status() == psutil.STATUS_STOPPED
    under_test.enqueue(target, [Order(Job(0, "quick", 0, 0), delay=0, max_attempts=1)])
    assert workers.find("w1.1") is None
    assert under_test.unfinished(target) == 1
    workers.resume(workers.seats[0])
    wait_for(lambda: under_test.unfinished(target) == 0, "the task to be done")


def test_a_worker_that_is_told_to_stop_while_it_is_paused_does_so_when_it_is_resumed(
    fleet: StartFleet, target: str, server: Postgres
) -> None:
    workers = fleet("leaseproof", [target])
    deaths: list[int | None] = []
    workers.died = lambda seat, code: deaths.append(code)
    [seat] = workers.seats
    wait_for(lambda: connected(target) == 1, "the worker")
    where = arena(server)
    where.fleet = workers
    heal = Pause(kind="pause", count=1, lasts=2, terminated=True).strike(where, seat)
    workers.tend()
    assert (seat.name, seat.paused) == ("w1.1", True)
    heal()

    def replaced() -> bool:
        workers.tend()
        return seat.incarnation == 2

    wait_for(replaced, "the replacement of a worker that was told to stop")
    assert deaths == []


def test_a_frozen_worker_keeps_its_sessions_while_another_has_its_seat(
    fleet: StartFleet, target: str
) -> None:
    workers = fleet("leaseproof", [target])
    wait_for(lambda: connected(target) == 1, "the worker")
    [seat] = workers.seats
    with pytest.raises(ValueError, match=r"w1\.1 is not stopped"):
        workers.freeze(seat)
    workers.pause(seat)
    assert seat.pid is not None
    frozen = psutil.Process(seat.pid)
    workers.freeze(seat)
    assert seat.name == "w1.2"
    wait_for(lambda: connected(target) == 2, "the one that came after")
    assert frozen.status() == psutil.STATUS_STOPPED
    workers.stop()
    wait_for(lambda: gone(frozen), "the frozen one to end with the fleet")


def test_old_workers_leave_what_they_lack_to_those_that_follow_them(
    fleet: StartFleet, target: str
) -> None:
    under_test = system("leaseproof")
    workers = fleet("leaseproof", [target], old=1, lacks=("flaky",))
    jobs = [Job(0, "flaky", 0, 0), Job(1, "quick", 0, 0)]
    flaky, _ = under_test.enqueue(target, [Order(job, delay=0, max_attempts=1) for job in jobs])
    wait_for(lambda: under_test.unfinished(target) == 1, "what the old worker knows")
    assert under_test.tasks(target, "pending") == [flaky]
    workers.kill(workers.seats)
    wait_for(lambda: under_test.unfinished(target) == 0, "the rest")
    assert all(final.attempts == 1 for final in under_test.finals(target, {}))


def test_a_journal_survives_the_kill_of_its_worker(
    fleet: StartFleet, target: str, tmp_path: Path
) -> None:
    under_test = system("leaseproof")
    workers = fleet("leaseproof", [target])
    under_test.enqueue(target, [Order(Job(0, "slow", 60, 0), delay=0, max_attempts=1)])
    wait_for(lambda: under_test.holders(target), "the worker to hold a lease")
    journals = workers.directory / "journals"
    wait_for(lambda: b"started" in (journals / "w1.1.journal").read_bytes(), "the start")
    workers.kill([workers.seats[0]])
    assert said_by("w1.1", workers)[:2] == ["claimed", "started"]


HARNESS = """
import sys, time
from pathlib import Path
from chaos.fleet import Fleet
from chaos.systems import WorkerSettings
fleet = Fleet("leaseproof", WorkerSettings(2, 0, 1.0, 0.05, 0.2, 2.0), Path(sys.argv[2]))
fleet.start([sys.argv[1]] * 3)
fleet.pause(fleet.seats[0])
print(*(seat.pid for seat in fleet.seats), flush=True)
time.sleep(600)
"""


def test_workers_even_stopped_ones_die_with_a_harness_that_is_killed(
    target: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, target, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as harness:
        assert harness.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in harness.stdout.readline().split()]
        assert len(workers) == 3
        os.kill(harness.pid, signal.SIGKILL)
    wait_for(lambda: not any(worker.is_running() for worker in workers), "the workers to die")
