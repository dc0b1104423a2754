"""Bad input through the Python API, the command line and the environment: one clear error of the
right class, nothing half-written, and no worker that stumbles over it."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from pydantic import BaseModel, ConfigDict

from chaos.cluster.postgres import Postgres
from chaos.life.clock import Clock
from scheduler import (
    Attempt,
    Every,
    PayloadError,
    Registry,
    RetryPolicy,
    ScheduleError,
    Snooze,
    Unique,
    Worker,
    cancel,
    dead_letters,
    declare_schedules,
    discard,
    enqueue,
    enqueue_many,
    enqueue_unique,
    migrate,
    pause_schedules,
    requeue,
    resume_schedules,
)
from scheduler.cli import main
from scheduler.dispatch import claim, declare_limits, new_owner
from scheduler.finish import snooze
from scheduler.lease import renew
from tests.scheduler.working import SHORT, ignore, kind, outcomes, over, put, running, task, worker
from tests.scheduler.written import copied, unchanged
from tests.waiting import wait_for

WORK = kind()
TEXT = Registry().kind("text", str)(ignore)
LONG = "x" * 1_000_000
DAY = timedelta(days=1)


class Measured(BaseModel):
    """A payload that pydantic writes with NaN, which is no JSON to PostgreSQL."""

    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float


MEASURED = Registry().kind("measured", Measured)(ignore)


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, dt: datetime | None) -> None:
        """Unknown."""

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str:
        """Its name."""
        return "nowhere"


@pytest.fixture(scope="module")
def shared_dsn(migrated: Postgres) -> Iterator[str]:
    """One database for all cases that write nothing."""
    with copied(migrated) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def shared(shared_dsn: str) -> Iterator[Connection]:
    """A connection to it, in autocommit mode."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        put(connection, 15)  # so that the ids 1 to 15 are somebody's
        yield connection


# Registration


def registered(**settings: Any) -> Callable[[], object]:
    """Registers a kind with these settings."""
    return lambda: Registry().kind(**{"name": "work", "payload": int, **settings})(ignore)


def working(**settings: Any) -> Callable[[], object]:
    """Makes a worker with these settings."""
    registry = Registry()
    registry.kind("work", int)(ignore)
    return lambda: Worker(**{"registry": registry, "dsn": "", **settings})


def scheduled(**settings: Any) -> Callable[[], object]:
    """Declares a schedule with these settings."""
    registry = Registry()
    made = registry.kind("work", int)(ignore)
    given = {"name": "nightly", "kind": made, "payload": 1, "rule": Every(DAY), **settings}
    return lambda: registry.schedule(**given)


