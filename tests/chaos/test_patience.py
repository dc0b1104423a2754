"""The harness bears a database that is away, but not for ever."""

from __future__ import annotations

import psycopg
import pytest

from chaos.patience import Patience, harness_dsn


def refuse(patience: Patience) -> None:
    """One call that the database refuses."""
    with patience:
        raise psycopg.OperationalError("refused")


def test_refusals_are_borne_until_they_last_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience()
    refuse(patience)
    refuse(patience)
    monkeypatch.setattr("chaos.patience.LONGEST_OUTAGE", 0.0)
    with pytest.raises(psycopg.OperationalError):
        refuse(patience)


def test_an_answer_ends_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("chaos.patience.time.monotonic", lambda: now[0])
    patience = Patience()
    refuse(patience)
    now[0] += 20
    with patience:
        pass
    now[0] += 20
    refuse(patience)
    now[0] += 40
    with pytest.raises(psycopg.OperationalError):
        refuse(patience)


def test_other_errors_are_not_borne() -> None:
    with pytest.raises(psycopg.ProgrammingError), Patience():
        raise psycopg.ProgrammingError("a bug")


def test_the_harness_does_not_wait_for_a_locked_table(dsn: str) -> None:
    with psycopg.connect(dsn) as holder, psycopg.connect(harness_dsn(dsn, "test")) as harness:
        holder.execute("lock table scheduler.tasks")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            harness.execute("select from scheduler.tasks")
