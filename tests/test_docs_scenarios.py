"""docs/scenarios.md names all that a scenario file may say, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from chaos.faults import AnyFault, Fault
from chaos.faults.fault import Aim
from chaos.faults.tasks import faults_of
from chaos.invariants.judge import INVARIANTS
from chaos.scenario import (
    Bounds,
    Old,
    Scenario,
    ScenarioError,
    Schedule,
    Tasks,
    Workers,
    load_scenario,
    parse_scenario,
)
from chaos.systems import FEATURES, Missed, Until
from chaos.workload import Behaviour, Job

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "scenarios.md").read_text()
FAULTS: tuple[type[Fault], ...] = get_args(get_args(AnyFault)[0])
KINDS = {get_args(fault.model_fields["kind"].annotation)[0]: fault for fault in FAULTS}
STANDBY = get_args(get_args(Scenario.model_fields["standby"].annotation)[0])
MODELS: dict[str, type[BaseModel]] = {
    "## The scenario": Scenario,
    "### `workers`": Workers,
    "### `workers.old`": Old,
    "### `tasks`": Tasks,
    "### `schedules`": Schedule,
    "### `bounds`": Bounds,
}


def tables(heading: str) -> Iterator[list[str]]:
    """The cells of each row of the tables below a heading, up to the next."""
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    for line in re.split(r"^#", rest, maxsplit=1, flags=re.M)[0].splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(heading: str) -> list[str]:
    """What the first column of a heading's tables has."""
    return [row[0].strip("`") for row in tables(heading)]


def number(value: Any) -> str:
    """A number as the page writes it."""
    return f"{value:,}".removesuffix(".0")


def may_be(metadata: list[Any]) -> str:
    """The numbers that a field takes, in the words of the page; empty if they are not bounded."""
    least = [f"{number(one.ge)}" for one in metadata if isinstance(one, Ge)]
    least += [f"above {number(one.gt)}," for one in metadata if isinstance(one, Gt)]
    most = [number(one.le) for one in metadata if isinstance(one, Le)]
    if not most:
        return f"from {least[0]}" if least else ""
    return f"{least[0]} to {most[0]}"


def default(field: FieldInfo) -> str:
    """A field's default in the words of the page."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return number(value) if isinstance(value, int | float) else str(value)


@pytest.mark.parametrize(("heading", "model"), MODELS.items())
def test_every_field_is_there_with_its_default_and_its_bounds(
    heading: str, model: type[BaseModel]
) -> None:
    rows = {row[0].strip("`"): row[1:3] for row in tables(heading)}
    assert list(rows) == list(model.model_fields)
    for name, field in model.model_fields.items():
        said, standing = rows[name]
        assert standing == default(field), name
        if bounds := may_be(field.metadata):
            assert said == bounds, name


@pytest.mark.parametrize(
    ("heading", "name", "words"),
    [
        ("## The scenario", "standby", STANDBY),
        ("### `tasks`", "until", get_args(get_args(Until)[0])),
        ("### `schedules`", "missed", get_args(Missed)),
    ],
)
def test_the_words_that_a_field_takes_are_there(
    heading: str, name: str, words: tuple[str, ...]
) -> None:
    [said] = [row[1] for row in tables(heading) if row[0] == f"`{name}`"]
    assert re.findall(r"[a-z]+", said.partition(" or ")[0]) == list(words)


@pytest.mark.parametrize("name", ["limits", "caps"])
def test_the_bounds_of_each_limit_are_there(name: str) -> None:
    (of_each,) = get_args(get_args(Scenario.model_fields[name].annotation)[1])[1:]
    [text] = [row[3] for row in tables("## The scenario") if row[0] == f"`{name}`"]
    assert may_be(of_each.metadata) in text


OWN = ("kind", "count")  # told once, for all
AMONG = ("### Of workers", "### Of a worker's network", "### Of the database", "### By operators")


def fields(fault: type[Fault]) -> dict[str, FieldInfo]:
    """What a file may say of a fault besides its kind and count, unless there is but one answer."""
    found = fault.model_fields.items()
    return {
        name: field
        for name, field in found
        if name not in OWN and get_args(field.annotation) != (0,)
    }


def test_every_fault_is_there_with_its_fields_and_their_defaults() -> None:
    said = {row[0].strip("`"): row[1] for heading in AMONG for row in tables(heading)}
    assert said.keys() == KINDS.keys()
    for kind, fault in KINDS.items():
        written = []
        for name, field in fields(fault).items():
            standing = default(field)
            written.append(name if standing == "needed" else f"{name}: {standing}")
        assert sorted(re.findall(r"`([^`]+)`", said[kind])) == sorted(written), kind


def test_the_bounds_of_every_field_of_a_fault_are_there() -> None:
    there = {kind: fields(fault) for kind, fault in KINDS.items()}
    said: dict[tuple[str, str], str] = {}
    for cell, of, bounds, _ in tables("### Their fields"):
        name = cell.strip("`")
        having = [kind for kind, own in there.items() if name in own]
        for kind in having if of == "all that have it" else re.findall(r"`([^`]+)`", of):
            said[kind, name] = bounds
    assert said.keys() == {(kind, name) for kind, own in there.items() for name in own}
    for (kind, name), standing in said.items():
        if bounds := may_be(there[kind][name].metadata):
            assert standing == bounds, (kind, name)


def test_every_aim_is_there() -> None:
    assert names("### Aims") == list(get_args(Aim))


def test_every_behaviour_is_there_with_the_fault_that_it_is() -> None:
    rows = {row[0].strip("`"): row for row in tables("## Behaviours")}
    assert list(rows) == list(get_args(Behaviour))
    for behaviour in get_args(Behaviour):
        found = [fault.name for fault in faults_of(Job(0, behaviour, 0, 1), 1)]
        assert re.findall(r"`([^`]+)`", rows[behaviour][2]) == found
        assert bool(rows[behaviour][3]) == bool(found)


def test_every_feature_is_there() -> None:
    assert set(names("## What the queue must offer")) == FEATURES


def test_invariants_that_need_something_exist() -> None:
    assert set(names("## Invariants")) <= INVARIANTS.keys()


def test_the_example_is_a_scenario_of_this_repository() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    example = parse_scenario(text, "docs/scenarios.md")
    assert example == load_scenario(ROOT / "scenarios" / f"{example.name}.yaml")


def test_a_mistake_is_told_as_the_page_says() -> None:
    text = (ROOT / "scenarios" / "kill-mid-run.yaml").read_text()
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.replace("count: 36", "count: zero"), "scenarios/mine.yaml")
    assert f"\n    {caught.value}\n" in PAGE
