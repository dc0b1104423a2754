"""Scenario files: good ones load, bad ones say where they are wrong, plans follow the seed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from chaos.faults import AnyFault
from chaos.scenario import ScenarioError, load_scenario, parse_scenario
from chaos.systems import Timetable
from chaos.workload import HOSTILE
from tests.chaos.documented import failure_modes

SCENARIOS = Path(__file__).parents[2] / "scenarios"

GOOD = """\
name: example
about: One worker, one task, one kill.
load_seconds: 4
workers:
  count: 1
  lease: 1
tasks:
  - {behaviour: quick, count: 10}
faults:
  - {kind: kill, count: 3}
invariants: [no-lost-task]
bounds: {reclaim: 1, progress: 5}
"""


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_is_valid_and_named_like_its_file(path: Path) -> None:
    assert load_scenario(path).name == path.stem


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_short_form_of_every_scenario_loads_for_eight_seconds_at_most(path: Path) -> None:
    assert load_scenario(path).in_short().load_seconds <= 8


def test_scenarios_and_the_documented_failure_modes_name_each_other() -> None:
    loaded = [load_scenario(path) for path in sorted(SCENARIOS.glob("*.yaml"))]
    documented = {
        (row, name)
        for row, cells in failure_modes().items()
        for name in re.findall(r"`([^`]+)`", cells[3])
    }
    assert {(row, one.name) for one in loaded for row in one.failure_modes} == documented
    assert [one.name for one in loaded if not one.failure_modes] == []


@pytest.mark.parametrize(
    ("change", "line", "field"),
    [
        (("count: 10}", "count: ten}"), 8, "tasks.1.count"),
        (("workers:", "failure_modes: [3, 0]\nworkers:"), 4, "failure_modes.2"),
        (("behaviour: quick", "behaviour: quikc"), 8, "tasks.1.behaviour"),
        (("  lease: 1", "  lease: -1"), 6, "workers.lease"),
        (("  lease: 1", "  leese: 1"), 6, "workers.leese"),
        (("kind: kill", "kind: kilt"), 10, "faults.1"),
        (("count: 3}", "count: 0}"), 10, "faults.1.count"),
        (("no-lost-task", "no-lost-tusk"), 11, "invariants"),
        (("progress: 5", "progress: 0"), 12, "bounds.progress"),
        (("load_seconds: 4\n", ""), 1, "load_seconds"),
        (("kind: kill, count: 3", "kind: pause, count: 3, lasts: 0.5"), 1, "scenario"),
        (("kind: kill, count: 3", "kind: terminate, count: 3, aim: in-reclaim"), 10, "faults.1"),
        (("count: 10}", "count: 10, keys: 0}"), 8, "tasks.1.keys"),
        (("count: 10}", "count: 10, keys: 2, until: never}"), 8, "tasks.1.until"),
        (("count: 10}", "count: 10, keys: 2, until: 0.5}"), 8, "tasks.1.until"),
        (("count: 10}", "count: 10, until: started}"), 8, "tasks.1"),
        (("count: 10}", "count: 10, source: 'Shop;'}"), 8, "tasks.1.source"),
        (("count: 10}", "count: 10, source: shop}"), 1, "scenario"),
        (("tasks:", "caps: {shop: 9}\ntasks:"), 1, "scenario"),
        (("tasks:", "caps: {shop: 2}\ntasks:"), 7, "caps.shop"),
        (("tasks:", "limits: {slow: 9}\ntasks:"), 1, "scenario"),
        (("tasks:", "schedules: {t: {behaviour: quick, every: 0, missed: all}}\ntasks:"), 7, "sch"),
        (("tasks:", "schedules: {t: {behaviour: quick, every: 1, missed: no}}\ntasks:"), 7, "sch"),
        (("tasks:", "limits: {quick: 0}\ntasks:"), 7, "limits.quick"),
        (("count: 10}", "count: 10, priority: 4}"), 8, "tasks.1.priority"),
        (("  lease: 1", "  old: {count: 1, lacks: [quick]}"), 4, "workers"),
        (("  lease: 1", "  old: {count: 1, lacks: []}"), 6, "workers.old.lacks"),
    ],
)
def test_a_bad_field_is_named_with_file_line_and_field(
    change: tuple[str, str], line: int, field: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace(*change), "bad.yaml")
    assert str(caught.value).startswith(f"bad.yaml, line {line}: {field}")


def test_what_must_bite_is_every_fault_and_every_task_that_is_one() -> None:
    scenario = parse_scenario(
        GOOD.replace("count: 10}", "count: 10}\n  - {behaviour: poison, count: 1}").replace(
            "count: 10}", "count: 10, seconds: 1.5}"
        ),
        "good.yaml",
    )
    assert scenario.must_bite == ["kill", "outlast-lease", "poison"]


def test_every_fault_stands_in_some_scenario() -> None:
    loaded = [load_scenario(path) for path in SCENARIOS.glob("*.yaml")]
    (union,) = (argument for argument in get_args(AnyFault) if get_args(argument))
    kinds = {get_args(fault.model_fields["kind"].annotation)[0] for fault in get_args(union)}
    kinds |= {"flaky", "failing", "poison", "hog", "hostile", "outlast-lease"}
    assert {name for scenario in loaded for name in scenario.must_bite} == kinds


def test_orders_under_keys_come_in_rows_that_want_the_same_one() -> None:
    scenario = parse_scenario(
        GOOD.replace("count: 10}", "count: 100, keys: 3, until: 2}"), "keys.yaml"
    )
    orders = scenario.orders(1)
    keys = [order.key for order in orders]
    assert set(keys) == {"quick-0", "quick-1", "quick-2"}
    assert keys[:8] == ["quick-0"] * 4 + ["quick-1"] * 4
    assert {order.until for order in orders} == {2}
    assert sum(order.rolls_back for order in orders) == 10
    assert not any(order.key or order.rolls_back for order in parse_scenario(GOOD, "x").orders(1))


def test_workers_are_told_the_limits_of_their_kinds() -> None:
    scenario = parse_scenario(GOOD.replace("tasks:", "limits: {quick: 2}\ntasks:"), "limits.yaml")
    assert scenario.settings().limits == {"quick": 2}
    assert parse_scenario(GOOD, "x").settings().limits == {}


def test_orders_have_the_priority_of_their_group() -> None:
    scenario = parse_scenario(GOOD.replace("count: 10}", "count: 10, priority: 3}"), "x.yaml")
    assert {order.priority for order in scenario.orders(1)} == {3}
    assert {order.priority for order in parse_scenario(GOOD, "x").orders(1)} == {1}


def test_workers_are_told_what_recurs() -> None:
    recurring = "schedules: {tick: {behaviour: slow, seconds: 0.5, every: 2, missed: all}}\ntasks:"
    scenario = parse_scenario(GOOD.replace("tasks:", recurring), "recurring.yaml")
    assert scenario.settings().schedules == {"tick": Timetable("slow", 0.5, 2, "all")}


def test_hostile_tasks_carry_hostile_text() -> None:
    scenario = parse_scenario(GOOD.replace("behaviour: quick", "behaviour: hostile"), "x.yaml")
    assert all(HOSTILE in order.job.text for order in scenario.orders(1))


def test_text_that_is_not_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(ScenarioError, match=r"bad.yaml, line 2: not YAML"):
        parse_scenario("name: x\nabout: 'open", "bad.yaml")


@pytest.mark.parametrize(
    "text",
    ["name: \x07", "name: 2001-99-99", f"name: {'9' * 5000}", "name: " + "[" * 3000],
    ids=["control character", "impossible date", "endless number", "bottomless list"],
)
def test_text_that_yaml_stumbles_over_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^bad.yaml"):
        parse_scenario(text, "bad.yaml")


@pytest.mark.parametrize("text", ["", "- a list", "just words"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"a scenario is a mapping"):
        parse_scenario(text, "bad.yaml")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"cannot read no-such\.yaml"):
        load_scenario(Path("no-such.yaml"))


def test_the_same_seed_gives_the_same_tasks_and_plan_and_another_seed_others() -> None:
    scenario = load_scenario(SCENARIOS / "kill-mid-run.yaml")
    assert scenario.orders(7) == scenario.orders(7)
    assert scenario.plan(7) == scenario.plan(7)
    assert scenario.orders(7) != scenario.orders(8)
    assert scenario.plan(7) != scenario.plan(8)


def test_the_plan_injects_each_fault_as_often_as_stated_and_within_the_load() -> None:
    scenario = load_scenario(SCENARIOS / "kill-mid-run.yaml")
    plan = scenario.plan(1)
    assert Counter(planned.fault for planned in plan) == {
        index: fault.count for index, fault in enumerate(scenario.faults)
    }
    for planned in plan:
        assert 0 < planned.when + scenario.faults[planned.fault].lasts <= scenario.load_seconds


def test_scaling_changes_how_much_happens_and_not_what() -> None:
    scenario = load_scenario(SCENARIOS / "kill-mid-run.yaml")
    small = scenario.scaled(0.1)
    assert scenario.model_copy(update={"short": 0.1}).in_short().tasks == small.tasks
    assert small.total < scenario.total / 5
    assert small.workers == scenario.workers
    assert {task.behaviour for task in small.tasks} == {task.behaviour for task in scenario.tasks}
    assert all(fault.count >= 1 for fault in small.faults)


STANDBY = "standby: asynchronous\ntasks:"


@pytest.mark.parametrize(
    ("standby", "faults", "reason"),
    [
        ("tasks:", "kind: failover, lasts: 1}", "a failover needs a standby: say `standby: sync"),
        (STANDBY, "kind: failover, lasts: 1}\n  - {kind: failover, lasts: 2}", "one failover"),
        (STANDBY, "kind: failover, lasts: 1}\n  - {kind: down, count: 1, lasts: 1}", "leave down"),
        (STANDBY, "kind: failover, count: 2, lasts: 1}", "should be 1"),
        ("standby: perhaps\ntasks:", "kind: kill, count: 1}", "'synchronous' or 'asynchronous'"),
    ],
)
def test_a_failover_that_cannot_be_is_refused(standby: str, faults: str, reason: str) -> None:
    text = GOOD.replace("tasks:", standby).replace("kind: kill, count: 3}", faults)
    with pytest.raises(ScenarioError, match=reason):
        parse_scenario(text, "bad.yaml")


def test_there_is_one_failover_at_any_scale() -> None:
    text = GOOD.replace("tasks:", STANDBY).replace("kill, count: 3", "failover, lasts: 1")
    for share in (0.1, 1, 10):
        assert [fault.count for fault in parse_scenario(text, "x").scaled(share).faults] == [1]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_scenario_written_as_text_is_the_same_scenario(path: Path) -> None:
    scenario = load_scenario(path).scaled(0.3)
    assert parse_scenario(scenario.text(), "written") == scenario
