"""How soon a task starts on an idle fleet: ours and a made-up system, and what is no latency."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.bench import BenchError, WrongDrainError, latency
from chaos.bench.peers import installed
from chaos.bench.peers.crew import prepare
from chaos.bench.peers.drain import Cell, url_of
from chaos.bench.peers.known import KNOWN
from chaos.bench.peers.peer import Peer
from chaos.bench.peers.program import Rhythm
from chaos.bench.result import OURS, load
from chaos.cli import app
from chaos.cluster.postgres import Postgres
from tests.chaos.bench.made_up_peer import COMMAND, made_up

PACE = Rhythm(warm=3, tasks=10, rate=100.0)
TEMPLATE = "latency_template"

Measure = Callable[[Peer, list[str]], dict[str, float]]


def cell_of(peer: Peer) -> Cell:
    return Cell(peer, peer.idle[0], workers=2, tasks=PACE.warm + PACE.tasks)


@pytest.fixture
def measure(server: Postgres, tmp_path: Path) -> Iterator[Measure]:
    """Measures two workers of a system."""

    def of(peer: Peer, command: list[str]) -> dict[str, float]:
        server.create_database(TEMPLATE)
        prepare(command, url_of(server, TEMPLATE), peer.idle[0], 0)
        return latency.measure(server, TEMPLATE, cell_of(peer), command, PACE, tmp_path)

    yield of
    server.drop_database(TEMPLATE)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["made-up", OURS])
def test_an_idle_fleet_has_latencies(measure: Measure, system: str) -> None:
    made, ours = made_up(), KNOWN[0]
    found = measure(made, COMMAND) if system != OURS else measure(ours, installed.command(ours))
    assert found["tasks"] == PACE.tasks
    assert 0 < found["start_p50"] <= found["start_p99"]
    assert found["enqueued_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "error", "said"),
    [
        ("has no start", WrongDrainError, "12 of 13 tasks of made-up say when they started"),
        ("runs twice", WrongDrainError, "handlers ran 14 times for 13 jobs"),
        ("loses an enqueue", WrongDrainError, "made-up default .* is wrong.*1 jobs are not done"),
        ("cannot begin", BenchError, "no such database"),
    ],
)
def test_a_fleet_that_is_wrong_has_no_latency(
    measure: Measure, bug: str, error: type[BenchError], said: str
) -> None:
    with pytest.raises(error, match=said):
        measure(made_up(bug), COMMAND)


def test_the_first_tasks_do_not_count_whichever_worker_had_them(tmp_path: Path) -> None:
    rhythm, ms = Rhythm(warm=2, tasks=3, rate=50.0), 1_000_000
    starts = {"a": [(1, 1 + 900 * ms), (4, 4 + 5 * ms)], "b": [(5, 5), (2, 2 + 800 * ms)]}
    starts["b"].append((3, 3 + 4 * ms))
    for name, pairs in starts.items():
        content = b"".join(struct.pack("<qq", *pair) for pair in pairs)
        (tmp_path / f"{name}.starts").write_bytes(content)
    cell = cell_of(made_up())._replace(tasks=5)
    assert latency.latencies(tmp_path, cell, rhythm) == [4.0, 5.0, 0.0]


def test_the_first_seconds_of_a_measurement_are_on_top() -> None:
    plan = latency.Plan(KNOWN, (1,), rate=50.0, seconds=10.0, repeats=1, named=False)
    assert plan.rhythm == Rhythm(warm=100, tasks=500, rate=50.0)
    few = latency.Plan(KNOWN, (1,), rate=0.1, seconds=0.1, repeats=1, named=False)
    assert few.rhythm == Rhythm(warm=1, tasks=1, rate=0.1)


@pytest.mark.slow
def test_the_command_measures_the_system_that_is_asked_for(tmp_path: Path) -> None:
    options = ["--only", OURS, "--workers", "2", "--seconds", "0.2", "--repeats", "2"]
    ran = CliRunner().invoke(app, ["bench", "latency", *options, "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "start p50 at 2 workers, ms: leaseproof (default)" in ran.output
    (path,) = tmp_path.glob("*/result.json")
    result = load(path)
    assert [one.repeat for one in result.measurements] == [1, 2]
    assert {one.key[:2] for one in result.measurements} == {(OURS, "default")}
    assert "leaseproof default: as it comes" in result.notes
