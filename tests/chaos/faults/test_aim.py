"""Faults strike only whom their aim fits, and nobody twice at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.cluster.postgres import Postgres
from chaos.faults.worker import Freeze, Stampede
from chaos.fleet import Fleet, Seat
from chaos.systems.moments import DIRECTORY
from tests.chaos.faults.arena import arena


def seats() -> list[Seat]:
    """Four workers that run."""
    return [Seat(number, "", incarnation=1, pid=number) for number in (1, 2, 3, 4)]


def drawn(where_seed: int, server: Postgres) -> list[str | None]:
    """Whom ten draws choose."""
    where = arena(server, "postgres", *seats())
    where.draw = random.Random(where_seed)
    picks = [where.pick("lease") for _ in range(10)]
    return [seat.name if seat is not None else None for seat in picks]


def test_a_draw_follows_its_seed(server: Postgres) -> None:
    assert drawn(1, server) == drawn(1, server) != drawn(2, server)


def test_only_who_holds_a_lease_is_struck_unless_anyone_will_do(server: Postgres) -> None:
    where = arena(server, "postgres", *seats())
    where.leases = lambda: {"w2.1": [2], "w3.0": [3], "unknown": [4]}
    assert {seat.name for _ in range(20) if (seat := where.pick("lease"))} == {"w2.1"}
    assert len({seat.name for _ in range(99) if (seat := where.pick("anyone"))}) == 4
    where.leases = dict
    assert where.pick("lease") is None


def test_a_last_attempt_is_aimed_at_by_the_tasks_that_are_held(server: Postgres) -> None:
    where = arena(server, "postgres", *seats())
    assert {seat.name for _ in range(20) if (seat := where.pick("last-attempt"))} == {"w1.1"}
    where.is_last = lambda task: False
    assert where.pick("last-attempt") is None


def test_what_was_claimed_and_not_started_is_more_than_a_worker_has_slots_for(
    server: Postgres,
) -> None:
    where = arena(server, "postgres", *seats())  # of one slot each
    where.leases = lambda: {"w1.1": [1], "w2.1": [2, 5], "w3.1": [3]}
    assert {seat.name for _ in range(20) if (seat := where.pick("unstarted"))} == {"w2.1"}
    where.leases = lambda: {"w1.1": [1]}
    assert where.pick("unstarted") is None


def test_who_is_struck_stopped_leaving_or_dead_is_not_struck(server: Postgres) -> None:
    where = arena(server, "postgres", *seats())
    where.busy.append(1)
    where.fleet.seats[1].paused = True
    where.fleet.seats[2].expected = 0
    where.fleet.seats[3].pid = None
    assert where.pick("lease") is None
    assert where.pick("anyone") is None


def test_a_stampede_waits_for_two_workers_with_leases(server: Postgres) -> None:
    where = arena(server, "postgres", *seats())
    where.leases = lambda: {"w2.1": [2]}
    assert Stampede(kind="stampede", count=1).inject(where) is None


def test_a_transaction_is_aimed_at_by_what_the_system_says(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = arena(server, "postgres", *seats())
    monkeypatch.setattr(where.system, "in_transaction", lambda dsn: ["w3.1", "w9.1"])
    assert {seat.name for _ in range(20) if (seat := where.pick("in-transaction"))} == {"w3.1"}
    where.leases = dict
    assert where.pick("in-transaction") is None


def test_a_renewal_is_aimed_at_by_asking_workers_to_wait_in_theirs(
    server: Postgres, tmp_path: Path
) -> None:
    where = arena(server, "postgres", *seats())
    where.fleet.directory = tmp_path
    where.leases = lambda: {"w1.1": [1], "w2.1": [2], "w3.1": [3]}
    where.busy.append(1)

    def files() -> set[str]:
        return {file.name for file in (tmp_path / DIRECTORY).iterdir()}

    assert where.pick("in-renewal") is None
    assert where.pick("in-reclaim") is None
    assert files() == {
        *("w2.1.in-renewal", "w3.1.in-renewal"),
        *("w2.1.in-reclaim", "w3.1.in-reclaim"),
    }
    (tmp_path / DIRECTORY / "w3.1.in-renewal").rename(tmp_path / DIRECTORY / "w3.1.in-renewal.here")
    seat = where.pick("in-renewal")
    assert seat is not None
    assert seat.name == "w3.1"
    assert files() == {"w3.1.in-renewal.held", "w2.1.in-reclaim", "w3.1.in-reclaim"}
    where.let_go("w3.1")
    assert files() == {"w2.1.in-reclaim", "w3.1.in-reclaim"}


def test_a_worker_that_left_its_transaction_just_in_time_is_not_frozen(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = arena(server, "postgres", *seats())
    answers = [["w1.1"], []]
    monkeypatch.setattr(where.system, "in_transaction", lambda dsn: answers.pop(0))
    sent: list[str] = []
    monkeypatch.setattr(Fleet, "pause", lambda fleet, seat: sent.append(f"stop {seat.name}"))
    monkeypatch.setattr(Fleet, "resume", lambda fleet, seat: sent.append(f"go on {seat.name}"))
    assert Freeze(kind="freeze", count=1).inject(where) is None
    assert sent == ["stop w1.1", "go on w1.1"]
