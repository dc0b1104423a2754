"""Transactional drains: small ones by real workers and by pgbench, and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from chaos.bench import WrongDrainError, effect
from chaos.bench.crew import Workers
from chaos.bench.drain import Crew, Place, drain
from chaos.bench.limit import Pgbench, find_pgbench
from chaos.bench.result import LIMIT, OURS, Key
from chaos.bench.setting import parse_setting
from chaos.bench.transactional import Plan, cycle, prepared
from chaos.cluster.postgres import Postgres

TASKS = 60
COPY = "transactional"


@pytest.fixture(scope="module")
def place(migrated: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A template with a few tasks and no effect yet."""
    found = prepared(migrated, TASKS, tmp_path_factory.mktemp("bench"))
    yield found
    migrated.drop_database(found.template)


@pytest.fixture
def dsn(place: Place) -> Iterator[str]:
    """A fresh copy of it."""
    place.server.create_database(COPY, template=place.template)
    yield place.server.dsn(COPY)
    place.server.drop_database(COPY)


@pytest.mark.parametrize("system", [OURS, LIMIT])
def test_each_effect_is_there_once(place: Place, dsn: str, tmp_path: Path, system: str) -> None:
    crew: Crew
    if system == OURS:
        crew = Workers(dsn, parse_setting("2+5"), 2, tmp_path, transactional=True)
    else:
        program = find_pgbench(place.server)
        assert program is not None
        crew = Pgbench(program, dsn, cycle(7), 4, tmp_path)
    found = drain(place, COPY, crew, Key(system, "2+5", 7, 4), 1)
    assert found.figures["tasks"] == TASKS
    with psycopg.connect(dsn) as connection:
        commits = connection.execute("select count(distinct xmin::text) from public.effects")
        assert commits.fetchone() == (TASKS,)  # each is a transaction of its own


def test_pgbench_commits_an_effect_and_its_completion_together(
    place: Place, dsn: str, tmp_path: Path
) -> None:
    program = find_pgbench(place.server)
    assert program is not None
    drain(place, COPY, Pgbench(program, dsn, cycle(3), 2, tmp_path), Key(LIMIT, "3", 3, 2), 1)
    with psycopg.connect(dsn) as connection:
        together = connection.execute(
            "select count(*) from public.effects as effect"
            " join scheduler.tasks as task on task.id = effect.task and task.xmin = effect.xmin"
            " join scheduler.run_log as log on log.task_id = task.id and log.xmin = effect.xmin"
        )
        assert together.fetchone() == (TASKS,)


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ("delete from public.effects where task = 7", "1 tasks have no effect"),
        ("insert into public.effects values (7)", "more than one effect"),
        ("insert into public.effects values (9999)", "effects are of no task"),
    ],
)
def test_a_wrong_number_of_effects_is_said(dsn: str, bug: str, said: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into public.effects select id from scheduler.tasks")
        sentences = set(effect.violations(connection, TASKS))
        connection.execute(bug.encode())
        [new] = set(effect.violations(connection, TASKS)) - sentences
        assert said in new


def test_a_drain_without_its_effects_is_wrong(place: Place, dsn: str, tmp_path: Path) -> None:
    crew = Workers(dsn, parse_setting("1+9"), 1, tmp_path)  # whose handlers write nothing
    with pytest.raises(WrongDrainError, match=f"{TASKS} tasks have no effect"):
        drain(place, COPY, crew, Key(OURS, "1+9", 10, 1), 1)


def test_pgbench_has_as_many_clients_as_there_are_slots() -> None:
    settings = tuple(map(parse_setting, ("default", "1+9", "1")))
    cells = Plan(settings, (1, 10), tasks=1, repeats=1).cells(with_limit=True)
    assert [(key.setting, key.at) for key in cells if key.system == OURS] == [
        *(("default", 10), ("1+9", 1), ("1", 1)),
        *(("default", 100), ("1+9", 10), ("1", 10)),
    ]
    limits = [(key.batch, key.at) for key in cells if key.system == LIMIT]
    assert limits == [(10, 10), (10, 1), (1, 1), (10, 100), (1, 10)]  # each once