WRONG: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("kind: no name", registered(name=None), ValueError, "None cannot name a kind"),
    ("kind: bytes", registered(name=b"work"), ValueError, "b'work' cannot name a kind"),
    ("kind: a line's end", registered(name="work\n"), ValueError, "cannot name a kind"),
    ("kind: a long name", registered(name=LONG), ValueError, "cannot name a kind"),
    ("kind: queue", registered(queue=None), ValueError, "None cannot name a queue"),
    ("kind: lease", registered(lease=60), TypeError, "'work': a lease must be of type timedelta"),
    ("kind: retry", registered(retry=0), TypeError, "'work': retry must be of type RetryPolicy"),
    ("kind: half a task", registered(limit=1.5), TypeError, "a limit must be of type int, not 1.5"),
    ("kind: True tasks", registered(limit=True), TypeError, "a limit must be of type int"),
    (
        "kind: no function",
        lambda: Registry().kind("work", int)(5),  # type: ignore[arg-type] # wrong on purpose
        TypeError,
        "handler of kind 'work' must take attempt, payload: 5 is not a callable",
    ),
    (
        "kind: a builtin",
        lambda: Registry().kind("work", int)(dict),  # type: ignore[arg-type] # wrong on purpose
        TypeError,
        "handler of kind 'work' must take attempt, payload: no signature",
    ),
    ("application", lambda: Registry(application=7), ValueError, "7 cannot name an application"),  # type: ignore[arg-type] # wrong on purpose
    ("schedule: name", scheduled(name=None), ValueError, "None cannot name a schedule"),
    ("schedule: kind", scheduled(kind="work"), TypeError, "its kind must be of type Kind"),
    ("schedule: payload", scheduled(payload=LONG * 2), PayloadError, "bytes of JSON, the most is"),
    *[
        (f"retry: {name} {value!r}", lambda it={name: value}: RetryPolicy(**it), error, name)
        for name, value, error in (
            ("max_attempts", 1.5, TypeError),
            ("max_attempts", True, TypeError),
            ("max_attempts", "3", TypeError),
            ("base", 5, TypeError),
            ("cap", None, TypeError),
            ("factor", "2", TypeError),
            ("factor", Decimal(2), TypeError),
            ("factor", 10**400, ValueError),
            ("jitter", Decimal("NaN"), TypeError),
            ("jitter", None, TypeError),
        )
    ],
    ("unique: number", lambda: Unique(7), TypeError, "a unique key must be of type str, not 7"),  # type: ignore[arg-type] # wrong on purpose
    ("unique: bytes", lambda: Unique(b"k"), TypeError, "a unique key must be of type str"),  # type: ignore[arg-type] # wrong on purpose
    ("snooze", lambda: Snooze(5), TypeError, "a snooze must be of type timedelta, not 5"),  # type: ignore[arg-type] # wrong on purpose
    ("worker: registry", working(registry=None), TypeError, "registry must be of type Registry"),
    ("worker: a queue", working(queues="default"), ValueError, "are a list of names"),
    ("worker: queues", working(queues=[5]), ValueError, "a queue has a name of 1 to 100"),
    ("worker: half a slot", working(slots=1.5), TypeError, "slots must be of type int, not 1.5"),
    ("worker: prefetch", working(prefetch="2"), TypeError, "prefetch must be of type int"),
    ("worker: name", working(name=5), ValueError, "a worker's name must be printable text"),
    ("worker: long name", working(name=LONG), ValueError, "printable text of at most 200"),
    ("worker: no dsn", working(dsn=None), TypeError, "dsn must be of type str, not None"),
    ("worker: dsn", working(dsn="sekret"), ValueError, "the dsn is neither a connection URL"),
    ("worker: surrogate", working(dsn="host=\ud800"), ValueError, "the dsn is neither"),
    ("migrate: no dsn", lambda: migrate(None), TypeError, "dsn must be of type str, not None"),  # type: ignore[arg-type] # wrong on purpose
    ("migrate: dsn", lambda: migrate("sekret"), ValueError, "the dsn is neither a connection URL"),
]


