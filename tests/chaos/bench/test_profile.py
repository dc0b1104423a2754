"""The profile: what the server counted, summed up over repeats."""

from __future__ import annotations

import pytest

from chaos.bench.profile import Plan, Profile, Statement, per_task, run, statements
from chaos.bench.result import Key, Measurement
from chaos.bench.setting import parse_setting


def drained(cpu: float) -> Measurement:
    return Measurement(Key("leaseproof", "1", 1, 1), 1, {"server_cpu": cpu, "tasks": 100}, {})


def test_repeats_are_summed_up_by_statement() -> None:
    quick, slow = (
        [Statement(what, 10, 10, milliseconds * n, 1, 0, 5, 6, 7) for n in (1, 3, 2)]
        for what, milliseconds in (("quick", 1), ("slow", 50))
    )
    profiles = [Profile(drained(n), pair) for n, pair in enumerate(zip(quick, slow, strict=True))]
    assert [(one.what, one.exec_ms) for one in statements(profiles)] == [
        ("slow", 100),
        ("quick", 2),
    ]
    assert per_task(profiles, "server_cpu") == (10_000, 0, 20_000)


@pytest.mark.chaos_long
def test_a_profile_shows_what_a_change_brings() -> None:
    setting = parse_setting("1+99")
    before = "alter table scheduler.tasks drop constraint backoff_is_bounded"
    (found,) = run(
        Plan(setting, 1, 100, 1, "-c plan_cache_mode=force_custom_plan", before),
        lambda done, total, key, last: None,
    )
    claim = next(one for one in found.statements if one.what.startswith("Claim"))
    assert claim.rows == 100
    assert claim.plans == claim.calls  # the option reached the workers
