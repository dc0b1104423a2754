"""Ours beside other queues: the yardstick on a made-up one, what is missing, what is said."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from rich.console import Console
from typer.testing import CliRunner

from chaos.bench import BenchError, WrongDrainError, latency
from chaos.bench.page import page
from chaos.bench.peers import installed
from chaos.bench.peers.crew import prepare
from chaos.bench.peers.drain import Cell, began, drain, url_of, verify
from chaos.bench.peers.installed import MissingError
from chaos.bench.peers.known import KNOWN
from chaos.bench.peers.peer import BEST, DEFAULT, Peer
from chaos.bench.peers.program import Rhythm, in_rhythm
from chaos.bench.peers.run import Plan, commands_of, one_by_one, template
from chaos.bench.peers.said import sentences
from chaos.bench.peers.tally import Tally, read_starts, read_tallies
from chaos.bench.result import OURS, Key, Measurement, Result
from chaos.bench.table import ordered, table
from chaos.bench.table import sentences as said_of
from chaos.cli import app
from chaos.cluster.postgres import Postgres
from tests.chaos.bench.made_up import MACHINE
from tests.chaos.bench.made_up_peer import COMMAND, made_up
from tests.parts import part

ROOT = Path(__file__).parents[3]
JOBS = 50
LONGEST = 20.0


class Place:
    """Databases of one test, dropped at its end."""

    def __init__(self, server: Postgres, scratch: Path) -> None:
        self.server = server
        self._scratch = scratch
        self.names: list[str] = []

    def name(self) -> str:
        """A new one, to be made."""
        self.names.append(f"peers_{uuid4().hex}")
        return self.names[-1]

    def drained(
        self, cell: Cell, command: list[str], longest: float = LONGEST
    ) -> tuple[Measurement, str]:
        """A drain of it, and the database that is left."""
        prepared = self.name()
        assert template(self.server, prepared, cell, command) > 0
        copy = self.name()
        self.server.create_database(copy, template=prepared)
        directory = self._scratch / copy
        directory.mkdir()
        return drain(self.server, copy, cell, command, directory, 1, longest), copy


@pytest.fixture
def place(server: Postgres, tmp_path: Path) -> Iterator[Place]:
    made = Place(server, tmp_path)
    yield made
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for name in made.names:
            connection.execute(f'drop database if exists "{name}" with (force)'.encode())


def cell_of(peer: Peer, workers: int = 2, setting: str = DEFAULT) -> Cell:
    return Cell(peer, peer.setting(setting), workers, JOBS)


@pytest.mark.slow
def test_two_workers_drain_and_are_timed_from_the_first_handler_on(place: Place) -> None:
    found, copy = place.drained(cell_of(made_up()), COMMAND)
    assert found.key == Key("made-up", "default", 0, 2)
    assert found.figures["tasks"] == JOBS
    assert found.figures["tasks_per_s"] * found.figures["seconds"] == pytest.approx(JOBS)
    assert found.figures["wal_per_task"] > 0
    with psycopg.connect(place.server.dsn(copy), autocommit=True) as connection:
        verify(connection, cell_of(made_up()), [Tally(2.0, 20), Tally(1.0, 30)])
        with pytest.raises(WrongDrainError, match="handlers ran 49 times for 50 jobs"):
            verify(connection, cell_of(made_up()), [Tally(1.0, 49)])
        connection.execute("update jobs set state = 'open' where id = 7")
        with pytest.raises(WrongDrainError, match=r"open again.*1 jobs are not done"):
            verify(connection, cell_of(made_up()), [Tally(1.0, 50)])


def test_the_drain_begins_with_the_first_handler_of_any_process() -> None:
    assert began([Tally(7.5, 1), Tally(7.25, 9), Tally(8.0, 3)]) == 7.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "error", "said"),
    [
        ("runs twice", WrongDrainError, "handlers ran 51 times for 50 jobs"),
        ("fails", WrongDrainError, "50 jobs are not done"),
        ("dies", BenchError, "the seventh was too much"),
        ("cannot be installed", BenchError, "no such luck"),
        ("has no clock", BenchError, "did not say how long it took to enqueue"),
    ],
)
def test_a_drain_that_is_wrong_has_no_figure(
    place: Place, bug: str, error: type[BenchError], said: str
) -> None:
    with pytest.raises(error, match=said):
        place.drained(cell_of(made_up(bug), workers=1), COMMAND)


@pytest.mark.slow
def test_a_job_that_stays_open_ends_the_drain_in_the_end(place: Place) -> None:
    with pytest.raises(BenchError, match="made-up did not end within 1 s"):
        place.drained(cell_of(made_up("loses"), workers=1), COMMAND, longest=1.0)


def test_runs_are_counted_in_any_thread_and_outlive_the_process(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from chaos.bench.peers.tally import ran\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    for _ in range(1000): pool.submit(ran)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {"LEASEPROOF_BENCH_DIRECTORY": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    (tally,) = read_tallies(tmp_path)
    assert tally.ran == 1000
    assert tally.began > 1e9


def test_a_job_that_says_when_it_was_enqueued_has_its_start_noted(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from chaos.bench.peers.tally import ran\n"
        "for sent in (9, None, 7): ran(sent)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {"LEASEPROOF_BENCH_DIRECTORY": str(tmp_path), "PYTHONPATH": str(ROOT)}
    before = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    seven, nine = read_starts(tmp_path)
    assert (seven.sent, nine.sent) == (7, 9)
    assert before < nine.began <= seven.began < time.monotonic_ns()
    assert read_tallies(tmp_path)[0].ran == 3


def test_a_client_makes_no_call_before_it_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic_ns()
    sent = list(in_rhythm(Rhythm(warm=2, tasks=4, rate=100.0)))
    assert len(sent) == 6
    assert all(at - began >= number * 10_000_000 for number, at in enumerate(sent))
    ended = (time.monotonic_ns() - began) / 1e9
    seconds = float(capsys.readouterr().out.removeprefix("enqueued in "))
    assert 0 < seconds < ended - 0.01  # the first two calls are not counted
    assert len(list(in_rhythm(Rhythm(warm=0, tasks=3, rate=0)))) == 3


@pytest.mark.slow
def test_each_enqueue_of_one_job_must_be_a_commit_of_its_own(place: Place) -> None:
    def seconds(bug: str) -> float:
        return one_by_one(place.server, place.name(), cell_of(made_up(bug)), COMMAND, rhythm)

    rhythm = Rhythm(warm=3, tasks=17, rate=0)
    assert seconds("") > 0
    with pytest.raises(WrongDrainError, match=r"20 calls of made-up left .* \(20, 1\)"):
        seconds("one commit for all")
    with pytest.raises(WrongDrainError, match=r"20 calls of made-up left .* \(19, 19\)"):
        seconds("loses an enqueue")


MISSING = made_up()._replace(name="nobody", packages=("leaseproof-is-not-this",))


def test_a_system_that_is_not_installed_is_a_note() -> None:
    commands, notes = commands_of((KNOWN[0], MISSING), named=False)
    assert list(commands) == [OURS]
    assert notes == [
        "not measured: nobody is not installed; pip install 'leaseproof[peers]'",
        "leaseproof default: as it comes",
        "leaseproof best: slots=1, prefetch=499 (docs/performance.md)",
    ]


def test_a_system_that_was_asked_for_and_is_not_installed_is_an_error() -> None:
    with pytest.raises(MissingError, match=r"nobody is not installed; pip install"):
        commands_of((MISSING,), named=True)


def test_a_node_that_is_too_old_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "node"
    old.write_text("#!/bin/sh\necho v20.1.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"needs Node.js 22.18 or later, and .* is 20.1.0; pip"):
        installed.node.__wrapped__()
    installed.version_of.cache_clear()
    old.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(MissingError, match=r"node --version` does not say which version"):
        installed.node.__wrapped__()
    old.unlink()
    with pytest.raises(MissingError, match=r"needs Node.js 22.18 or later; pip"):
        installed.node.__wrapped__()


def test_every_version_is_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["peers"]
    pinned = {requirement.partition("==")[0] for requirement in extra if "==" in requirement}
    assert len(pinned) == len(extra)
    source = ROOT / "chaos/bench/peers/npm"
    wanted = json.loads((source / "package.json").read_text())["dependencies"]
    locked = json.loads((source / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert "resolved" not in (source / "package-lock.json").read_text()
    for peer in KNOWN[1:]:
        assert set(peer.packages) <= (pinned if peer.runtime == "python" else set(wanted))


def test_repeats_have_every_system_at_each_number_of_workers() -> None:
    plan = Plan((KNOWN[0], made_up(most=7)), (1, 4), 20, 3, named=False)
    assert [(cell.key[0], cell.key[1], cell.workers, cell.tasks) for cell in plan.cells()] == [
        each
        for workers in (1, 4)
        for each in (
            (OURS, DEFAULT, workers, 20),
            (OURS, BEST, workers, 20),
            ("made-up", DEFAULT, workers, 7),
        )
    ]


MEDIANS = {
    Key(OURS, DEFAULT, 0, 1): 900.0,
    Key(OURS, DEFAULT, 0, 2): 1_000.0,
    Key(OURS, BEST, 0, 2): 5_000.0,
    Key("pgqueuer", BEST, 0, 4): 2_000.0,
    Key("procrastinate", DEFAULT, 0, 4): 100.0,
    Key("pg-boss", BEST, 0, 1): 4_000.0,
    Key("graphile-worker", DEFAULT, 0, 1): 500.0,
}


def test_ours_is_said_beside_the_best_of_the_others_also_where_it_loses() -> None:
    said = list(sentences(MEDIANS, "tasks/s"))
    assert said == [
        f"ours with {mine} at 2 workers, {times} times the best of {theirs}"
        for mine, all_times in (
            ("default settings: 1,000 tasks/s", ("0.50", "2.00", "0.25")),
            ("its best settings: 5,000 tasks/s", ("2.50", "10.00", "1.25")),
        )
        for times, theirs in zip(
            all_times,
            (
                "Python's others, pgqueuer (best): 2,000 at 4",
                "graphile-worker (default): 500 at 1",
                "pg-boss (best): 4,000 at 1",
            ),
            strict=True,
        )
    ]


def test_nothing_is_said_of_systems_that_were_not_measured() -> None:
    mine = {key: speed for key, speed in MEDIANS.items() if key.system == OURS}
    assert list(sentences(mine, "tasks/s")) == []
    assert list(sentences({Key("pg-boss", BEST, 0, 1): 1.0}, "tasks/s")) == []


def made_up_result() -> Result:
    """Every system, with its two settings, at two numbers of workers."""
    speeds = {
        Key(peer.name, setting.name, 0, at): 100.0 * number * at
        for number, peer in enumerate(KNOWN, 1)
        for setting in peer.settings
        for at in (1, 2)
    }
    measurements = [
        Measurement(key, 1, {"tasks_per_s": speed, "seconds": 1.0, "tasks": 12.0}, {})
        for key, speed in speeds.items()
    ]
    return Result(
        "peers", "workers", "chaos bench peers", "", 1.0, MACHINE, ("a note",), tuple(measurements)
    )


def test_the_table_has_all_by_their_speed_and_says_how_many_jobs() -> None:
    result = made_up_result()
    keys = ordered(result)
    assert len(keys) == 4 * len(KNOWN)
    assert (keys[0].at, keys[0].system) == (1, KNOWN[-1].name)
    assert keys[-1].at == 2
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table(result))
    heading = shown.get().partition("leaseproof")[0]
    assert "of pgbench" not in heading
    assert " tasks " in heading


def test_the_page_shows_each_system_in_a_colour_of_its_own() -> None:
    html = page(made_up_result())
    assert "one yardstick" in html
    assert "Dashed" not in html
    assert "of pgbench" not in html
    pictures = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        assert len(set(re.findall(r"stroke: (var\(--line-\d\))", picture))) == len(KNOWN)


def made_up_latencies() -> Result:
    """Every system, with its settings, at two numbers of workers."""
    cells = [
        (Key(peer.name, setting.name, 0, at), float(at * number))
        for number, peer in enumerate(KNOWN, 1)
        for setting in peer.idle
        for at in (1, 4)
    ]
    measurements = tuple(
        Measurement(key, 1, {"start_p50": p50, "start_p99": 10 * p50, "enqueued_per_s": 50.0}, {})
        for key, p50 in cells
    )
    command = "chaos bench latency"
    return Result("latency", "workers", command, "", 1.0, MACHINE, ("a note",), measurements)


def test_latencies_are_said_and_shown_the_soonest_first() -> None:
    result = made_up_latencies()
    assert [key.system for key in ordered(result)][:2] == [OURS, "pgqueuer"]
    said = list(said_of(result))
    assert said[0].startswith(
        "start p50 at 1 workers, ms: leaseproof (default) 1.00, pgqueuer (default) 2.00,"
    )
    assert said[3].startswith("start p99 at 4 workers, ms: leaseproof (default) 40.00, pgqueuer")
    html = page(result)
    assert "on a fleet with little to do" in html
    assert "How a drain is measured" not in html
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    assert titles[:4] == [f"start {p}, {s}" for s in (DEFAULT, BEST) for p in ("p50", "p99")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "celery"], "'celery' is no system that is measured; there are leaseproof,"),
        (["--workers", "0"], "--workers must be numbers"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["bench", "peers", *arguments])
    assert ran.exit_code == 2
    assert said in ran.output.replace("\n", " ")


@pytest.mark.parametrize("bench", ["peers", "latency"])
def test_each_bench_beside_others_has_a_choice_of_systems(bench: str) -> None:
    ran = CliRunner().invoke(app, ["bench", bench, "--only", "celery"])
    assert ran.exit_code == 2
    assert "'celery' is no system that is measured" in ran.output.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("setting", [DEFAULT, BEST])
def test_ours_is_drained_by_the_same_yardstick(place: Place, setting: str) -> None:
    ours = KNOWN[0]
    found, _ = place.drained(cell_of(ours, setting=setting), installed.command(ours))
    assert found.figures["tasks"] == JOBS


AGAIN = "insert into pgqueuer_log (job_id, status, priority, entrypoint) select job_id, {}, 0, ''"
AGAIN += " from pgqueuer_log limit 1"
# What is done to the tables after a drain of each, and what must be said of it.
BUGS = {
    "pgqueuer": [
        ("insert into pgqueuer (priority, status, entrypoint) values (0, 'queued', '')", "open"),
        ("insert into pgqueuer (priority, status, entrypoint) values (0, 'failed', '')", "still"),
        (AGAIN.format("'successful'"), "1 jobs are logged as successful more than once"),
        (AGAIN.format("'exception'"), "1 rows of the log say that a job failed"),
        ("delete from pgqueuer_log", "50 jobs too few or too many are logged"),
    ],
    "procrastinate": [
        ("update procrastinate_jobs set status = 'todo' where id = 7", "open again"),
        ("update procrastinate_jobs set status = 'failed' where id = 7", "1 jobs too few"),
        ("update procrastinate_jobs set attempts = 2 where id = 7", "1 jobs were not done"),
        ("insert into procrastinate_events (job_id, type) values (7, 'started')", "more than once"),
    ],
    "absurd": [
        ("update absurd.r_default set state = 'pending'", "open again"),
        ("update absurd.t_default set state = 'failed'", "50 tasks too few"),
        ("delete from absurd.r_default", "50 runs too few"),
        ("update absurd.t_default set attempts = 2", "50 tasks were not done"),
    ],
    "chancy": [
        ("update chancy_jobs set state = 'retrying'", "open again"),
        ("update chancy_jobs set state = 'failed'", "50 jobs too few"),
        ("update chancy_jobs set attempts = 2", "50 jobs were not done"),
    ],
    "graphile-worker": [
        ("select graphile_worker.add_job('noop')", "1 jobs are not done"),
    ],
    "pg-boss": [
        ("update pgboss.job set state = 'active'", "open again"),
        ("update pgboss.job set state = 'failed'", "50 jobs too few"),
        ("update pgboss.job set retry_count = 1", "50 jobs were tried again"),
    ],
}


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize("peer", KNOWN[1:], ids=lambda peer: peer.name)
def test_every_other_drains_where_it_is_installed(place: Place, peer: Peer) -> None:
    command = part("peers", partial(installed.command, peer), MissingError)
    cell = cell_of(peer, setting=BEST)
    found, copy = place.drained(cell, command, longest=60.0)
    assert found.figures["tasks"] == JOBS
    with psycopg.connect(place.server.dsn(copy)) as connection:
        for bug, said in BUGS[peer.name]:
            connection.execute(bug.encode())
            with pytest.raises(WrongDrainError, match=said):
                verify(connection, cell, [Tally(1.0, JOBS)])
            connection.rollback()


@pytest.mark.slow
@pytest.mark.chaos_long
@pytest.mark.parametrize("peer", KNOWN[1:], ids=lambda peer: peer.name)
def test_every_other_enqueues_one_by_one_and_has_latencies_where_it_is_installed(
    place: Place, peer: Peer, tmp_path: Path
) -> None:
    command = part("peers", partial(installed.command, peer), MissingError)
    single = Cell(peer, peer.settings[0], 1, 0)
    assert one_by_one(place.server, place.name(), single, command, Rhythm(5, 20, rate=0)) > 0
    rhythm = Rhythm(warm=5, tasks=20, rate=50.0)
    for setting in peer.idle:
        template_ = place.name()
        place.server.create_database(template_)
        prepare(command, url_of(place.server, template_), setting, 0)
        directory = tmp_path / setting.name
        directory.mkdir()
        cell = Cell(peer, setting, 2, rhythm.warm + rhythm.tasks)
        before = time.monotonic_ns()
        found = latency.measure(place.server, template_, cell, command, rhythm, directory)
        assert found["tasks"] == 20
        assert 0 < found["start_p50"] <= found["start_p99"]
        sent = [one.sent for one in read_starts(directory)]
        assert before < sent[0] < sent[-1] < time.monotonic_ns()  # one clock, whoever reads it
        assert sent[-1] - sent[0] > 0.2e9  # it takes 0.48 s at this rate, and no time without
