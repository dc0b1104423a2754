"""Isolated kinds: their handlers can neither starve the worker nor outlive what they run for."""

from __future__ import annotations

import errno
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import Connection

from scheduler import Attempt, DatabaseUnreachableError, Registry, RetryPolicy, cancel, enqueue
from scheduler.isolation import Isolated
from scheduler.lease import Lease, reclaim
from tests.scheduler import isolated
from tests.scheduler.isolated import Job, apart, apart_for_long, here, registry
from tests.scheduler.working import ignore, outcomes, over, running, statuses, task, worker
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]

KINDS_OF_A_SCRIPT = """
import sys
from datetime import timedelta
from scheduler import Registry, RetryPolicy, Worker
from tests.scheduler.isolated import LEASE, Job, do

registry = Registry()
once = RetryPolicy(max_attempts=1)

@registry.kind("apart", Job, lease=LEASE, retry=once, isolated=True)
def apart(attempt, job):
    do(attempt, job)

@registry.kind("here", Job, lease=LEASE, retry=once)
def here(attempt, job):
    do(attempt, job)

def work():
    quick = timedelta(milliseconds=20)
    Worker(registry, sys.argv[1], poll=quick, reclaim_every=quick).run()

"""
WORKER_COMMAND = """
from scheduler.cli import main
if __name__ == "__main__":
    main()
"""


