"""The command line, run in this process; in one of its own where signals and pipes matter."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import pytest
from psycopg import Connection, sql
from psycopg.conninfo import make_conninfo

from chaos.life.clock import Clock
from scheduler import Cron, Registry, dead_letter, declare_schedules
from scheduler.cli import main
from scheduler.dead_letter import DeadLetter
from tests.scheduler.roles import drop_roles, login
from tests.waiting import wait_for

APP = """
import time
from pathlib import Path
from pydantic import BaseModel
from scheduler import Registry

class Greeting(BaseModel):
    name: str

app = Registry()
empty = Registry()
number = 7

@app.kind("greet", Greeting)
def greet(attempt, greeting):
    Path("greeted").write_text(greeting.name)

@app.kind("wait", Greeting)
def wait(attempt, greeting):
    Path("waiting").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
"""
NOWHERE = "postgresql://127.0.0.1:1/nowhere"


class Answer(NamedTuple):
    """What a command did: its exit code, its data and its messages."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


class Run(Protocol):
    """Runs one command in this process."""

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Answer: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs commands in a directory, an environment and a module path of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("SCHEDULER_DATABASE", raising=False)
    monkeypatch.delenv("SCHEDULER_APP", raising=False)

    def command(*arguments: object, stdin: bytes = b"") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        answer = Answer(int(ended.value.code or 0), *capsys.readouterr())
        assert "Traceback" not in answer.err
        return answer

    return command


