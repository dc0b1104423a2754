"""The classic races: each is found within a few schedules, and its correction has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.explore import Bounds, ExplorerError, Program, explore_program, pytest_function, replay
from chaos.explore.examples import (
    DOUBLE_CLAIM,
    EXAMPLES,
    LOST_UPDATE,
    LOST_UPDATE_ASYNC,
    LOST_UPDATE_ASYNC_CORRECTED,
    LOST_UPDATE_CORRECTED,
    SKIPPED_ROW,
)
from chaos.explore.program import Violation
from chaos.explore.schedule import parse, show


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_classic_race_is_found_and_its_correction_is_exhausted(empty_dsn: str, name: str) -> None:
    wrong, right = EXAMPLES[name]
    found = explore_program(wrong, Bounds(preemptions=None), empty_dsn)
    assert found.outcome == "fail"
    assert found.certificate.schedules <= 5
    assert found.failure is not None
    assert found.failure.preemptions == 1
    again = explore_program(replace(right, install=None), Bounds(preemptions=None), empty_dsn)
    assert (again.outcome, again.certificate.coverage) == ("pass", "exhausted")


def test_a_printed_schedule_replays_and_tells_what_happened(empty_dsn: str) -> None:
    trace = replay(LOST_UPDATE, "a b b b a a", empty_dsn)
    # `python -m pytest` explains the asserts of a plugin's package too: that line is pytest's.
    lines = [line for line in str(trace).splitlines() if not line.startswith("assert ")]
    assert lines == [
        "a b b b a a",
        "  a      a: select n from counter -> SELECT 1",
        "  b      b: select n from counter -> SELECT 1",
        "  b      b: update counter set n = $1 -> UPDATE 1",
        "  b      b: commit",
        "  a      a: update counter set n = $1 -> UPDATE 1",
        "  a      a: commit",
        "  at-end: 2 increments made 1",
    ]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (LOST_UPDATE, LOST_UPDATE_CORRECTED),
        (LOST_UPDATE_ASYNC, LOST_UPDATE_ASYNC_CORRECTED),
    ],
    ids=["sync", "async"],
)
def test_a_failure_becomes_a_test_that_is_red_until_the_code_is_corrected(
    wrong: Program, right: Program, empty_dsn: str
) -> None:
    violation = Violation("at-end", "2 increments\nmade 1")
    source = pytest_function(wrong, parse("a b b b a a"), violation)
    assert "def test_a_b_b_b_a_a() -> None:\n    # at-end: 2 increments made 1\n" in source
    corrected = pytest_function(right, parse("a b b b a a"), violation)
    for text, red in ((source, True), (corrected, False)):
        # On this test's server: that replay starts one by itself is tested with the programs.
        run = {"__name__": "generated"}
        exec(text.replace("strict=False", f"{empty_dsn!r}, strict=False"), run)
        test = run["test_a_b_b_b_a_a"]
        assert callable(test)
        if red:
            with pytest.raises(AssertionError, match="2 increments made 1"):
                test()
        else:
            with_tables_there = replace(right, install=None)
            assert (
                replay(with_tables_there, "a b b b a a", empty_dsn, strict=False).violation is None
            )


def test_functions_that_cannot_be_imported_are_named() -> None:
    program = Program(LOST_UPDATE.setup, {"a": lambda connection: None}, LOST_UPDATE.setup)
    with pytest.raises(ExplorerError, match="<lambda>' cannot be imported"):
        pytest_function(program, parse("a"), Violation("invariant", "x"))


def test_the_documented_schedules_are_those_that_are_found(empty_dsn: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "explorer.md").read_text()
    for program in (LOST_UPDATE, DOUBLE_CLAIM, SKIPPED_ROW):
        if program is SKIPPED_ROW:
            program = replace(program, install=None)
        found = explore_program(program, Bounds(preemptions=None), empty_dsn)
        assert found.failure is not None
        assert f"`{show(found.failure.choices)}`" in page
