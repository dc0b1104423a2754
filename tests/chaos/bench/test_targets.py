"""The table of what is to be reached, from results that nobody measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.bench import growth, sustained
from chaos.bench.peers.said import PYTHON
from chaos.bench.result import LIMIT, ONE_COMMIT, OURS, Key, Measurement, Result, save
from chaos.bench.targets import HELD, MISSING, NOT_HELD, TARGETS, missing, rows
from chaos.cli import app
from tests.chaos.bench.made_up import MACHINE

DEAD = sustained.dead_before(1_000_000)
FUTURE = growth.beside(1_000_000, growth.FUTURE)


def result(bench: str, cells: Mapping[Key, float], figure: str = "tasks_per_s") -> Result:
    """A result of one repeat."""
    measured = tuple(Measurement(key, 1, {figure: value}, {}) for key, value in cells.items())
    return Result(bench, "workers", bench, "2030-01-01T00:00:00Z", 1.0, MACHINE, (), measured)


def verdicts(*results: Result) -> dict[tuple[str, str], str]:
    """By figure and what it is a multiple of, where there is something."""
    return {
        (row.figure, row.of): row.verdict
        for row in rows(results)
        if row.verdict in (HELD, NOT_HELD)
    }


def ours(setting: str, batch: int, at: int) -> Key:
    return Key(OURS, setting, batch, at)


def pgbench(batch: int, at: int, system: str = LIMIT) -> Key:
    return Key(system, str(batch), batch, at)


def combined(batch: int, at: int) -> Key:
    return pgbench(batch, at, ONE_COMMIT)


def test_without_results_all_is_missing_and_said_how_to_get() -> None:
    found = rows([])
    assert len(found) == len(TARGETS)
    assert {row.verdict for row in found} == {MISSING}
    assert [command.split()[2] for command in missing([])] == [
        *("peers", "contention", "transactional", "growth", "sustained", "enqueue", "latency"),
    ]


@pytest.mark.parametrize(("share", "verdict"), [(50.0, HELD), (49.0, NOT_HELD)])
def test_ours_is_taken_where_it_is_fastest_and_pgbench_at_the_same_number(
    share: float, verdict: str
) -> None:
    cells = {
        ours("1+99", 100, 2): share,
        combined(100, 2): 100.0,
        ours("1+99", 100, 4): 20.0,
        combined(100, 4): 20.0,  # a better share, but slower
        pgbench(100, 2): 900.0,  # the plain cycle is not what ours runs
    }
    assert verdicts(result("contention", cells)) == {("drain, batch 100", ONE_COMMIT): verdict}


@pytest.mark.parametrize(
    ("same", "plain", "verdict"),
    [
        (100.0, 50.0, (HELD, HELD)),
        (101.0, 50.0, (NOT_HELD, HELD)),
        (100.0, 50.1, (HELD, NOT_HELD)),
    ],
)
def test_one_task_a_claim_is_beside_the_same_statement_and_beside_the_plain_cycle(
    same: float, plain: float, verdict: tuple[str, str]
) -> None:
    cells = {ours("1", 1, 2): 65.0, combined(1, 2): same, pgbench(1, 2): plain}
    found = verdicts(result("contention", cells))
    assert found == {
        ("drain, one task a claim", ONE_COMMIT): verdict[0],
        ("drain, one task a claim and commit", "pgbench's claim, then complete"): verdict[1],
    }


def test_a_result_of_before_lacks_the_limit_that_runs_the_same_statement() -> None:
    cells = {ours("1+99", 100, at): 90.0 for at in (2, 64)}
    cells |= {pgbench(100, at): 100.0 for at in (2, 64)}
    said = {row.figure: (row.verdict, row.measured) for row in rows([result("contention", cells)])}
    beside = f"it has no leaseproof beside {ONE_COMMIT} of batch 100"
    assert said["drain, batch 100"] == (MISSING, beside)
    kept = f"it has no {ONE_COMMIT} with 100 at 64 and fewer"
    assert said["kept at 64 workers, batch 100"] == (MISSING, kept)


@pytest.mark.parametrize(("default", "verdict"), [(90.0, HELD), (89.0, NOT_HELD)])
def test_defaults_are_beside_our_best_and_not_pgbench(default: float, verdict: str) -> None:
    cells = {ours("default", 500, 2): default, ours("1+99", 100, 4): 100.0}
    cells |= {pgbench(100, 8): 900.0, combined(100, 8): 900.0}
    assert verdicts(result("contention", cells)) == {
        ("drain, default settings", "our best"): verdict
    }


@pytest.mark.parametrize(("kept", "verdict"), [(51.0, HELD), (50.0, NOT_HELD)])
def test_at_many_workers_we_keep_more_than_pgbench_does(kept: float, verdict: str) -> None:
    cells = {
        ours("1+99", 100, 4): 100.0,
        ours("10+90", 100, 64): kept,
        ours("1+99", 100, 64): 1.0,  # of two with this batch the faster one counts
        combined(100, 8): 400.0,
        combined(100, 64): 200.0,
        pgbench(100, 8): 400.0,
        pgbench(100, 64): 300.0,
    }
    found = verdicts(result("contention", cells))
    assert found["kept at 64 workers, batch 100", f"what {ONE_COMMIT} keeps"] == verdict
    assert ("kept at 64 workers, batch 1,000", f"what {ONE_COMMIT} keeps") not in found


@pytest.mark.parametrize(("theirs", "verdict"), [(50.0, HELD), (51.0, NOT_HELD)])
def test_all_of_pythons_others_must_be_there(theirs: float, verdict: str) -> None:
    cells = {ours("default", 0, 2): 100.0, ours("best", 0, 2): 900.0}
    cells |= {Key(name, "best", 0, at): theirs / at for name in PYTHON for at in (1, 2)}
    wanted = ("drain, default settings", "the best of Python's others")
    assert verdicts(result("peers", cells)) == {wanted: verdict}
    fewer = {key: value for key, value in cells.items() if key.system != PYTHON[0]}
    row = rows([result("peers", fewer)])[0]
    assert (row.verdict, row.measured) == (MISSING, f"it has no {PYTHON[0]}")
    cells[Key("graphile-worker", "best", 0, 4)] = 99.0
    assert verdicts(result("peers", cells))["drain, default settings", "graphile-worker"] == HELD


@pytest.mark.parametrize(("cost", "verdict"), [(1.2, HELD), (1.3, NOT_HELD)])
def test_a_claim_is_beside_that_from_a_short_queue(cost: float, verdict: str) -> None:
    cells = {
        ours(growth.DUE, 10, 10_000): 1.0,
        ours(growth.DUE, 10, 5_000_000): cost,
        ours(FUTURE, 10, 10_000): cost,
    }
    assert set(verdicts(result("growth", cells, "claim_p50")).values()) == {verdict}
    few = {ours(growth.DUE, 10, 10_000): 1.0, ours("due + 3,000 future", 10, 10_000): 1.0}
    assert verdicts(result("growth", few, "claim_p50")) == {}


def test_a_sustained_drain_without_its_windows_is_missing() -> None:
    assert verdicts(result("sustained", {})) == {}
    assert verdicts(result("sustained", {ours(DEAD, 10, 60): 5.0})) == {}


@pytest.mark.parametrize(("last", "dead", "verdict"), [(95.0, 48.75, HELD), (94.0, 48.0, NOT_HELD)])
def test_a_drain_neither_decays_nor_is_halved(last: float, dead: float, verdict: str) -> None:
    def cells(seconds: int) -> dict[Key, float]:
        rates = {sustained.FREE: (100.0, last), DEAD: (dead, dead)}
        return {
            ours(way, 10, at): rate
            for way, pair in rates.items()
            for at, rate in zip((10, seconds), pair, strict=True)
        }

    assert list(verdicts(result("sustained", cells(60))).values()) == [verdict, verdict]
    assert verdicts(result("sustained", cells(20))) == {}


@pytest.mark.parametrize(("theirs", "verdict"), [(99.0, HELD), (100.0, NOT_HELD)])
def test_bulk_enqueues_are_beside_those_of_others(theirs: float, verdict: str) -> None:
    cells = {ours("default", 0, 1): 90.0, ours("best", 0, 1): 100.0}
    cells |= {Key("pgqueuer", "default", 0, 1): 10.0, Key("pgqueuer", "best", 0, 1): theirs}
    found = verdicts(result("peers", cells, "enqueued_per_s"))
    assert found == {("bulk enqueue", "pgqueuer"): verdict}


@pytest.mark.parametrize(("theirs", "verdict"), [(99.0, HELD), (100.0, NOT_HELD)])
def test_single_enqueues_are_beside_those_of_absurd(theirs: float, verdict: str) -> None:
    cells = {ours("default", 0, 1): 90.0, ours("best", 0, 1): 100.0}
    cells |= {Key("absurd", "default", 0, 1): theirs, Key("pgqueuer", "best", 0, 1): 900.0}
    found = verdicts(result("peers", cells, "single_enqueues_per_s"))
    assert found == {("single enqueue", "absurd"): verdict}


@pytest.mark.parametrize("percent", ["p50", "p99"])
@pytest.mark.parametrize(("theirs", "verdict"), [(5.1, HELD), (5.0, NOT_HELD)])
def test_ours_starts_sooner_with_defaults_than_theirs_at_their_best(
    percent: str, theirs: float, verdict: str
) -> None:
    cells = {ours("default", 0, 1): 6.0, ours("default", 0, 4): 5.0, ours("best", 0, 1): 1.0}
    cells |= {Key("pgqueuer", "default", 0, 1): 1.0, Key("graphile-worker", "default", 0, 1): 9.0}
    lone = rows([result("latency", {ours("default", 0, 1): 1.0}, f"start_{percent}")])
    assert {row.measured for row in lone if row.figure == f"enqueue to start, {percent}"} == {
        "it has no graphile-worker"
    }
    cells[Key("graphile-worker", "batching", 0, 4)] = theirs
    found = verdicts(result("latency", cells, f"start_{percent}"))
    assert found == {(f"enqueue to start, {percent}", "graphile-worker"): verdict}


def test_single_enqueues_are_judged_at_each_number_of_clients() -> None:
    cells = {
        ours("1", 1, 1): 80.0,
        pgbench(1, 1): 100.0,
        ours("1", 1, 8): 790.0,
        pgbench(1, 8): 1000.0,
        ours("1000", 1000, 1): 1.0,
        pgbench(1000, 1): 100.0,
    }
    assert verdicts(result("enqueue", cells)) == {
        ("single enqueue, 1 client", LIMIT): HELD,
        ("single enqueue, 8 clients", LIMIT): NOT_HELD,
    }


def test_the_newest_result_that_has_the_figure_counts() -> None:
    good = result("transactional", {ours("1", 1, 1): 70.0, pgbench(1, 1): 100.0})
    bad = result("transactional", {ours("1", 1, 1): 60.0, pgbench(1, 1): 100.0})
    wanted = ("transactional tasks", LIMIT)
    later, latest = "2030-01-02T00:00:00Z", "2030-01-03T00:00:00Z"
    assert verdicts(bad, replace(good, began=later)) == {wanted: HELD}
    assert verdicts(good, replace(bad, began=later)) == {wanted: NOT_HELD}
    without = replace(result("transactional", {ours("1", 1, 1): 70.0}), began=latest)
    assert verdicts(replace(good, began=later), without, bad) == {wanted: HELD}


@pytest.mark.parametrize(("speed", "code"), [(70.0, 3), (60.0, 1)])
def test_the_command_ends_with_what_it_found(tmp_path: Path, speed: float, code: int) -> None:
    path = tmp_path / "result.json"
    save(result("transactional", {ours("1", 1, 1): speed, pgbench(1, 1): 100.0}), path)
    ran = CliRunner().invoke(app, ["bench", "targets", str(path)])
    assert ran.exit_code == code, ran.output
    assert f"0.{speed:.0f} (1 at 1 workers)" in ran.output
    assert "missing: chaos bench contention" in ran.output
    assert "missing: chaos bench transactional" not in ran.output


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    ran = CliRunner().invoke(app, ["bench", "targets", str(tmp_path / "x.json")])
    assert ran.exit_code == 2
    assert "is no result of" in " ".join(ran.output.split())