@pytest.fixture
def on(run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands on the test's migrated database."""
    monkeypatch.setenv("SCHEDULER_DATABASE", dsn)
    return run


@pytest.fixture
def off(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands with a database that does not answer: a mistake is found before it is asked."""
    monkeypatch.setenv("SCHEDULER_DATABASE", NOWHERE)
    return run


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], str]:
    """Writes a module that commands of this test can import, and returns its name."""

    def write(text: str) -> str:
        name = f"app_{uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


@pytest.fixture
def app(module: Callable[[str], str]) -> str:
    """An application with the kinds `greet` and `wait`."""
    return f"{module(APP)}:app"


def refused(answer: Answer, code: int, sentence: str) -> None:
    """The command ended with this code and one sentence, and gave no data."""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert sentence in answer.err
    assert (answer.code, answer.out) == (code, "")


def refused_by_typer(answer: Answer, words: str) -> None:
    """typer itself refused the options."""
    assert words in " ".join(answer.err.replace("│", " ").split())
    assert (answer.code, answer.out) == (2, "")


def dead(db: Connection, kind: str = "greet", error: str = "it broke", count: int = 1) -> list[int]:
    """Dead letters, in the order in which they died."""
    rows = db.execute(
        "insert into scheduler.tasks (kind, payload, status, next_run_at, attempts, max_attempts,"
        " backoff_base, backoff_factor, backoff_cap, backoff_jitter, last_error, enqueued_at,"
        " finished_at)"
        " select %s, '{\"name\": \"é\"}', 'dead', now(), 2, 2, 1, 2, 60, 0, %s, now(),"
        " now() + make_interval(secs => n) from generate_series(1, %s) as n returning id",
        [kind, error, count],
    ).fetchall()
    return [task for (task,) in rows]


def statuses(db: Connection) -> list[str]:
    """The statuses of all tasks, by id."""
    return [s for (s,) in db.execute("select status from scheduler.tasks order by id").fetchall()]


# migrate


def test_migrate_creates_the_schema_and_says_what_it_applied(run: Run, empty_dsn: str) -> None:
    answer = run("migrate", "--database", empty_dsn)
    assert (answer.code, answer.err) == (0, "")
    assert "applied core\n" in answer.out
    assert run("status", "--database", empty_dsn).code == 0


def test_migrate_a_second_time_applies_nothing(run: Run, empty_dsn: str) -> None:
    first = run("migrate", "--database", empty_dsn, "--json")
    second = run("migrate", "--database", empty_dsn, "--json")
    assert first.document["applied"][0] == "core"
    assert second.document == {"applied": []}
    assert (second.code, second.err) == (0, "the schema is up to date\n")


# The database


WITH_DATABASE = [
    ["status"],
    ["history", "1"],
    ["cancel", "1"],
    ["enqueue", "greet", '{"name": "x"}', "--app", "APP"],
    ["worker", "APP"],
    ["dead-letter", "list"],
    ["dead-letter", "requeue", "1"],
    ["dead-letter", "discard", "--all"],
    ["dead-letter", "export"],
    ["roles"],
    ["access", "list"],
    ["access", "limit", "shop", "1"],
    ["access", "restrict", "greet", "--all"],
]


def named(command: list[str], app: str) -> list[str]:
    return [app if word == "APP" else word for word in command]


@pytest.mark.parametrize("command", WITH_DATABASE, ids=" ".join)
def test_a_missing_migration_is_said(
    run: Run, empty_dsn: str, app: str, command: list[str]
) -> None:
    answer = run(*named(command, app), "--database", empty_dsn)
    refused(answer, 1, "the database has no scheduler schema yet")
    assert "run `scheduler migrate`" in answer.err


@pytest.mark.parametrize("command", ["migrate", "status"])
def test_a_newer_schema_is_refused(on: Run, db: Connection, command: str) -> None:
    db.execute("insert into scheduler.migrations (version, name) values (999, 'future')")
    refused(on(command), 1, "at version 999, newer than the")


@pytest.mark.parametrize("command", [["migrate"], *WITH_DATABASE], ids=" ".join)
def test_an_unreachable_database_is_said(run: Run, app: str, command: list[str]) -> None:
    answer = run(*named(command, app), "--database", NOWHERE)
    refused(answer, 1, "onnection refused")


@pytest.mark.parametrize("command", [["migrate"], *WITH_DATABASE], ids=" ".join)
def test_without_a_database_both_ways_to_give_one_are_named(
    run: Run, app: str, command: list[str]
) -> None:
    refused(
        run(*named(command, app)),
        2,
        "no database: give --database URL or set SCHEDULER_DATABASE in the environment",
    )


def test_text_that_is_no_connection_url_is_wrong_usage(run: Run) -> None:
    refused(run("status", "--database", "nonsense"), 2, "is neither a connection URL")


@pytest.mark.parametrize("url", ["postgresql://u:sekret@[::1/db", "postgresql://u:sek%zzret@h/db"])
def test_a_url_that_cannot_be_read_is_not_repeated_with_its_password(run: Run, url: str) -> None:
    answer = run("status", "--database", url)
    refused(answer, 2, "is neither a connection URL")
    assert "sek" not in answer.err


def test_permission_denied_is_said_in_one_line(on: Run, dsn: str, db: Connection) -> None:
    role = f"stranger_{uuid4().hex}"
    db.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
    try:
        answer = on("status", "--database", make_conninfo(dsn, user=role))
        refused(answer, 1, "permission denied for schema scheduler")
        db.execute(sql.SQL("grant usage on schema scheduler to {}").format(sql.Identifier(role)))
        db.execute(
            sql.SQL("grant select on scheduler.migrations to {}").format(sql.Identifier(role))
        )
        answer = on("history", 1, "--database", make_conninfo(dsn, user=role))
        refused(answer, 1, "permission denied for table tasks")
    finally:
        db.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        db.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_the_database_option_wins_over_the_environment(
    on: Run, empty_dsn: str, db: Connection
) -> None:
    assert on("status").code == 0
    refused(on("status", "--database", empty_dsn), 1, "run `scheduler migrate`")


# enqueue


def test_enqueue_prints_the_id(on: Run, db: Connection, app: str) -> None:
    answer = on("enqueue", "greet", '{"name": "Ada"}', "--app", app)
    rows = db.execute("select id, kind, payload, status from scheduler.tasks").fetchall()
    assert (answer.code, answer.err) == (0, "")
    assert rows == [(int(answer.out), "greet", {"name": "Ada"}, "pending")]


def test_enqueue_reads_the_payload_from_stdin_and_the_app_from_the_environment(
    on: Run, db: Connection, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULER_APP", app)
    answer = on("enqueue", "greet", "-", "--json", stdin='{"name": "Zoë"}\n'.encode())
    rows = db.execute("select id, payload from scheduler.tasks").fetchall()
    assert rows == [(answer.document["task"], {"name": "Zoë"})]


def test_enqueue_for_later(on: Run, db: Connection, app: str, clock: Clock) -> None:
    due = "2026-03-01T09:30:00+02:00"
    on("enqueue", "greet", '{"name": "x"}', "--app", app, "--at", due)
    on("enqueue", "greet", '{"name": "x"}', "--app", app, "--delay", "90.5")
    rows = db.execute(
        "select next_run_at = %s, next_run_at - scheduler.now() = '90.5 s' from scheduler.tasks"
        " order by id",
        [due],
    ).fetchall()
    assert rows == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"name": 7}', "name: Input should be a valid string"),
        ("{}", "name: Field required"),
        ('"\udcff"', "Invalid JSON"),
    ],
    ids=["broken", "wrong type", "incomplete", "not utf-8"],
)
def test_a_payload_the_kind_refuses_is_wrong_usage(
    off: Run, app: str, payload: str, words: str
) -> None:
    answer = off("enqueue", "greet", payload, "--app", app)
    refused(answer, 2, "the payload for kind 'greet' is refused by its model")
    assert words in answer.err


def test_a_payload_with_nul_is_wrong_usage(on: Run, app: str) -> None:
    answer = on("enqueue", "greet", '{"name": "\\u0000"}', "--app", app)
    refused(answer, 2, "contains the character U+0000")


def test_an_unknown_kind_is_wrong_usage_and_the_known_ones_are_named(off: Run, app: str) -> None:
    answer = off("enqueue", "grete", "{}", "--app", app)
    refused(answer, 2, "no kind 'grete' is registered; known kinds: greet, wait")


def test_enqueue_without_an_app_names_both_ways_to_give_one(off: Run) -> None:
    answer = off("enqueue", "greet", "{}")
    refused(answer, 2, "give --app module:attribute or set SCHEDULER_APP in the environment")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--at", "2030-01-01T00:00:00"], "has no time zone"),
        (["--at", "tomorrow"], "--at 'tomorrow' is not an ISO 8601 time, for example"),
        (["--at", "9999-12-31T23:59:59-23:59"], "is more than 36525 days away"),
        (["--at", "0001-01-01T00:00:00+10:00"], "is before 1970"),
        (["--delay", "-1"], "--delay must be from 0 to 3155760000 seconds, not -1.0"),
        (["--delay", "nan"], "--delay must be from 0 to 3155760000 seconds, not nan"),
        (["--delay", "1e300"], "--delay must be from 0 to 3155760000 seconds, not 1e+300"),
        (["--delay", "1", "--at", "2030-01-01T00:00:00Z"], "not both"),
    ],
    ids=["naive", "words", "far", "early", "negative", "nan", "huge", "both"],
)
def test_a_time_that_cannot_be_meant_is_wrong_usage(
    on: Run, db: Connection, app: str, options: list[str], sentence: str
) -> None:
    refused(on("enqueue", "greet", '{"name": "x"}', "--app", app, *options), 2, sentence)
    assert statuses(db) == []


def test_a_delay_that_is_no_number_is_wrong_usage(off: Run, app: str) -> None:
    answer = off("enqueue", "greet", '{"name": "x"}', "--app", app, "--delay", "soon")
    refused_by_typer(answer, "Invalid value for '--delay'")


# Applications


@pytest.mark.parametrize("name", ["", "app", "a.b", ":app", "app:", "..:x", "a-b:c", "a:b.c"])
def test_an_app_that_is_not_module_colon_attribute_is_wrong_usage(off: Run, name: str) -> None:
    refused(off("worker", name), 2, f"{name!r} does not name an application as module:attribute")


def test_a_module_that_does_not_exist_is_said_with_where_it_was_looked_for(
    off: Run, tmp_path: Path
) -> None:
    answer = off("worker", "nowhere.inside:app")
    refused(answer, 2, f"there is no module 'nowhere', looked for in {tmp_path}")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x = 1\nimport not_installed_here\n", "No module named 'not_installed_here'", 2),
        ("def f():\n    1 / 0\n\nf()\n", "ZeroDivisionError: division by zero", 2),
        ("import sys\nsys.exit('no')\n", "SystemExit: no", 2),
        ("x = 1\nif :\n", "SyntaxError: invalid syntax", 2),
    ],
    ids=["import", "raise", "exit", "syntax"],
)
def test_an_error_inside_the_module_is_said_with_its_message_and_place(
    off: Run, module: Callable[[str], str], text: str, message: str, line: int
) -> None:
    name = module(text)
    answer = off("worker", f"{name}:app")
    refused(answer, 2, f"the module '{name}' fails to import")
    assert message in answer.err
    assert f"{name}.py, line {line})" in answer.err


def test_an_attribute_that_is_no_registry_is_said_with_those_that_are(off: Run, app: str) -> None:
    name = app.partition(":")[0]
    answer = off("worker", f"{name}:number")
    refused(answer, 2, f"{name}:number should be a scheduler.Registry, but it is a int; it has")
    assert f"{name}:app, {name}:empty" in answer.err
    refused(off("worker", f"{name}:missing"), 2, "but it does not exist; it has")


def test_a_registry_without_kinds_is_wrong_usage(off: Run, app: str) -> None:
    name = app.partition(":")[0]
    refused(off("worker", f"{name}:empty"), 2, "has no kinds: a worker would have nothing to run")


def test_what_a_module_prints_is_no_data(
    on: Run, db: Connection, module: Callable[[str], str]
) -> None:
    name = module("print('hello')\n" + APP)
    answer = on("enqueue", "greet", '{"name": "x"}', "--app", f"{name}:app", "--json")
    assert list(answer.document) == ["task", "created"]
    assert answer.err == "hello\n"


# status, history, cancel


def test_status_of_an_empty_queue(on: Run) -> None:
    answer = on("status")
    assert "longest wait: nothing is due" in answer.out
    assert "clock: statement_timestamp()" in answer.out
    assert (answer.code, answer.err) == (0, "")


def test_status_counts_by_kind_and_status_and_shows_the_oldest_due(
    on: Run, db: Connection, app: str, clock: Clock
) -> None:
    for seconds in (0, 30, 10_000):
        on("enqueue", "greet", '{"name": "x"}', "--app", app, "--delay", seconds)
    dead(db, "wait")
    clock.advance(clock.now - clock.now.replace(hour=10))
    shown = on("status", "--json").document
    assert shown["clock"] == "test"
    assert shown["schema_version"] >= 1
    assert shown["oldest_due_seconds"] == 7200
    assert [(row["kind"], row["status"], row["count"]) for row in shown["tasks"]] == [
        ("greet", "pending", 3),
        ("wait", "dead", 1),
    ]
    human = on("status").out
    assert ["greet", "pending", "3", "2:00:00"] in [line.split() for line in human.splitlines()]
    assert "longest wait: 2:00:00" in human


def test_history_shows_the_task_and_its_finished_attempts(
    on: Run, db: Connection, app: str
) -> None:
    task = int(on("enqueue", "greet", '{"name": "Ada"}', "--app", app).out)
    assert "no attempt has finished" in on("history", task).out
    db.execute(
        "insert into scheduler.run_log values"
        " (%s, 1, 'w/1', 1, now(), now(), 'failed', E'Oops\\x1b[31m\\nline')",
        [task],
    )
    document = on("history", task, "--json").document
    assert (document["task"]["id"], document["task"]["payload"]) == (task, {"name": "Ada"})
    assert [(run["outcome"], run["lease_owner"]) for run in document["runs"]] == [("failed", "w/1")]
    human = on("history", task).out
    assert '{"name": "Ada"}' in human
    assert "Oops\N{REPLACEMENT CHARACTER}[31m" in human
    assert "\x1b" not in human


def test_history_of_no_task_is_said(on: Run) -> None:
    refused(on("history", 7), 1, "there is no task 7")


@pytest.mark.parametrize("number", ["0", "-3", "9223372036854775808", "x", "1.5"])
@pytest.mark.parametrize("command", [["history"], ["cancel"], ["dead-letter", "requeue"]])
def test_what_cannot_be_an_id_is_wrong_usage(off: Run, command: list[str], number: str) -> None:
    refused_by_typer(off(*command, "--", number), "Invalid value for")


def test_cancel_says_what_each_task_was(on: Run, db: Connection, app: str) -> None:
    first, second = (
        int(on("enqueue", "greet", '{"name": "x"}', "--app", app).out) for _ in range(2)
    )
    assert on("cancel", first).out == f"cancelled {first}, was pending\n"
    assert on("cancel", second, "--json").document == {
        "cancelled": [{"task": second, "was": "pending"}]
    }
    assert statuses(db) == ["cancelled", "cancelled"]


def test_cancel_does_what_it_can_and_says_what_it_could_not(
    on: Run, db: Connection, app: str
) -> None:
    [over] = dead(db)
    task = int(on("enqueue", "greet", '{"name": "x"}', "--app", app).out)
    answer = on("cancel", over, task, 99, 99)
    assert answer.out == f"cancelled {task}, was pending\n"
    assert answer.err.endswith(f"neither waiting nor running, or do not exist: {over}, 99\n")
    assert (answer.code, statuses(db)) == (1, ["dead", "cancelled"])


# dead-letter


settling = pytest.mark.parametrize(
    ("command", "said", "after"),
    [("requeue", "requeued", "pending"), ("discard", "discarded", "discarded")],
)


def test_dead_letters_are_listed_oldest_first_by_kind_and_limit(on: Run, db: Connection) -> None:
    first, second, third = dead(db, error="it broke\nhere", count=3)
    dead(db, "wait")
    listed = on("dead-letter", "list", "--kind", "greet", "--json")
    assert [letter["id"] for letter in listed.document["dead_letters"]] == [first, second, third]
    assert listed.err == ""
    human = on("dead-letter", "list", "--kind", "greet", "--limit", 2)
    assert [line.split()[0] for line in human.out.splitlines()] == ["task", str(first), str(second)]
    assert human.out.count("it broke") == 2
    assert "here" not in human.out
    assert "there are more than these 2" in human.err


@settling
def test_dead_letters_are_settled_by_id(
    on: Run, db: Connection, command: str, said: str, after: str
) -> None:
    first, second = dead(db, count=2)
    assert on("dead-letter", command, first).out == f"{said} {first}\n"
    assert statuses(db) == [after, "dead"]
    answer = on("dead-letter", command, first, second, "--json")
    assert answer.document == {said: [second]}
    assert answer.err == f"error: left alone because they are not dead letters: {first}\n"
    assert (answer.code, statuses(db)) == (1, [after, after])


@settling
def test_all_dead_letters_of_a_kind_are_settled(
    on: Run, db: Connection, command: str, said: str, after: str
) -> None:
    dead(db, count=600)
    [last] = dead(db, "wait")
    assert on("dead-letter", command, "--all", "--kind", "greet").code == 0
    assert statuses(db) == [after] * 600 + ["dead"]
    assert on("dead-letter", command, "--all").out == f"{said} {last}\n"
    assert statuses(db) == [after] * 601
    assert on("dead-letter", command, "--all") == (0, "", "there are no dead letters\n")


def test_payloads_are_read_only_where_they_are_written_and_few_at_a_time(
    on: Run, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(db, count=45)
    sizes: list[int] = []
    read = dead_letter.page

    def page(*wanted: Any) -> list[DeadLetter]:
        found = read(*wanted)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(dead_letter, "page", page)
    assert len(on("dead-letter", "list").out.splitlines()) == 46
    for command in ("requeue", "discard"):
        db.execute("update scheduler.tasks set status = 'dead', finished_at = now(), attempts = 2")
        assert len(on("dead-letter", command, "--all").out.splitlines()) == 45
    assert sizes == []
    db.execute("update scheduler.tasks set status = 'dead'")
    assert len(on("dead-letter", "export").out.splitlines()) == 45
    assert sizes == [20, 20, 5]


def test_requeue_of_what_is_not_dead_is_said(on: Run) -> None:
    answer = on("dead-letter", "requeue", 7)
    refused(answer, 1, "left alone because they are not dead letters: 7")


@pytest.mark.parametrize("command", ["requeue", "discard"])
def test_settling_needs_either_ids_or_all(off: Run, command: str) -> None:
    either = "give either ids of tasks or --all"
    refused(off("dead-letter", command), 2, either)
    refused(off("dead-letter", command, 1, "--all"), 2, either)
    refused(off("dead-letter", command, 1, "--kind", "greet"), 2, "--kind goes with --all")


def test_export_writes_one_json_line_a_letter(on: Run, db: Connection) -> None:
    ids = dead(db, error="a\nb", count=2)
    dead(db, "wait")
    lines = on("dead-letter", "export", "--kind", "greet").out.splitlines()
    letters = [json.loads(line) for line in lines]
    assert [(letter["id"], letter["last_error"]) for letter in letters] == [
        (task, "a\nb") for task in ids
    ]
    assert letters[0]["payload"] == {"name": "é"}
    assert len(on("dead-letter", "export").out.splitlines()) == 3


@pytest.mark.parametrize(
    "payload", ["0.12345678901234567890", "[" * 3000 + "]" * 3000], ids=["precise", "deep"]
)
def test_a_payload_is_shown_as_it_is_stored(on: Run, db: Connection, payload: str) -> None:
    [task] = dead(db)
    db.execute("update scheduler.tasks set payload = %s::jsonb", [payload])
    for command in (
        ["dead-letter", "export"],
        ["dead-letter", "list", "--json"],
        ["history", str(task), "--json"],
        ["history", str(task)],
    ):
        answer = on(*command)
        assert (answer.code, payload in answer.out) == (0, True), command


def test_a_priority_and_a_key_are_taken(on: Run, db: Connection, app: str) -> None:
    words = ["enqueue", "greet", '{"name": "x"}', "--app", app, "--unique-key", "k"]
    first = on(*words, "--priority", "urgent", "--json").document
    again = on(*words)
    assert first == {"task": int(again.out), "created": True}
    assert again.err == f"task {first['task']} has this key already\n"
    assert db.execute("select priority, unique_key from scheduler.tasks").fetchall() == [(3, "k")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--priority", "most"], "Invalid value for '--priority'"),
        (["--unique-key", ""], "--unique-key: a unique key has 1 to 500 characters"),
    ],
)
def test_a_priority_or_key_that_cannot_be_meant_is_wrong_usage(
    off: Run, app: str, options: list[str], words: str
) -> None:
    answer = off("enqueue", "greet", '{"name": "x"}', "--app", app, *options)
    assert (answer.code, words in " ".join(answer.err.split())) == (2, True)


def test_the_attempts_in_a_history_show_the_first_line_of_each_error(
    on: Run, db: Connection
) -> None:
    [task] = dead(db, error="the message\nand its traceback")
    out = on("history", task).out
    assert out.count("and its traceback") == 1  # as the task's last error, whole
    assert "next_run_at" not in out


# worker


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slots", "0"], "Invalid value for '--slots'"),
        (["--prefetch", "-1"], "Invalid value for '--prefetch'"),
        (["--log-level", "loud"], "Invalid value for '--log-level'"),
        (["--queue", "nowhere"], "no kinds in the queues nowhere"),
        (["--poll", "0"], "poll must be from"),
    ],
    ids=["slots", "prefetch", "log level", "queue", "poll"],
)
def test_worker_options_out_of_range_are_wrong_usage(
    off: Run, app: str, options: list[str], words: str
) -> None:
    refused_by_typer(off("worker", app, *options), words)


@pytest.mark.parametrize("option", ["--poll", "--reclaim-every", "--grace"])
@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_worker_times_that_cannot_be_meant_are_wrong_usage(
    off: Run, app: str, option: str, seconds: str
) -> None:
    refused(off("worker", app, option, seconds), 2, f"{option} must be from 0 to")


class Started(NamedTuple):
    """A worker in a process of its own, and the file with its messages."""

    process: subprocess.Popen[bytes]
    messages: Path

    def said(self, words: str) -> bool:
        """Whether it has said this, or it is over: then an assertion on its end tells why."""
        return words in self.messages.read_text() or self.process.poll() is not None


@contextmanager
def started_worker(dsn: str, app: str, directory: Path) -> Iterator[Started]:
    messages = directory / "messages"
    with messages.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler", "worker", app, "--poll", "0.05", "--name", "w1"],
            cwd=directory,
            env={**os.environ, "SCHEDULER_DATABASE": dsn},
            stderr=stderr,
        )
    try:
        started = Started(process, messages)
        wait_for(lambda: started.said("worker-started worker=w1"), "the worker to start")
        yield started
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_drains_on_a_signal(
    on: Run, dsn: str, db: Connection, app: str, tmp_path: Path, how: signal.Signals
) -> None:
    on("enqueue", "wait", '{"name": "x"}', "--app", app)
    with started_worker(dsn, app, tmp_path) as worker:
        wait_for((tmp_path / "waiting").exists, "the handler to start")
        worker.process.send_signal(how)
        wait_for(lambda: worker.said("draining; a second signal ends"), "the signal to arrive")
        assert worker.process.poll() is None
        on("enqueue", "greet", '{"name": "too late"}', "--app", app)
        (tmp_path / "go on").touch()
        assert worker.process.wait(30) == 0
    assert statuses(db) == ["completed", "pending"]
    assert "INFO scheduler: worker-stopped worker=w1" in worker.messages.read_text()
    assert "Traceback" not in worker.messages.read_text()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_worker_at_once(
    on: Run, dsn: str, db: Connection, app: str, tmp_path: Path, second: signal.Signals
) -> None:
    on("enqueue", "wait", '{"name": "x"}', "--app", app)
    with started_worker(dsn, app, tmp_path) as worker:
        wait_for((tmp_path / "waiting").exists, "the handler to start")
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: worker.said("draining; a second signal ends"), "the signal to arrive")
        worker.process.send_signal(second)
        assert worker.process.wait(30) == -second
    assert statuses(db) == ["running"]
    assert "Traceback" not in worker.messages.read_text()


# The command as a program


def program(*arguments: str, dsn: str, stdout: int) -> subprocess.Popen[bytes]:
    # Buffered as usual: what is written only at the end of the process fails only there.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "scheduler", *arguments, "--database", dsn],
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def test_export_to_a_reader_that_has_enough_ends_quietly(dsn: str, db: Connection) -> None:
    dead(db, error="x" * 1000, count=1000)  # far more than a pipe holds
    with program("dead-letter", "export", dsn=dsn, stdout=subprocess.PIPE) as export:
        assert export.stdout is not None
        assert export.stderr is not None
        assert json.loads(export.stdout.readline())["kind"] == "greet"
        export.stdout.close()
        assert (export.wait(30), export.stderr.read()) == (1, b"")


@pytest.mark.parametrize(
    "command", [["status"], ["status", "--json"], ["dead-letter", "export"]], ids=" ".join
)
def test_output_that_nobody_reads_ends_quietly(
    dsn: str, db: Connection, command: list[str]
) -> None:
    dead(db)
    reader, writer = os.pipe()
    os.close(reader)
    with program(*command, dsn=dsn, stdout=writer) as ended:
        os.close(writer)
        assert ended.stderr is not None
        assert (ended.wait(30), ended.stderr.read()) == (1, b"")


def test_help_documents_the_exit_codes(run: Run) -> None:
    answer = run("--help")
    assert "Exit codes: 0 done; 1 the database has it otherwise" in " ".join(answer.out.split())
    assert answer.code == 0


def test_a_command_that_does_not_exist_is_wrong_usage(run: Run) -> None:
    refused_by_typer(run("destroy"), "No such command 'destroy'")


def test_errors_without_an_sqlstate_keep_their_whole_explanation(run: Run) -> None:
    answer = run("status", "--database", "host=127.0.0.1,127.0.0.1 port=1,2 dbname=x")
    refused(answer, 1, "port 1 failed")
    assert "port 2 failed" in answer.err


# roles, access, doctor


def test_roles_creates_what_is_missing_and_can_print_it(on: Run, db: Connection, dsn: str) -> None:
    drop_roles(db, dsn)
    answer = on("roles")
    assert (answer.code, answer.out.count("created scheduler_")) == (0, 5)
    assert on("roles", "--json").document == {"created": []}
    printed = on("roles", "--print")
    assert printed.out.startswith("begin;\n")
    assert "grant execute on function scheduler.enqueue to" in printed.out
    refused(on("roles", "--print", "--json"), 2, "give one")


def test_roles_by_a_role_that_may_not_is_told_the_way_out(
    on: Run, db: Connection, dsn: str
) -> None:
    with login(db, dsn) as member:
        refused(on("roles", "--database", member), 1, "`scheduler roles --print` prints")


def test_each_command_of_a_role_that_may_not_names_the_role_to_grant(
    on: Run, db: Connection, dsn: str, app: str
) -> None:
    on("roles")
    for group, commands in {
        "scheduler_enqueue": [["enqueue", "greet", '{"name": "x"}', "--app", app]],
        "scheduler_worker": [["worker", app]],
        "scheduler_reader": [["status"], ["history", "1"], ["access", "list"]],
        "scheduler_operator": [
            ["cancel", "1"],
            ["dead-letter", "requeue", "1"],
            ["access", "limit", "shop", "1"],
            ["access", "restrict", "greet", "shop"],
            ["token", "list"],
            ["token", "revoke", "one"],
        ],
    }.items():
        others = {"scheduler_enqueue": ["scheduler_reader"]}.get(group, ["scheduler_enqueue"])
        with login(db, dsn) as nobody, login(db, dsn, *others) as other:
            for command in commands:
                for member in (nobody, other):
                    answer = on(*command, "--database", member)
                    refused(answer, 1, f"grant {group} to the role login_")
                    assert "permission denied for" in answer.err
        if group != "scheduler_worker":
            with login(db, dsn, group) as member:
                assert on(*commands[0], "--database", member).err.count("permission denied") == 0


def test_a_server_that_may_not_even_look_is_told_the_role_that_serves(
    on: Run, db: Connection, dsn: str, app: str
) -> None:
    on("roles")
    with login(db, dsn) as nobody:
        answer = on("serve", "--app", app, "--database", nobody)
        refused(answer, 1, "grant scheduler_http to the role login_")


def test_who_may_not_make_tokens_is_told_whose_right_that_is(
    on: Run, db: Connection, dsn: str
) -> None:
    on("roles")
    for groups in ((), ("scheduler_reader",), ("scheduler_operator",)):
        with login(db, dsn, *groups) as member:
            command = ("token", "create", "one", "--source", "shop", "--scope", "read")
            answer = on(*command, "--database", member)
            refused(answer, 1, "do this as the role that owns the schema scheduler, not as login_")
            assert "permission denied for" in answer.err


def test_access_is_set_and_listed(on: Run, db: Connection, app: str) -> None:
    assert on("access", "list").out == "no source has a cap\nevery kind is open to all\n"
    assert on("access", "limit", "postgres", "1").out == (
        "postgres may have at most 1 tasks outstanding\n"
    )
    assert on("access", "restrict", "greet", "shop", "shop").out == (
        "greet may be enqueued by shop\n"
    )
    assert on("access", "list", "--json").document == {
        "sources": [{"name": "postgres", "max_outstanding": 1, "outstanding": 0}],
        "kinds": [{"kind": "greet", "sources": ["shop"]}],
    }
    enqueued = ("enqueue", "greet", '{"name": "x"}', "--app", app)
    refused(on(*enqueued), 1, "postgres may not enqueue tasks of kind greet")
    assert "every source" in on("access", "restrict", "greet", "--all").out
    assert on(*enqueued).code == 0
    refused(on(*enqueued), 1, "may have 1 tasks outstanding")
    assert on("access", "limit", "postgres", "none", "--json").document["max_outstanding"] is None
    assert on(*enqueued).code == 0


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["limit", "shop", "-1"], "No such option"),
        (["limit", "shop", "1.5"], "'1.5' is no cap: give a number of tasks, or none"),
        (["limit", "shop", "9" * 5000], "is no cap"),
        (["limit", "shop", "9999999999"], "a cap must be a number from 0 to 2147483647"),
        (["limit", "", "1"], "a source has a name of 1 to 200 characters"),
        (["limit", "\udcff", "1"], "a source has a name of 1 to 200 characters"),
        (["restrict", "greet"], "give either the sources of the kind or --all"),
        (["restrict", "greet", "shop", "--all"], "give either the sources of the kind or --all"),
        (["restrict", "k" * 101, "shop"], "a kind has a name of 1 to 100 characters"),
        (["restrict", "greet", "x" * 201], "a source has a name of 1 to 200 characters"),
    ],
)
def test_access_that_cannot_be_meant_is_wrong_usage(
    on: Run, db: Connection, command: list[str], sentence: str
) -> None:
    answer = on("access", *command)
    assert answer.code == 2
    assert sentence in answer.err
    assert db.execute("select from scheduler.audit").fetchall() == []


def test_the_doctor_says_what_is_wrong_and_what_to_do(on: Run, db: Connection, app: str) -> None:
    on("roles")
    db.execute("grant select on scheduler.tasks to public")
    answer = on("doctor", "--json", "--app", app)
    checks = {it["check"]: it for it in answer.document["checks"]}
    assert (answer.code, answer.document["healthy"], answer.err) == (1, False, "")
    assert checks["grants"]["found"] == "too much: select on table tasks to public"
    assert checks["unknown kinds"]["level"] == "ok"
    answer = on("doctor")
    assert "select on table tasks to public" in answer.out
    assert "run `scheduler roles`" in answer.out
    assert answer.err == "kinds and their leases were not looked at: give --app module:attribute\n"


def test_the_doctor_finds_that_nobody_is_there(run: Run) -> None:
    answer = run("doctor", "--database", NOWHERE)
    assert answer.code == 1
    assert "reachable" in answer.out


# schedules


def schedule(db: Connection, *names: str) -> None:
    """Declare schedules of a kind that does nothing, for the whole hours of Tokyo."""
    registry = Registry(application="shop")
    made = registry.kind("greet", object)(lambda attempt, payload: None)
    for name in names:
        registry.schedule(name, made, None, Cron("0 * * * *", "Asia/Tokyo"))
    declare_schedules(db, registry)


def test_schedules_are_listed_with_what_keeps_them(on: Run, db: Connection, clock: Clock) -> None:
    assert on("schedules", "list", "--json").document == {"schedules": []}
    schedule(db, "nightly", "weekly")
    on("schedules", "pause", "weekly")
    first, second = on("schedules", "list", "--json").document["schedules"]
    assert first == {
        "name": "nightly",
        "application": "shop",
        "source": "postgres",
        "kind": "greet",
        "rule": "cron 0 * * * *",
        "timezone": "Asia/Tokyo",
        "missed": "once",
        "on_dead": "stop",
        "declared": True,
        "paused": False,
        "next_at": first["next_at"],
        "last_occurrence": None,
        "live_task": None,
        "dead_task": None,
        "state": "active",
    }
    assert (second["name"], second["state"]) == ("weekly", "paused")
    lines = on("schedules", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["schedule", "nightly", "weekly"]
    assert lines[1].split()[-3:] == ["2026-01-01", "12:00:00Z", "active"]


def test_schedules_are_paused_and_resumed_by_name(on: Run, db: Connection) -> None:
    schedule(db, "nightly", "weekly")
    answer = on("schedules", "pause", "weekly", "nightly")
    assert (answer.code, answer.out) == (0, "paused nightly\npaused weekly\n")
    answer = on("schedules", "resume", "weekly", "monthly", "monthly", "--json")
    assert answer.document == {"resumed": ["weekly"]}
    assert answer.err == "error: there are no schedules of these names: monthly\n"
    assert answer.code == 1
    rows = db.execute("select name, paused from scheduler.schedules order by name").fetchall()
    assert rows == [("nightly", True), ("weekly", False)]


def test_a_schedule_is_run_now_and_the_run_under_way_named(on: Run, db: Connection) -> None:
    schedule(db, "nightly")
    first = on("schedules", "run", "nightly", "--json").document
    assert first == {"task": 1, "created": True}
    again = on("schedules", "run", "nightly")
    assert again == (0, "1\n", "task 1 of this schedule waits or runs already\n")
    refused(on("schedules", "run", "monthly"), 1, "there is no schedule monthly")
    db.execute(
        "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
        " finished_at = scheduler.now()"
    )
    refused(on("schedules", "run", "nightly"), 1, "is stopped by the dead letter 1: requeue or")
