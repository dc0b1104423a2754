"""The alert rules fire when they should and not otherwise; rules and dashboard parse, and ask for
nothing that servers and workers do not export."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from psycopg import Connection

from scheduler import Registry, dead_letter_hooks, enqueue
from scheduler.dispatch import declare_limits
from scheduler.service.worker_metrics import WorkerMetrics
from tests.parts import part
from tests.scheduler.working import over, running, worker
from tests.service.conftest import REGISTRY, MakeApi, work
from tests.service.promtool import find_promtool, promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ops" / "prometheus-rules.yaml"
TESTS = Path(__file__).parent / "alerts.yaml"
DASHBOARD = json.loads((ROOT / "ops" / "grafana-dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]

Exported = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="session")
def real_promtool() -> Path:
    """The promtool program."""
    return part("promtool", find_promtool)


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    """Its expressions, with values for Grafana's variables."""
    return [
        target["expr"].replace("$__rate_interval", "5m").replace("$kind", ".*")
        for panel in panels()
        for target in panel["targets"]
    ]


def test_the_rules_fire_when_they_should_and_not_otherwise(
    real_promtool: Path, tmp_path: Path
) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(TESTS, tmp_path)
    promtool(real_promtool, "check", "rules", RULES.name, cwd=tmp_path)
    promtool(real_promtool, "test", "rules", TESTS.name, cwd=tmp_path)


def test_every_alert_is_tested_both_ways() -> None:
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for rule in ALERTS:
        assert {(rule["alert"], True), (rule["alert"], False)} <= set(cases)


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    named = re.findall(r"^\| `(Leaseproof\w+)` \|", page, re.MULTILINE)
    assert named == [rule["alert"] for rule in ALERTS]


def test_every_expression_of_the_dashboard_parses(real_promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    document = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(document))
    promtool(real_promtool, "check", "rules", "rules.yaml", cwd=tmp_path)


def test_the_dashboard_is_one_that_grafana_can_load() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["kind"]["datasource"]["uid"] == "${datasource}"
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert DASHBOARD["title"]
    assert "id" not in DASHBOARD  # it would take the place of another
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on another panel"
                taken.add((x, y))
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


# What is asked for is what is there


@pytest.fixture
def exported(api: MakeApi, db: Connection, dsn: str) -> Exported:
    """What a live server and a live worker export: by name the labels, and the values they have."""
    shop = api()
    dead_letter_hooks.register(db, "pager")
    limited = Registry()
    metrics = WorkerMetrics(REGISTRY)

    @limited.kind("limited", int, limit=1)
    def _(attempt: object, payload: int) -> None:
        """For a metric that only limited kinds have."""

    dead, done = enqueue(db, work, -1), enqueue(db, work, 1)
    with running(worker(REGISTRY, dsn, **metrics.observers)):
        over(db, done)
        over(db, dead, "dead")
    declare_limits(db, {"any": 5})  # after the worker, which declared what its registry says
    shop.enqueue()
    found: Exported = {}
    texts = [
        shop.get("/metrics").text,
        generate_latest(metrics.registry).decode(),
        generate_latest(WorkerMetrics(limited).registry).decode(),
    ]
    for text in texts:
        for family in text_string_to_metric_families(text):
            # A metric of which nothing has happened yet has no sample, and its labels are unknown.
            for sample in family.samples:
                labels = found.setdefault(sample.name, defaultdict(set))
                for name, value in sample.labels.items():
                    labels[name].add(value)
    return found


SELECTOR = re.compile(r"(leaseproof_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def problems(expression: str, exported: Exported) -> Iterator[str]:
    """What an expression asks for that is not there."""
    names = set()
    for name, matchers in SELECTOR.findall(expression):
        if name not in exported:
            yield f"there is no metric {name}"
            continue
        names.add(name)
        for label, operator, value in MATCHER.findall(matchers):
            if label not in exported[name]:
                yield f"{name} has no label {label}"
            elif operator == "=" and value not in exported[name][label]:
                yield f"{name} has no {label} {value}"
    for grouping in GROUPING.findall(expression):
        for label in grouping.split(","):
            if not any(label.strip() in exported[name] for name in names):
                yield f"nothing has a label {label.strip()} to group by"


# Nothing of these happened, so they have no sample with labels: the metrics' own tests move them.
UNSEEN = {"leaseproof_fenced_writes_total": {"kind", "write"}}


def test_rules_and_dashboard_ask_for_what_is_exported(exported: Exported) -> None:
    for name, labels in UNSEEN.items():
        assert name not in exported
        exported[name] = {label: set() for label in labels}
    expressions = [rule["expr"] for rule in ALERTS] + dashboard_expressions()
    assert [found for one in expressions for found in problems(one, exported)] == []


def test_what_is_not_exported_is_found(exported: Exported) -> None:
    for expression, problem in {
        "leaseproof_dued_tasks > 1": "there is no metric leaseproof_dued_tasks",
        'leaseproof_tasks{state="dead"}': "leaseproof_tasks has no label state",
        'leaseproof_tasks{status="died"}': "leaseproof_tasks has no status died",
        "sum by (queue) (leaseproof_tasks)": "nothing has a label queue to group by",
    }.items():
        assert list(problems(expression, exported)) == [problem]


def test_every_metric_is_on_the_dashboard_or_in_a_rule(exported: Exported) -> None:
    asked = " ".join([rule["expr"] for rule in ALERTS] + dashboard_expressions())
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported}
    assert [name for name in sorted(names) if name not in asked] == []
