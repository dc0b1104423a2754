"""Retries: the backoff is exactly the policy's, in SQL and in Python, and never overflows."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import RetryPolicy
from scheduler.finish import LONGEST_ERROR, fail, storable
from scheduler.retry import LONGEST_DELAY, MOST_ATTEMPTS
from tests.scheduler.working import MICROSECOND, RETRY, kind, outcomes, put, take, take_one, task

delays = st.timedeltas(MICROSECOND, LONGEST_DELAY)
policies = st.builds(
    lambda ends, factor, jitter: RetryPolicy(
        base=min(ends), cap=max(ends), factor=factor, jitter=jitter
    ),
    st.tuples(delays, delays),
    st.one_of(
        st.just(1.0),
        st.floats(1, 1.0001),
        st.floats(1, 10),
        st.floats(1, allow_infinity=False),
    ),
    st.floats(0, 0.5),
)
TINY = RetryPolicy(base=MICROSECOND, cap=LONGEST_DELAY, factor=math.nextafter(1, 2), jitter=0.0)


@settings(
    max_examples=300,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,  # `db` is only read
    ],
)
@given(
    policy=policies,
    attempts=st.one_of(st.integers(1, 20), st.integers(1, MOST_ATTEMPTS)),
    number=st.integers(1, 2**63 - 1),
    token=st.integers(1, 2**63 - 1),
)
@example(policy=TINY, attempts=MOST_ATTEMPTS, number=1, token=1)
@example(policy=RetryPolicy(factor=1e308), attempts=2, number=1, token=1)
@example(policy=RetryPolicy(factor=1e308), attempts=1, number=1, token=1)
def test_the_delay_in_sql_is_the_delay_in_python(
    db: Connection, policy: RetryPolicy, attempts: int, number: int, token: int
) -> None:
    found = db.execute(
        "select scheduler.retry_delay(%s, %s, %s, %s, %s, %s, %s)",
        [
            policy.base.total_seconds(),
            float(policy.factor),
            policy.cap.total_seconds(),
            float(policy.jitter),
            attempts,
            number,
            token,
        ],
    ).fetchone()
    assert found is not None
    expected = policy.delay(attempts, number, token)
    assert abs(found[0] - expected) <= max(MICROSECOND, expected * 1e-9)
    assert timedelta(0) <= found[0] <= policy.cap
    assert found[0] >= policy.base * (1 - policy.jitter) - MICROSECOND


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    policy = RetryPolicy(base=timedelta(seconds=1), factor=3, cap=timedelta(seconds=20), jitter=0.0)
    seconds = [policy.delay(attempts, 1, 1).total_seconds() for attempts in range(1, 6)]
    assert seconds == [1, 3, 9, 20, 20]


def test_jitter_spreads_tasks_that_failed_together() -> None:
    waits = {RetryPolicy().delay(3, number, 1) for number in range(100)}
    assert len(waits) > 90
    assert timedelta(seconds=2) < min(waits) < max(waits) <= timedelta(seconds=4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": MOST_ATTEMPTS + 1},
        {"base": timedelta(0)},
        {"base": timedelta(seconds=2), "cap": timedelta(seconds=1)},
        {"cap": LONGEST_DELAY + MICROSECOND},
        {"factor": 0.99},
        {"factor": math.inf},
        {"factor": math.nan},
        {"jitter": -0.1},
        {"jitter": 0.51},
        {"jitter": math.nan},
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)


def test_a_failed_task_is_due_again_exactly_when_its_policy_says(
    db: Connection, clock: Clock
) -> None:
    (number,) = put(db)
    for attempts in (1, 2):
        lease = take_one(db).lease
        clock.advance(timedelta(seconds=1))
        assert fail(db, [lease], [f"no {attempts}"]) == {number: "pending"}
        wait = RETRY.delay(attempts, number, lease.token)
        assert wait >= RETRY.base / 2
        found = task(db, number)
        assert (found.next_run_at, found.last_error) == (clock.now + wait, f"no {attempts}")
        assert (found.attempts, found.finished_at) == (attempts, None)
        clock.advance(wait - MICROSECOND)
        assert take(db) == []
        clock.advance(MICROSECOND)


def test_a_task_at_its_cap_is_dead_with_payload_and_last_error(
    db: Connection, clock: Clock
) -> None:
    (number,) = put(db)
    for attempts in (1, 2, 3):
        (attempt,) = take(db)
        status = fail(db, [attempt.lease], [f"no {attempts}"])[number]
        assert status == ("dead" if attempts == RETRY.max_attempts else "pending")
        clock.advance(timedelta(hours=1))
    found = task(db, number)
    assert (found.status, found.payload, found.last_error) == ("dead", "0", "no 3")
    assert found.finished_at == clock.now - timedelta(hours=1)
    assert outcomes(db, number) == ["failed"] * 3
    assert take(db) == []


def test_a_single_attempt_is_enough_for_a_cap_of_one(db: Connection) -> None:
    (number,) = put(db, of=kind(retry=RetryPolicy(max_attempts=1)))
    assert fail(db, [take_one(db).lease], ["no"]) == {number: "dead"}


def test_errors_of_a_batch_stay_with_their_tasks(db: Connection) -> None:
    put(db, 3)
    attempts = take(db)
    fail(db, [attempt.lease for attempt in attempts], [f"of {a.task}" for a in attempts])
    assert {task(db, a.task).last_error for a in attempts} == {f"of {a.task}" for a in attempts}


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        ("", ""),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("a\ud800b", "a?b"),
        ("\N{GRINNING FACE}" * LONGEST_ERROR * 2, "\N{GRINNING FACE}" * LONGEST_ERROR),
        ("\0" * 2_000_000, "\N{REPLACEMENT CHARACTER}" * LONGEST_ERROR),
    ],
)
def test_any_error_text_can_be_stored(db: Connection, error: str, stored: str) -> None:
    (number,) = put(db)
    assert storable(error) == stored
    fail(db, [take_one(db).lease], [error])
    assert task(db, number).last_error == stored


def test_an_error_text_as_it_comes_could_not_be_stored(db: Connection) -> None:
    with pytest.raises(psycopg.DataError):
        db.execute("select %s", ["a\0b"])
    with pytest.raises(UnicodeEncodeError):
        db.execute("select %s", ["a\ud800b"])
