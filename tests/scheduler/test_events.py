"""What is logged: events that a table documents, each in one line, free while nobody listens."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path
from threading import Event as Gate

import pytest
from psycopg import Connection

from scheduler import Attempt, Registry, enqueue
from scheduler.events import Event, JsonFormatter, event
from tests.scheduler.working import SHORT, over, row, running, worker
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
log = logging.getLogger("scheduler.test")


def calls() -> dict[str, tuple[set[str], list[str]]]:
    """Each event that the code logs: its levels and its fields."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for path in sorted((ROOT / "scheduler").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "event":
                continue
            _, level, name = node.args
            assert isinstance(name, ast.Constant), f"{path}: an event's name stands in the code"
            levels = set(re.findall(r"logging\.(\w+)", ast.unparse(level))) or {"varies"}
            fields = [one.arg or "..." for one in node.keywords if one.arg != "exc_info"]
            if name.value in found:  # at two places: the same, if with more at one of them
                before = found[name.value]
                assert before[0] == levels, name.value
                assert {*before[1], "..."} == {*fields, "..."}, name.value
                fields = max(before[1], fields, key=len)
            found[str(name.value)] = (levels, fields)
    return found


def test_every_event_is_documented_with_its_fields_and_no_other() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([A-Z, ]+) \| ([^|]*) \|", page, re.MULTILINE)
    documented = {
        name: (set(levels.split(", ")), fields.split(", ")) for name, levels, fields in rows
    }
    found = calls()
    assert sorted(documented) == sorted(found)
    for name, (levels, fields) in found.items():
        if levels != {"varies"}:
            assert documented[name][0] == levels, name
        named, more = documented[name][1], "..." in fields
        known = [field for field in fields if field != "..."]
        assert named[: len(known)] == known, name
        assert more or named == known, name


def test_nothing_in_the_package_is_logged_otherwise() -> None:
    for path in (ROOT / "scheduler").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "events.py":
                name = ast.unparse(node.func)
                assert not re.fullmatch(
                    r"log\.(debug|info|warning|error|exception|critical|log)", name
                ), f"{path}: {name}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        (7, "7"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "so"', '"say \\"so\\""'),
        ("line\nforged", '"line\\nforged"'),
        ("\N{LINE SEPARATOR}", '"\\u2028"'),
        ("é", "é"),
    ],
)
def test_a_value_cannot_begin_another_field_or_line(value: object, shown: str) -> None:
    assert str(Event("name", {"key": value, "next": 1})) == f"name key={shown} next=1"


def test_an_event_that_nobody_listens_to_is_not_formatted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.WARNING, log.name)
    event(log, logging.INFO, "quiet", what=Costly())
    assert caplog.records == []


def test_json_has_one_object_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, log.name)
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        event(log, logging.ERROR, "broken", exc_info=error, task=7, why="x\ny")
    log.info("said by %s\nothers", "some")
    first, second = [JsonFormatter().format(record) for record in caplog.records]
    assert "\n" not in first + second
    found = json.loads(first)
    assert "ValueError: a" in found.pop("traceback")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", found.pop("at"))
    assert found == {
        "level": "ERROR",
        "logger": "scheduler.test",
        "event": "broken",
        "task": 7,
        "why": "x\ny",
    }
    assert json.loads(second)["event"] == "message"
    assert json.loads(second)["message"] == "said by some\nothers"


def test_a_claim_and_its_end_are_logged_with_task_token_and_owner(
    db: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()

    @registry.kind("work", int)
    def work(attempt: Attempt, payload: int) -> None:
        """Does nothing."""

    number = enqueue(db, work, 1)
    caplog.set_level(logging.DEBUG, "scheduler")
    with running(worker(registry, dsn, name="w1")):
        over(db, number)
    said = {
        record.msg.name: record.msg.fields
        for record in caplog.records
        if isinstance(record.msg, Event)
    }
    claimed, ended = said["claimed"], said["ended"]
    assert str(claimed["owner"]).startswith("w1/")
    assert float(str(claimed["late"])) >= 0
    assert (claimed["task"], claimed["token"], claimed["attempt"]) == (number, 1, "1/10")
    assert (ended["task"], ended["token"], ended["owner"]) == (number, 1, claimed["owner"])
    assert (ended["outcome"], ended["now"]) == ("completed", "completed")


def test_a_lease_that_is_lost_is_logged_while_its_handler_still_runs(
    db: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, go = Registry(), Gate()

    @registry.kind("work", int, lease=SHORT)
    def work(attempt: Attempt, payload: int) -> None:
        assert go.wait(60)

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, name="w1")):
        try:
            wait_for(lambda: row(db, number)["status"] == "running", "it to run")
            db.execute("select scheduler.cancel(%s)", [[number]])
            lost = f"lease-lost task={number} kind=work token=1 owner=w1/"
            wait_for(lambda: lost in caplog.text, "the line")
        finally:
            go.set()
    assert "how=cancelled" in caplog.text
    assert caplog.text.count("lease-lost") == 1
