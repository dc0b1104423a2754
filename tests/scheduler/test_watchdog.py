"""The watchdog: ends calls that wait too long and attempts that nobody could renew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from chaos.explore.clock import START
from scheduler.lease import Attempt, Lease
from scheduler.watchdog import Watchdog
from scheduler.wire import WorkerConnection


@pytest.fixture
def seen() -> list[tuple[str, int, str]]:
    """What the watchdog said: word, task, how."""
    return []


@pytest.fixture
def watchdog(seen: list[tuple[str, int, str]]) -> Iterator[Watchdog]:
    """A running watchdog, whose clock is the real one."""
    running = Watchdog(
        0.01, time.monotonic, lambda what, lease, how: seen.append((what, lease.task, how))
    )
    running.start()
    yield running
    running.stop()
    running.join()


def attempt(believed_until: float, task: int = 1) -> Attempt:
    """An attempt that may be believed in until then."""
    lease = Lease(task, 1, "one/1")
    return Attempt(lease, "work", "0", 1, 3, START, timedelta(seconds=1), believed_until)


def test_a_call_over_its_limit_fails_and_does_not_wait(watchdog: Watchdog, dsn: str) -> None:
    with (
        WorkerConnection.connect(dsn, autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError),
        watchdog.limited(connection, 0.05),
    ):
        connection.execute("select pg_sleep(100)")


def test_a_call_within_its_limit_is_left_alone(watchdog: Watchdog, dsn: str) -> None:
    with WorkerConnection.connect(dsn, autocommit=True) as connection:
        with watchdog.limited(connection, 60):
            connection.execute("select pg_sleep(0.05)")
        assert connection.execute("select 1").fetchone() == (1,)


def test_an_attempt_is_lost_once_its_belief_is_over() -> None:
    seen: list[str] = []
    interrupted: list[str] = []
    watchdog = Watchdog(1, lambda: 0.0, lambda what, lease, how: seen.append(f"{what}: {how}"))
    held = attempt(believed_until=10.0)
    watchdog.hold([held])
    with watchdog.interruptible(held, lambda: interrupted.append("it")):
        watchdog.look(9.9)
        assert (held.lost, seen, interrupted) == (False, [], [])
        watchdog.look(10.0)
        watchdog.look(11.0)
    assert (held.lost, seen, interrupted) == (True, ["lease-lost: not renewed in time"], ["it"])


def test_a_handler_that_is_over_is_not_interrupted() -> None:
    interrupted: list[str] = []
    watchdog = Watchdog(1, lambda: 0.0, lambda what, lease, how: None)
    held = attempt(believed_until=10.0)
    watchdog.hold([held])
    with watchdog.interruptible(held, lambda: interrupted.append("it")):
        pass
    watchdog.look(11.0)
    watchdog.interrupt_all()
    assert interrupted == []