@pytest.mark.parametrize(
    ("make", "error", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_mistake_in_the_code_is_told_where_it_is_made(
    make: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        make()
    assert type(refused.value) is error
    assert len(str(refused.value)) < 500
    assert "sekret" not in str(refused.value)


# Calls on a database


def asked(act: Callable[..., object], value: object) -> Callable[[Connection], object]:
    """Calls an operator's function with something in place of a list."""
    return lambda db: act(db, value)


CALLS: list[tuple[str, Callable[[Connection], object], type[Exception], str]] = [
    ("kind by name", lambda db: enqueue(db, "work", 1), TypeError, "kind must be of type Kind"),  # type: ignore[arg-type] # wrong on purpose
    ("handler", lambda db: enqueue(db, ignore, 1), TypeError, "kind must be of type Kind"),  # type: ignore[arg-type] # wrong on purpose
    ("letters", lambda db: enqueue_many(db, TEXT, "abc"), TypeError, "must be a list of payloads"),
    ("a dict", lambda db: enqueue_many(db, TEXT, {"a": 1}), TypeError, "a list of payloads"),
    ("priority", lambda db: enqueue(db, WORK, 1, priority=7), ValueError, "not a valid Priority"),  # type: ignore[arg-type] # wrong on purpose
    (
        "no offset",
        lambda db: enqueue(db, WORK, 1, run_at=datetime(2030, 1, 1, tzinfo=Nowhere())),
        ScheduleError,
        "has no time zone",
    ),
    (
        "key",
        lambda db: enqueue_unique(db, WORK, 1, "key"),  # type: ignore[arg-type] # wrong on purpose
        TypeError,
        r"unique must be of type Unique, not 'key': give Unique\(key\)",
    ),
    (
        "NaN",
        lambda db: enqueue(db, MEASURED, Measured(value=math.nan)),
        PayloadError,
        'invalid input syntax for type json: Token "NaN" is invalid',
    ),
    (
        "numbers written out",
        lambda db: enqueue(db, WORK, [1e308] * 10_000),
        PayloadError,
        "more than 1048576 digits when written out: give them as text",
    ),
    ("registry", lambda db: declare_schedules(db, None), TypeError, "must be of type Registry"),  # type: ignore[arg-type] # wrong on purpose
    *[
        (f"{act.__name__} {value!r}"[:40], asked(act, value), error, "ids? of|task's id|iterable")
        for act in (cancel, requeue, discard)
        for value, error in (
            ("12", TypeError),  # the database would take this for the tasks 1 and 2
            (["12"], TypeError),
            (b"12", TypeError),
            ([1.5], TypeError),  # and this for the task 2
            ([1, True], TypeError),
            ([1, None], TypeError),
            ([1, 0], ValueError),
            ([1, 2**63], ValueError),
            (5, TypeError),
        )
    ],
    *[
        (f"{act.__name__} {value!r}"[:40], asked(act, value), ValueError, "name")
        for act in (pause_schedules, resume_schedules)
        for value in ("nightly", ["a\0"], ["\ud800"], [5], [""], [LONG])
    ],
    *[
        (
            f"dead_letters {value!r}"[:40],
            lambda db, value=value: list(dead_letters(db, value)),
            ValueError,
            "a kind has a name of 1 to 100 characters that PostgreSQL can store",
        )
        for value in (5, "a\0", "\ud800", LONG)
    ],
]


@pytest.mark.parametrize(
    ("act", "error", "said"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS]
)
def test_a_call_that_cannot_be_meant_is_refused_and_writes_nothing(
    shared: Connection,
    act: Callable[[Connection], object],
    error: type[Exception],
    said: str,
) -> None:
    with unchanged(shared):
        with pytest.raises(error, match=said) as refused:
            act(shared)
        assert type(refused.value) is error
        assert len(str(refused.value)) < 500


def test_a_connection_whose_encoding_lacks_a_character_is_told(shared_dsn: str) -> None:
    with (
        psycopg.connect(shared_dsn, autocommit=True, client_encoding="LATIN1") as connection,
        unchanged(connection),
    ):
        for act in (
            lambda: enqueue(connection, TEXT, "\N{EURO SIGN}"),
            lambda: enqueue_unique(connection, TEXT, "a", Unique("\N{EURO SIGN}")),
        ):
            with pytest.raises(PayloadError, match=r"cannot hold '€': set it to UTF8"):
                act()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.characters(categories=["Cs"])
    | st.sampled_from(["\0", "\\u0000", "password", "1e131071", "\ufffe"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # nothing is kept
)
@given(JSON)
def test_any_payload_is_refused_as_such_or_can_be_claimed_as_it_was_read(
    shared: Connection, payload: object
) -> None:
    with shared.transaction(force_rollback=True):
        try:
            with shared.transaction():
                number = enqueue(shared, WORK, payload)
        except PayloadError:
            return
        attempts = claim(shared, new_owner("w"), {"work": DAY}, 100, 0.0)
        [claimed] = [attempt.payload for attempt in attempts if attempt.task == number]
        assert exact(claimed) == exact(WORK.dump(payload))


def exact(text: str) -> object:
    """JSON with its numbers as they stand: 1e20 is 1 and twenty zeros, as PostgreSQL writes it."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


# Time zones


def test_a_day_has_24_hours_in_any_session_s_time_zone(
    db: Connection, dsn: str, clock: Clock
) -> None:
    # Berlin's clock is put forward in the night to come. A lease that ended after 23 hours would be
    # given to another while its holder, whose clock counts seconds, still believes in it.
    clock.advance(datetime(2026, 3, 28, 12, tzinfo=UTC) - clock.now)
    with psycopg.connect(dsn, autocommit=True, options="-c timezone=Europe/Berlin") as session:
        for number in (enqueue(session, WORK, 1, delay=DAY), put(session)[0]):
            due = task(db, number).next_run_at - clock.now
        assert due == timedelta(0)
        assert task(db, 1).next_run_at == clock.now + DAY
        [attempt] = claim(session, new_owner("w"), {"work": DAY}, 10, 0.0)
        assert task(db, attempt.task).lease_expires_at == clock.now + DAY
        assert set(renew(session, [attempt.lease], [DAY]).values()) == {clock.now + DAY}
        assert snooze(session, [attempt.lease], [DAY]) == {attempt.task}
        assert task(db, attempt.task).next_run_at == clock.now + DAY


def test_an_offset_that_postgresql_would_not_read_is_a_time_like_any_other(
    shared: Connection,
) -> None:
    at = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59)))
    with shared.transaction(force_rollback=True):
        assert task(shared, enqueue(shared, WORK, 1, run_at=at)).next_run_at == at


# Workers


class Silent(Snooze):
    """A snooze that was never told for how long."""

    def __init__(self) -> None:
        pass


def test_a_snooze_without_a_delay_fails_its_attempt_and_its_slot_goes_on(
    db: Connection, dsn: str
) -> None:
    registry = Registry()

    @registry.kind("work", bool, retry=RetryPolicy(max_attempts=1))
    def work(attempt: Attempt, bad: bool) -> None:
        if bad:
            raise Silent

    bad, good = enqueue(db, work, True), enqueue(db, work, False)
    with running(worker(registry, dsn, slots=1)):
        over(db, good)
    assert task(db, bad).status == "dead"


def test_a_worker_of_an_older_version_leaves_new_kinds_to_others_and_burns_no_attempt(
    db: Connection, dsn: str
) -> None:
    older, newer = Registry(application="older"), Registry(application="newer")
    known = older.kind("known", int)(ignore)
    fresh = newer.kind("fresh", int, lease=SHORT, limit=3)(ignore)
    newer.schedule("often", fresh, 1, Every(timedelta(seconds=1)))
    declare_schedules(db, newer)
    declare_limits(db, {"fresh": 3})
    left, waiting = enqueue_many(db, fresh, [1, 2])
    [attempt] = claim(
        db, new_owner("gone"), {"fresh": timedelta(milliseconds=1)}, 1, 0.0, ["fresh"]
    )
    assert attempt.task == left
    with running(worker(older, dsn)):
        wait_for(lambda: outcomes(db, left) == ["reclaimed"], "the lease to be taken back")
        wait_for(
            lambda: db.execute("select 1 from scheduler.tasks where schedule = 'often'").fetchone(),
            "the other's schedule to be planned",
        )
        over(db, enqueue(db, known, 1))
        over(db, enqueue(db, known, 2))
        assert db.execute(
            "select distinct status, attempts from scheduler.tasks where kind = 'fresh'"
            " and id <> %s",
            [left],
        ).fetchall() == [("pending", 0)]
        assert (task(db, left).status, task(db, left).attempts) == ("pending", 1)
    with running(worker(newer, dsn)):
        over(db, waiting)
        over(db, left)
    assert (task(db, waiting).attempts, outcomes(db, waiting)) == (1, ["completed"])
    assert outcomes(db, left) == ["reclaimed", "completed"]


# Environments

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "german, latin, berlin": {
        "PGDATESTYLE": "German",
        "PGCLIENTENCODING": "LATIN1",
        "PGTZ": "Europe/Berlin",
        "TZ": "America/Caracas",
    },
    "slashes, no encoding, a zone without a name": {
        "PGDATESTYLE": "SQL, DMY",
        "PGCLIENTENCODING": "SQL_ASCII",
        "PGTZ": "<+03>-03",
        "TZ": "nonsense/zone",
        "PGOPTIONS": "-c intervalstyle=sql_standard -c standard_conforming_strings=off"
        " -c extra_float_digits=-15 -c default_transaction_isolation=serializable"
        " -c array_nulls=off",
    },
}


class Answer(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(
    shared: Connection,
    shared_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Answer]:
    """Runs commands in this process on the shared database, from a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SCHEDULER_DATABASE", shared_dsn)

    def command(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Answer(int(ended.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], str]:
    """Writes a module that commands of this test can import, and returns its name."""

    def write(text: str) -> str:
        name = f"app_{uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


APP = """
from scheduler import Every, Registry
from datetime import timedelta
app = Registry(application={0!r})
@app.kind({0!r}, str)
def handler(attempt, payload): pass
app.schedule({0!r}, handler, "", Every(timedelta(days=1)))
"""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands_and_workers_do_the_same_in_any_environment(
    run: Callable[..., Answer],
    module: Callable[[str], str],
    shared: Connection,
    shared_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    made = module(APP.format(f"kind-{uuid4().hex}"))
    registry: Registry = importlib.import_module(made).app
    [of] = registry
    for variable, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(variable, value)
    caplog.set_level(logging.WARNING, "scheduler")
    answer = run("enqueue", of.name, '"\N{EURO SIGN}\\" é"', "--app", f"{made}:app")
    assert (answer.code, answer.err) == (0, "")
    number = int(answer.out)
    with running(worker(registry, shared_dsn)):
        over(shared, number)
    assert [it.getMessage() for it in caplog.records if it.name == "scheduler"] == []
    assert outcomes(shared, number) == ["completed"]
    shown = json.loads(run("history", number, "--json").out)
    assert shown["task"]["payload"] == '\N{EURO SIGN}" é'
    assert datetime.fromisoformat(shown["task"]["finished_at"]) == task(shared, number).finished_at
    assert run("history", number).code == 0
    assert of.name in run("schedules", "list").out
    assert run("dead-letter", "list").code == 0
    assert of.name in run("status").out


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PGCLIENTENCODING": "nonsense", "PGTZ": "nonsense"}, 'parameter "TimeZone": "nonsense"'),
        ({"PGOPTIONS": "-c nonsense=1"}, 'unrecognized configuration parameter "nonsense"'),
        ({"PGOPTIONS": "nonsense"}, "invalid command-line argument for server process: nonsense"),
        ({"SCHEDULER_DATABASE": "host=\udcff"}, "is neither a connection URL"),
        ({"SCHEDULER_DATABASE": ""}, "no database: give --database URL"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_an_environment_that_cannot_be_meant_is_one_sentence(
    run: Callable[..., Answer],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    said: str,
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    answer = run("status")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err
    assert (answer.code, answer.out) in ((1, ""), (2, ""))


# The command line


@pytest.mark.parametrize(
    "words",
    [
        ["dead-letter", "list", "--kind", "\udcff"],
        ["dead-letter", "export", "--kind", "\udcff"],
        ["dead-letter", "requeue", "--all", "--kind", ""],
        ["dead-letter", "discard", "--all", "--kind", "x" * 101],
        ["schedules", "pause", "\udcff"],
        ["schedules", "resume", ""],
        ["token", "revoke", "\udcff"],
        ["token", "create", "\udcff", "--source", "shop", "--scope", "read"],
        ["token", "create", "a b", "--source", "shop", "--scope", "read"],
        ["token", "create", "one", "--source", "\udcff", "--scope", "read"],
        ["token", "create", "one", "--source", "shop", "--scope", "read", "--kind", "a b"],
        ["token", "create", "one", "--all-sources", "--scope", "enqueue"],
        ["dead-letter", "hooks", "retry", "\udcff"],
        ["dead-letter", "hooks", "forget", "\udcff"],
        ["audit", "--action", "\udcff"],
        ["serve", "--app", "APP", "--host", "a..b"],
        ["serve", "--app", "APP", "--host", "a" * 64],
        ["serve", "--app", "APP", "--host", "\udcff"],
        ["status", "--database", "postgresql://\udcff"],
        ["worker", "APP", "--name", "\udcff"],
        ["worker", "APP", "--queue", "\udcff"],
        ["enqueue", "\udcff", "1", "--app", "APP"],
        ["enqueue", "text", '"a"', "--app", "APP", "--at", "\udcff"],
        ["enqueue", "text", '"a"', "--app", "APP", "--unique-key", "\udcff"],
        ["enqueue", "text", '"a"', "--app", "\udcff:app"],
    ],
    ids=lambda words: ascii(" ".join(words))[:60],
)
def test_words_that_cannot_be_meant_are_wrong_usage_in_one_sentence(
    run: Callable[..., Answer],
    module: Callable[[str], str],
    shared: Connection,
    words: list[str],
) -> None:
    app = f"{module(APP.format('text'))}:app"
    with unchanged(shared):
        answer = run(*[app if word == "APP" else word for word in words])
    assert answer.err.startswith("error: ")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
            "fails to import: E: it cannot be shown",
        ),
        ("raise ValueError('x' * 3_000_000)", "fails to import: ValueError: xxx"),
        ("def __getattr__(name): raise RuntimeError('later')", "RuntimeError: later"),
        ("import sys; sys.modules[__name__] = 7", "should be a scheduler.Registry"),
        ("from scheduler import Registry\napp = Registry", "but it is a "),
        ("import os; os.chdir('/'); app = None", "but it is a NoneType"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
    ids=["unspeakable", "long", "lazy", "replaced", "class", "elsewhere", "recursion"],
)
@pytest.mark.parametrize("command", [["worker"], ["doctor", "--app"]], ids=" ".join)
def test_a_module_that_is_no_application_is_wrong_usage_in_one_sentence(
    run: Callable[..., Answer],
    module: Callable[[str], str],
    command: list[str],
    text: str,
    said: str,
) -> None:
    answer = run(*command, f"{module(text)}:app")
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert len(answer.err) < 2_000
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)


def test_a_registry_that_the_module_replaces_is_the_one_that_stands(
    run: Callable[..., Answer], module: Callable[[str], str]
) -> None:
    name = module(APP.format("text") + "app = Registry()\n")
    answer = run("worker", f"{name}:app")
    assert "the registry has no kinds: a worker would have nothing to run" in answer.err
    assert answer.code == 2


def test_a_directory_that_is_gone_is_said(
    run: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    answer = run("worker", "app:app")
    assert answer.err == (
        "error: the current directory does not exist any more: change to another\n"
    )
    assert answer.code == 2


def test_closed_streams_are_said(
    run: Callable[..., Answer], module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = f"{module(APP.format('text'))}:app"
    monkeypatch.setattr(sys, "stdin", None)
    answer = run("enqueue", "text", "-", "--app", app)
    assert (answer.code, answer.err) == (
        2,
        "error: PAYLOAD_JSON is '-', but standard input is closed\n",
    )
    monkeypatch.setattr(sys, "stdout", None)
    for words in (["status"], ["status", "--json"], ["doctor"], ["roles", "--print"]):
        answer = run(*words)
        assert (answer.code, answer.err.splitlines()[-1]) == (
            1,
            "error: cannot write the answer: standard output is closed",
        )


def program(shell: str, dsn: str, **environment: str) -> subprocess.Popen[str]:
    """A shell command in which `$S` is the program."""
    return subprocess.Popen(
        ["sh", "-c", f"exec {shell}"],
        env={**os.environ, "S": f"{sys.executable} -m scheduler", "SCHEDULER_DATABASE": dsn}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full_and_a_terminal_without_unicode_are_no_traceback(
    shared: Connection, shared_dsn: str
) -> None:
    number = enqueue(shared, TEXT, "é\N{EURO SIGN}")
    with (
        program("$S status > /dev/full", shared_dsn) as full,
        program(f"$S history {number}", shared_dsn, PYTHONIOENCODING="ascii") as plain,
    ):
        out, err = full.communicate(timeout=60)
        assert (full.returncode, err) == (
            1,
            "error: cannot write the answer: No space left on device\n",
        )
        out, err = plain.communicate(timeout=60)
        assert (plain.returncode, err) == (0, "")
        assert r"\xe9\u20ac" in out


def test_a_worker_without_any_open_stream_drains_on_a_signal(
    shared: Connection, shared_dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP.format("streamless"))
    name = f"w{uuid4().hex}"
    with program(
        f"$S worker app:app --name {name} <&- >&- 2>&-", shared_dsn, PYTHONPATH=str(tmp_path)
    ) as started:
        try:
            over(shared, enqueue(shared, streamless(), "a"))
            started.send_signal(signal.SIGTERM)
            assert started.wait(60) == 0
        finally:
            started.kill()


def streamless() -> Any:
    """The kind of that worker, as this process has it."""
    return Registry().kind("streamless", str)(ignore)


def test_a_dsn_given_as_keywords_is_as_good_as_a_url(shared_dsn: str) -> None:
    registry = Registry()
    registry.kind("work", int)(ignore)
    assert Worker(registry, make_conninfo(shared_dsn, options="-c datestyle=German")).name
