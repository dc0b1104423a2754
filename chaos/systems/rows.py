"""Reads the rows of our scheduler's tables as the log shows them."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from chaos.history.events import Effect, Ended, Key, Occurrence, Policy, Row
from chaos.history.watched import micros


def row(values: Mapping[str, str | None]) -> Row:
    return Row(
        task=int(_text(values, "id")),
        kind=_text(values, "kind"),
        state=_text(values, "status"),
        due=_time(values, "next_run_at"),
        attempts=int(_text(values, "attempts")),
        max_attempts=int(_text(values, "max_attempts")),
        token=int(_text(values, "lease_token")),
        owner=values["lease_owner"],
        expires=micros(values["lease_expires_at"]),
        claimed_at=micros(values["claimed_at"]),
        policy=Policy(
            float(_text(values, "backoff_base")),
            float(_text(values, "backoff_factor")),
            float(_text(values, "backoff_cap")),
            float(_text(values, "backoff_jitter")),
        ),
        error=values["last_error"],
        source=sys.intern(_text(values, "source")),  # the same few in every row
        counted=_text(values, "counted").startswith("t"),
        key=_key(values["unique_key"], values["unique_until"]),
        occurrence=_occurrence(values["schedule"], micros(values["occurrence"])),
        priority=int(_text(values, "priority")),
    )


def _key(text: str | None, until: str | None) -> Key | None:
    return None if text is None or until is None else Key(text, sys.intern(until))


def _occurrence(schedule: str | None, at: int | None) -> Occurrence | None:
    return None if schedule is None or at is None else Occurrence(sys.intern(schedule), at)


def ended(values: Mapping[str, str | None]) -> Ended:
    return Ended(
        task=int(_text(values, "task_id")),
        token=int(_text(values, "lease_token")),
        owner=_text(values, "lease_owner"),
        attempt=int(_text(values, "attempt")),
        claimed_at=_time(values, "claimed_at"),
        finished_at=_time(values, "finished_at"),
        outcome=_text(values, "outcome"),
        error=values["error"],
    )


def effect(values: Mapping[str, str | None]) -> Effect:
    return Effect(int(_text(values, "task")), int(_text(values, "token")))


def _text(values: Mapping[str, str | None], column: str) -> str:
    value = values[column]
    if value is None:
        raise ValueError(f"column {column} is null, which its table forbids")
    return value


def _time(values: Mapping[str, str | None], column: str) -> int:
    value = micros(_text(values, column))
    if value is None:
        raise ValueError(f"column {column} has no time")
    return value