@contextmanager
def program(*arguments: str, dsn: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run Python in a session of its own; at the end it is killed if it is still there."""
    environment = {**os.environ, "SCHEDULER_DATABASE": dsn, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *arguments], env=environment, start_new_session=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The file that tells in which processes handlers started."""
    return tmp_path / "pids"


def started(pids: Path, count: int = 1) -> list[int]:
    """The processes in which so many handlers started, once they have."""

    def enough() -> list[int]:
        found = [int(line) for line in pids.read_text().splitlines()] if pids.exists() else []
        return found if len(found) >= count else []

    return wait_for(enough, f"{count} handlers to start")


def gone(pid: int) -> bool:
    """Whether the process has ended; its parent need not have noticed yet."""
    try:
        process = psutil.Process(pid)
        # Its first thread is a zombie before the others are gone, which keep its files open.
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def error_of(db: Connection, number: int) -> str:
    """The task's last error, once it is dead."""
    over(db, number, "dead")
    return task(db, number).last_error or ""


@pytest.mark.slow
def test_a_handler_that_hogs_the_interpreter_keeps_its_lease_only_if_it_is_isolated(
    db: Connection, dsn: str, pids: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(KINDS_OF_A_SCRIPT + "if __name__ == '__main__':\n    work()\n")
    with program(str(script), dsn) as process:
        kept = enqueue(db, apart, Job(what="hog", file=pids, seconds=1.5))
        wait_for(lambda: reclaim(db, 1) or statuses(db) == {"completed": 1}, "its end")
        assert outcomes(db, kept) == ["completed"]
        lost = enqueue(db, here, Job(what="hog", file=pids, seconds=60))
        wait_for(lambda: reclaim(db, 1), "its lease to expire")
        assert outcomes(db, lost) == ["reclaimed"]
        first, second = started(pids, 2)
        assert first != process.pid == second


def test_one_process_runs_the_attempts_of_a_slot_and_says_how_each_ended(
    db: Connection, dsn: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOLATED_TOKEN", "open sesame")
    said: list[tuple[str, str]] = []

    def observe(what: str, lease: Lease, detail: str) -> None:
        if what in ("started", "finished"):
            said.append((what, detail))

    with running(worker(registry, dsn, slots=1, name="the-worker", observe=observe)):
        over(db, enqueue(db, apart, Job(what="look", file=pids)))
        over(db, enqueue(db, apart, Job(what="look", file=pids, padding="x" * 1_048_000)))
        snoozed = enqueue(db, apart, Job(what="snooze", file=pids))
        over(db, snoozed)
        raised = error_of(db, enqueue(db, apart, Job(what="raise", file=pids)))
        long = error_of(db, enqueue(db, apart, Job(what="raise", file=pids, padding="x" * 99_999)))
        left = error_of(db, enqueue(db, apart, Job(what="sys.exit", file=pids)))
        told = error_of(db, enqueue(db, apart, Job(what="tell", file=pids)))
        other = Registry().kind("apart", int, retry=RetryPolicy(max_attempts=1))(ignore)
        refused = error_of(db, enqueue(db, other, 7))
        over(db, enqueue(db, apart, Job(what="look", file=pids)))
    assert outcomes(db, snoozed) == ["snoozed", "completed"]
    first, *rest = raised.splitlines()
    assert first == "ValueError: went wrong"
    assert f'File "{isolated.__file__}"' in rest[1]
    assert rest[-1].strip() == 'raise ValueError("went wrong" + job.padding)'
    assert len(long) <= 10_000
    assert left.startswith("SystemExit: 3\n")
    assert told.startswith("ValueError: refused the token [secret token]\n")
    assert refused.startswith("the payload for kind 'apart' is refused by its model: ")
    assert len(set(started(pids, 9))) == 1
    assert started(pids)[0] != os.getpid()
    wait_for(lambda: gone(started(pids)[0]), "the process to end with its slot")
    ends = [
        "completed",
        "completed",
        "snoozed",
        "completed",
        "failed",
        "failed",
        "failed",
        "failed",
        "failed",
        "completed",
    ]
    assert said == [pair for end in ends for pair in (("started", ""), ("finished", end))]


def test_a_process_that_dies_fails_its_attempt_by_name_and_is_replaced(
    db: Connection, dsn: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.isolation.LOOK_EVERY", 0.05)
    with running(worker(registry, dsn, slots=1)):
        killed = error_of(db, enqueue(db, apart, Job(what="segfault", file=pids)))
        # What it forked holds its end of the pipe, so that nothing but its own end can be seen.
        left = error_of(db, enqueue(db, apart, Job(what="leave an orphan", file=pids)))
        os.kill(started(pids, 3)[2], signal.SIGKILL)
        over(db, enqueue(db, apart, Job(what="return", file=pids)))
        # While it has nothing to do, that is no attempt's fault.
        os.kill(started(pids, 4)[3], signal.SIGKILL)
        wait_for(lambda: gone(started(pids, 4)[3]), "the process to be killed")
        over(db, enqueue(db, apart, Job(what="return", file=pids)))
    assert killed == "the process that ran the handler was killed by signal SIGSEGV"
    assert left == "the process that ran the handler ended with exit code 7"
    assert len(set(started(pids, 5))) == 5


def test_a_machine_that_can_start_no_process_costs_no_attempt(
    db: Connection, dsn: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Isolated._start
    refused: list[None] = []

    def starts(own: Isolated) -> None:
        if len(refused) < 3:
            refused.append(None)
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        start(own)

    monkeypatch.setattr(Isolated, "_start", starts)
    monkeypatch.setattr("scheduler.slots.PAUSE", 0.01)
    monkeypatch.setattr("scheduler.slots.LEAST_PUT_OFF", timedelta(0))
    with running(worker(registry, dsn, slots=1)):
        number = enqueue(db, apart, Job(what="return", file=pids))
        over(db, number)
    assert outcomes(db, number) == ["snoozed"] * 3 + ["completed"]
    assert task(db, number).attempts == 1


def test_a_process_that_is_not_ready_in_time_fails_the_attempt(
    db: Connection, dsn: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LOOK_EVERY", "LONGEST_START", "LONGEST_GOODBYE"):
        monkeypatch.setattr(f"scheduler.isolation.{limit}", 0.0)
    with running(worker(registry, dsn, slots=1)):
        error = error_of(db, enqueue(db, apart, Job(what="return", file=pids)))
    assert "was killed by signal SIGKILL before it was ready, for which it has 0 s" in error
    assert not pids.exists()


def test_an_isolated_handler_is_killed_when_its_lease_is_lost_and_when_the_grace_is_over(
    db: Connection, dsn: str, pids: Path
) -> None:
    stopped = worker(registry, dsn, slots=1, grace=timedelta(milliseconds=100))
    with running(stopped):
        cancelled = enqueue(db, apart, Job(what="hog", file=pids, seconds=60))
        (first,) = started(pids)
        assert cancel(db, [cancelled]) == {cancelled: "running"}
        wait_for(lambda: gone(first), "the process to be killed")
        interrupted = enqueue(db, apart, Job(what="hog", file=pids, seconds=60))
        _, second = started(pids, 2)
        stopped.stop()
    assert gone(second)
    assert outcomes(db, cancelled) == ["cancelled"]
    assert error_of(db, interrupted).startswith("interrupted: the worker shut down")
    assert outcomes(db, interrupted) == ["failed"]


def test_a_worker_that_gives_up_leaves_no_isolated_handler_behind(
    db: Connection, dsn: str, pids: Path
) -> None:
    """Its process could not exit: at exit, multiprocessing waits for all that it started."""
    enqueue(db, apart_for_long, Job(what="hog", file=pids, seconds=60))
    gone_too = worker(registry, dsn, slots=1, give_up=timedelta(seconds=0.1))
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(dsn, dbname="postgres", autocommit=True) as elsewhere,
    ):
        run = pool.submit(gone_too.run)
        (pid,) = started(pids)
        elsewhere.execute(f"alter database {db.info.dbname} allow_connections false".encode())
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        with pytest.raises(DatabaseUnreachableError):
            run.result(30)
    wait_for(lambda: gone(pid), "the handler's process to end")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel ends such a process")
def test_a_handler_that_hogs_the_interpreter_does_not_outlive_its_worker(
    db: Connection, dsn: str, pids: Path
) -> None:
    enqueue(db, apart, Job(what="hog", file=pids, seconds=60))
    arguments = ["-m", "scheduler", "worker", "tests.scheduler.isolated:registry"]
    with program(*arguments, dsn=dsn) as process:
        (pid,) = started(pids)
        process.kill()
        wait_for(lambda: gone(pid), "the handler's process to end")


@pytest.mark.slow
def test_signals_for_the_whole_group_leave_the_handler_to_the_drain(
    db: Connection, dsn: str, pids: Path, tmp_path: Path
) -> None:
    script = tmp_path / "scheduler.script"  # as the installed command `scheduler` is
    script.write_text(WORKER_COMMAND)
    number = enqueue(db, apart, Job(what="wait", file=pids))
    with program(str(script), "worker", "tests.scheduler.isolated:registry", dsn=dsn) as process:
        (pid,) = started(pids)
        os.kill(pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        pids.with_suffix(".go").touch()
        assert process.wait(30) == 0
    assert outcomes(db, number) == ["completed"]
    assert gone(pid)


def test_a_module_that_the_process_cannot_import_fails_the_attempt_with_the_reason(
    db: Connection, dsn: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAK_ISOLATED", "yes")
    with running(worker(registry, dsn, slots=1)):
        number = enqueue(db, apart, Job(what="return", file=pids))
        error = error_of(db, number)
    assert error.startswith("ImportError: this module is broken on purpose\n")
    assert outcomes(db, number) == ["failed"]


@pytest.mark.slow
def test_a_script_that_works_when_it_is_imported_fails_the_attempt_and_starts_no_second_worker(
    db: Connection, dsn: str, pids: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(KINDS_OF_A_SCRIPT + "work()\n")
    number = enqueue(db, apart, Job(what="return", file=pids))
    with program(str(script), dsn):
        error = error_of(db, number)
    assert error.startswith("the process for isolated handlers ended with exit code 1 before it")
    assert "under `if __name__ == '__main__':`" in error
    assert not pids.exists()


def test_a_handler_that_another_process_cannot_find_is_refused_at_once() -> None:
    register: Any = Registry().kind("work", int, isolated=True)

    def nested(attempt: Attempt, payload: int) -> None:
        """Exists while this test runs."""

    with pytest.raises(ValueError, match=r"looked up in another process .*<locals>.nested"):
        register(nested)
    with pytest.raises(ValueError, match=r"looked up in another process .*<lambda>"):
        register(lambda attempt, payload: None)
    with pytest.raises(ValueError, match="looked up in another process"):
        register(functools.partial(ignore))


def test_a_kind_that_is_not_where_its_handler_is_is_refused_by_the_worker() -> None:
    elsewhere = Registry()
    elsewhere.kind("work", int, isolated=True)(ignore)
    with pytest.raises(ValueError, match=r"tests.scheduler.working.ignore is not the kind 'work'"):
        worker(elsewhere, "")


def test_only_plain_handlers_can_be_isolated() -> None:
    asking: Any = Registry()

    async def asynchronous(attempt: Attempt, payload: int) -> None:
        """Needs the worker's event loop."""

    with pytest.raises(TypeError, match="an async handler cannot be isolated"):
        asking.kind("work", int, isolated=True)(asynchronous)
    with pytest.raises(TypeError, match="isolated"):
        asking.transactional("work", int, isolated=True)


@pytest.mark.parametrize("how", ["typed in", "a package's main"])
def test_a_handler_in_a_main_module_that_is_not_imported_elsewhere_is_refused(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    if how == "a package's main":
        main.__file__ = "package/__main__.py"
        main.__spec__ = ModuleSpec("package.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(ignore, "__module__", "__main__")
    with pytest.raises(ValueError, match="cannot import the main module"):
        Registry().kind("work", int, isolated=True)(ignore)
