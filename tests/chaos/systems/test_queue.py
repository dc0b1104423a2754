"""A queue of plain data: what the harness finds out about its tasks, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from chaos.history.events import COMPLETED, PENDING, RUNNING
from chaos.scenario import load_scenario
from chaos.systems import (
    FEATURES,
    NotOfferedError,
    Order,
    UnknownSystemError,
    WorkerSettings,
    system,
)
from chaos.workload import Job, digest
from examples.letterbox import queue
from examples.letterbox.adapter import QUEUE

NAME = "examples.letterbox.adapter:QUEUE"
SCENARIOS = Path(__file__).parents[3] / "scenarios"
JOBS = [Job(number, "quick", 0, 0) for number in range(3)]


@pytest.fixture
def letters(empty_dsn: str) -> list[int]:
    """Three letters, of which two are due."""
    QUEUE.install(empty_dsn)
    delays = (0, 0, 600)
    orders = [Order(job, delay, 3) for job, delay in zip(JOBS, delays, strict=True)]
    return QUEUE.enqueue(empty_dsn, orders)


def test_tasks_are_found_by_state_and_by_the_number_of_their_job(
    letters: list[int], empty_dsn: str
) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        claimed = queue.claim(connection, "w1.1", 60)
        assert claimed is not None
    first, second, third = letters
    assert claimed.id == first
    assert QUEUE.tasks(empty_dsn, RUNNING) == [first]
    assert QUEUE.tasks(empty_dsn, PENDING) == [second, third]
    assert QUEUE.unfinished(empty_dsn) == 3
    assert QUEUE.find(empty_dsn, [0, 2, 7]) == {0: [first], 2: [third]}


def test_only_a_valid_lease_has_a_holder(letters: list[int], empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        queue.claim(connection, "w1.1", 60)
        queue.claim(connection, "w2.1", 0)
    assert QUEUE.holders(empty_dsn) == {"w1.1": [letters[0]]}


def test_what_is_locked_is_due_and_not_locked_by_others(letters: list[int], empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as one, psycopg.connect(empty_dsn) as other:
        assert QUEUE.lock_due(one, 1) == 1
        assert QUEUE.lock_due(other, 5) == 1  # the second: the first is locked, the third not due
        with psycopg.connect(empty_dsn, autocommit=True) as worker:
            assert queue.claim(worker, "w1.1", 1) is None


def test_a_session_that_idles_in_a_transaction_is_told_by_its_name(
    letters: list[int], empty_dsn: str
) -> None:
    with psycopg.connect(empty_dsn, application_name="w3.1") as session:
        session.execute("select")
        assert QUEUE.in_transaction(empty_dsn) == ["w3.1"]


def test_the_end_is_what_a_look_finds_with_the_payload_as_it_was_and_is(
    letters: list[int], empty_dsn: str
) -> None:
    first, *_ = letters
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        queue.deliver(connection, "w1.1", 60, lambda letter: None)
    found = QUEUE.finals(empty_dsn, {first: digest(JOBS[0].payload())})[0]
    assert (found.task, found.state, found.token, found.attempts) == (first, COMPLETED, 1, 1)
    assert found.payload_enqueued == found.payload_now


def test_a_queue_promises_an_order_only_if_it_says_so() -> None:
    settings = WorkerSettings(slots=2, prefetch=0, lease=9, poll=5, reclaim_every=1, grace=1)
    assert QUEUE.rules(settings).passed_over is None
    assert replace(QUEUE, passed_over=1.5).rules(settings).passed_over == 1_500_000


def test_a_scenario_that_asks_for_more_than_a_system_offers_is_refused() -> None:
    asked = {
        "unique-keys": "keys",
        "capped-source": "sources",
        "priorities": "priorities",
        "limited-kind": "limits",
        "recurring": "schedules",
        "operators": "operators",
        "rolling-deploy": "lacks",
        "changing-pace": "paced",
        "kill-mid-run": "snoozing",
    }
    assert set(asked.values()) >= FEATURES
    for name, feature in asked.items():
        scenario = load_scenario(SCENARIOS / f"{name}.yaml")
        assert feature in scenario.asks
        with pytest.raises(NotOfferedError, match=rf"{name} asks for .*\b{feature}\b"):
            scenario.system(NAME)
        scenario.system("leaseproof")
    assert load_scenario(SCENARIOS / "long-poll.yaml").asks <= {"quick", "slow", "transactional"}


def test_a_system_that_is_none_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import missing_module_of_somebody")
    monkeypatch.syspath_prepend(tmp_path)
    for name, sentence in {
        "examples.letterbox.none:QUEUE": "there is no module 'examples.letterbox.none'",
        "none.letterbox:QUEUE": "there is no module 'none'",
        "examples.letterbox.adapter:NONE": "should be a system.* and is a NoneType",
        "examples.letterbox.adapter:Queue": "should be a system.* and is a type",
    }.items():
        with pytest.raises(UnknownSystemError, match=sentence):
            system(name)
    with pytest.raises(ModuleNotFoundError, match="missing_module_of_somebody"):
        system("needy:QUEUE")  # the module's own mistake is shown as it is
    assert "needy" not in sys.modules
    assert system(NAME) is QUEUE
