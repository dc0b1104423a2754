"""The functions of the database called by hand, with what no client of this package would send:
refused in a sentence or by a named constraint, with nothing written; and no queue is wedged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import Connection, sql

from chaos.cluster.postgres import Postgres
from scheduler.dispatch import claim, declare_limits, new_owner, next_due
from scheduler.lease import reclaim
from scheduler.schedules import list_schedules, plan_due
from tests.scheduler.roles import logged_in
from tests.scheduler.written import contents, copied, unchanged

REFUSED = "22023"  # invalid_parameter_value: the functions' own refusal of an argument

# The arguments of each function, as SQL, in order; each case changes some.
ENQUEUE = {
    "kind": "'work'",
    "queue": "'default'",
    "priority": "1::smallint",
    "payloads": "array['1']",
    "run_at": "null",
    "delay": "'0'",
    "max_attempts": "3",
    "base": "1",
    "factor": "2",
    "cap": "60",
    "jitter": "0",
    "source": "null",
}
UNIQUE = {
    **{("payload" if name == "payloads" else name): value for name, value in ENQUEUE.items()},
    "payload": "'1'",
    "key": "'k'",
    "until": "'finished'",
    "period": "null",
}
UNIQUE["source"] = UNIQUE.pop("source")  # the last one
LIMITS = {"kinds": "array['other']", "limits": "array[1]"}
DECLARE = {
    "application": "'shop'",
    "names": "array['nightly']",
    "kinds": "array['work']",
    "queues": "array['default']",
    "priorities": "array[1]::smallint[]",
    "payloads": "array['1']",
    "max_attempts": "array[3]",
    "bases": "array[1]::float8[]",
    "factors": "array[2]::float8[]",
    "caps": "array[60]::float8[]",
    "jitters": "array[0]::float8[]",
    "rules": "array['every 60s']",
    "timezones": "array['UTC']",
    "missed": "array['once']",
    "on_dead": "array['stop']",
}
PLAN = {
    "names": "array['nightly']",
    "rules": "array['every 60s']",
    "timezones": "array['UTC']",
    "read": "array(select next_at from scheduler.schedules)",
    "occurrences": "array[now()]",
    "following": "array[now() + interval '1 minute']",
}
ARGUMENTS = {
    "enqueue": ENQUEUE,
    "enqueue_unique": UNIQUE,
    "declare_limits": LIMITS,
    "declare_schedules": DECLARE,
    "plan_occurrences": PLAN,
    "cancel": {"ids": "array[1]::bigint[]"},
    "requeue": {"ids": "array[1]::bigint[]"},
    "discard": {"ids": "array[1]::bigint[]"},
    "pause_schedules": {"names": "array['nightly']"},
    "resume_schedules": {"names": "array['nightly']"},
    "run_schedule": {"name": "'nightly'"},
    "limit_source": {"capped": "'shop'", "cap": "1"},
    "restrict_kind": {"restricted": "'work'", "allowed": "array['postgres']"},
    "add_run_log_partitions": {"ahead": "0"},
}


def call(function: str, **changed: str) -> bytes:
    """The SQL that calls a function with these arguments instead of harmless ones."""
    given = ARGUMENTS[function]
    assert set(changed) <= set(given)
    return f"select scheduler.{function}({', '.join({**given, **changed}.values())})".encode()


@pytest.fixture(scope="module")
def everything(migrated: Postgres) -> Iterator[Connection]:
    """One database for all cases, with a row in every table; each case undoes what it does."""
    with (
        copied(migrated) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute(call("limit_source", capped="'postgres'", cap="100"))
        connection.execute(call("restrict_kind", restricted="'theirs'", allowed="array['shop']"))
        connection.execute(call("declare_limits", kinds="array['limited']", limits="array[2]"))
        connection.execute(call("declare_schedules"))
        connection.execute(call("enqueue", payloads="array['1', '2']"))
        connection.execute(call("enqueue_unique", key="'taken'"))
        yield connection


@pytest.fixture
def db(everything: Connection) -> Iterator[Connection]:
    """That database, in a transaction that is rolled back."""
    with everything.transaction(force_rollback=True):
        yield everything


def works(db: Connection) -> None:
    """Whatever a worker does by itself does not fail: there is no row that it stumbles over."""
    kinds = {"work": timedelta(minutes=1), "limited": timedelta(minutes=1)}
    declare_limits(db, {"work": None, "limited": 3})
    db.execute("update scheduler.tasks set next_run_at = least(next_run_at, scheduler.now())")
    next_due(db, kinds)
    plan_due(db, 50)
    list_schedules(db)
    while attempts := claim(db, new_owner("w"), kinds, 100, 0.0, ["limited"]):
        assert {attempt.kind for attempt in attempts} <= set(kinds)
    db.execute("update scheduler.tasks set lease_expires_at = '2000-01-01' where status='running'")
    while reclaim(db, 100):
        pass


def test_the_arguments_that_the_cases_change_are_harmless(db: Connection) -> None:
    for function in ARGUMENTS:
        db.execute(call(function))
    works(db)


LONG = "repeat('x', 1000000)"
CASES = [
    # function, what is changed, the SQLSTATE, and the constraint or words of the message
    ("enqueue", {"kind": "null"}, "23502", "kind"),
    ("enqueue", {"kind": "''"}, "23514", "kind_is_short"),
    ("enqueue", {"kind": LONG}, "23514", "kind_is_short"),
    ("enqueue", {"kind": "'theirs'"}, "LP003", "may not enqueue tasks of kind theirs"),
    ("enqueue", {"queue": "null"}, "23502", "queue"),
    ("enqueue", {"queue": LONG}, "23514", "queue_is_short"),
    ("enqueue", {"priority": "null"}, "23502", "priority"),
    ("enqueue", {"priority": "'-1'::smallint"}, "23514", "priority_is_a_level"),
    ("enqueue", {"payloads": "array['1', null]"}, "23502", "payload"),
    ("enqueue", {"payloads": "array['1', '{']"}, "22P02", "invalid input syntax for type json"),
    ("enqueue", {"payloads": "array['NaN']"}, "22P02", "invalid input syntax for type json"),
    ("enqueue", {"payloads": r"""array['"\u0000"']"""}, "22P05", "unsupported Unicode escape"),
    ("enqueue", {"payloads": r"""array['"\ud800"']"""}, "22P02", "invalid input syntax"),
    ("enqueue", {"payloads": "array['1e131072']"}, "22003", "value overflows numeric format"),
    ("enqueue", {"payloads": "array[repeat('[', 100000)]"}, "54001", "stack depth"),
    ("enqueue", {"payloads": f"array['\"' || {LONG} || {LONG} || '\"']"}, "LP005", "2000002 bytes"),
    ("enqueue", {"payloads": "array_fill('1'::text, array[101])"}, "LP004", "may have 100 tasks"),
    ("enqueue", {"run_at": "'infinity'"}, "23514", "time_is_readable"),
    ("enqueue", {"run_at": "'-infinity'"}, "23514", "time_is_readable"),
    ("enqueue", {"run_at": "'0044-03-15 BC'"}, "23514", "time_is_readable"),
    ("enqueue", {"run_at": "'294276-01-01'"}, "23514", "time_is_readable"),
    ("enqueue", {"delay": "null"}, "23502", "next_run_at"),
    ("enqueue", {"delay": "'-1000 years'"}, "23514", "time_is_readable"),
    ("enqueue", {"delay": "'178000000 years'"}, "22008", "timestamp out of range"),
    ("enqueue", {"max_attempts": "null"}, "23502", "max_attempts"),
    ("enqueue", {"max_attempts": "-1"}, "23514", "attempts_within_cap"),
    ("enqueue", {"base": "null"}, "23502", "backoff_base"),
    *[
        ("enqueue", {name: f"'{value}'"}, "23514", "backoff_is_bounded")
        for name in ("base", "factor", "cap", "jitter")
        for value in ("NaN", "infinity", "-infinity", "-1")
    ],
    ("enqueue_unique", {"payload": "null"}, "23502", "payload"),
    ("enqueue_unique", {"key": "null"}, REFUSED, "a unique key has 1 to 500 characters"),
    ("enqueue_unique", {"key": "null", "until": "null"}, REFUSED, "a unique key has 1 to 500"),
    ("enqueue_unique", {"key": "''"}, REFUSED, "a unique key has 1 to 500 characters"),
    ("enqueue_unique", {"key": LONG}, REFUSED, "a unique key has 1 to 500 characters"),
    ("enqueue_unique", {"until": "null"}, "23514", "key_has_a_scope"),
    ("enqueue_unique", {"until": "'never'"}, "23514", "key_has_a_scope"),
    *[
        (
            "enqueue_unique",
            {"until": "'period'", "period": period},
            REFUSED,
            "the period of a unique key is from 1 second to 36525 days",
        )
        for period in ("null", "'0'", "'-1 hour'", "'1 microsecond'", "'178000000 years'")
    ],
    *[
        ("declare_limits", changed, REFUSED, "a value in each of the other arrays")
        for changed in (
            {"kinds": "null"},
            {"kinds": "array['limited', null]", "limits": "array[1, 1]"},
            {"kinds": "array['other', 'limited']"},  # or the limit of the second would be lifted
            {"limits": "array[1, 2]"},
            {"limits": "null"},
        )
    ],
    (
        "declare_limits",
        {"kinds": "array['limited', 'limited']", "limits": "array[null, 5]"},
        REFUSED,
        "the kind 'limited' is named twice",
    ),
    ("declare_limits", {"limits": "array[0]"}, "23514", "max_running"),
    ("declare_schedules", {"application": "null"}, REFUSED, "an application, which has a name"),
    ("declare_schedules", {"application": "'other'"}, "LP009", "belongs to application shop"),
    ("declare_schedules", {"application": LONG, "names": "array['new']"}, "23514", "application_"),
    *[
        ("declare_schedules", {name: "null"}, REFUSED, "a value in each of the other arrays")
        for name in DECLARE
        if name != "application"
    ],
    ("declare_schedules", {"names": "'{}'"}, REFUSED, "a value in each of the other arrays"),
    ("declare_schedules", {"names": "array['a', 'b']"}, REFUSED, "each of the other arrays"),
    ("declare_schedules", {"payloads": "array[null]"}, "23502", "payload"),
    ("declare_schedules", {"payloads": "array['{']"}, "22P02", "invalid input syntax"),
    ("declare_schedules", {"kinds": "array['theirs']"}, "LP003", "may not enqueue tasks of kind"),
    ("declare_schedules", {"rules": f"array[{LONG}]"}, "23514", "rule_is_short"),
    ("declare_schedules", {"factors": "array['NaN'::float8]"}, "23514", "backoff_is_bounded"),
    (
        "declare_schedules",
        {name: f"{value} || {value}" for name, value in DECLARE.items() if name != "application"},
        REFUSED,
        "the schedule 'nightly' is named twice",
    ),
    *[
        ("plan_occurrences", {name: "null"}, REFUSED, "a value in each of the other arrays")
        for name in PLAN
    ],
    ("plan_occurrences", {"following": "array[null::timestamptz]"}, "23502", "next_at"),
    (
        "plan_occurrences",
        {"following": "array['infinity'::timestamptz]"},
        "23514",
        "time_is_readable",
    ),
    ("plan_occurrences", {"occurrences": "array['infinity'::timestamptz]"}, "23514", "_readable"),
    (
        "plan_occurrences",
        {name: f"{value} || {value}" for name, value in PLAN.items()},
        REFUSED,
        "the schedule 'nightly' is named twice",
    ),
    ("limit_source", {"capped": "null"}, REFUSED, "a source has a name of 1 to 200 characters"),
    ("limit_source", {"cap": "-1"}, REFUSED, "a cap of at least 0"),
    ("restrict_kind", {"restricted": LONG}, REFUSED, "a kind has a name of 1 to 100 characters"),
    ("restrict_kind", {"allowed": "null"}, REFUSED, "each of its sources 1 to 200"),
    ("restrict_kind", {"allowed": "array['shop', null]"}, REFUSED, "each of its sources 1 to 200"),
    ("add_run_log_partitions", {"ahead": "null"}, REFUSED, "0 to 120 months ahead, not null"),
    ("add_run_log_partitions", {"ahead": "-1"}, REFUSED, "0 to 120 months ahead, not -1"),
]


def named(case: object) -> str | None:
    """A short id for what a case changes."""
    if isinstance(case, dict):
        return ",".join(f"{name}={value}" for name, value in case.items())[:60]
    return None


@pytest.mark.parametrize(("function", "changed", "state", "said"), CASES, ids=named)
def test_what_cannot_be_meant_is_refused_and_nothing_written(
    db: Connection, function: str, changed: dict[str, str], state: str, said: str
) -> None:
    with unchanged(db):
        with pytest.raises(psycopg.Error) as refused, db.transaction():
            db.execute(call(function, **changed))
        assert refused.value.sqlstate == state
        message = refused.value.diag.message_primary or ""
        assert said in message
        assert len(message) < 200


NOTHING = [
    ("enqueue", {"payloads": "null"}),
    ("enqueue", {"payloads": "'{}'"}),
    ("declare_limits", {"kinds": "'{}'", "limits": "'{}'"}),
    ("plan_occurrences", {**dict.fromkeys(PLAN, "'{}'")}),
    ("plan_occurrences", {"read": "array['infinity'::timestamptz]"}),
    *[
        (function, {name: array})
        for function in ("cancel", "requeue", "discard", "pause_schedules", "resume_schedules")
        for name in ARGUMENTS[function]
        for array in ("null", "'{}'", "'{null}'", "'{{-1},{0}}'")
    ],
    ("run_schedule", {"name": "null"}),
    ("run_schedule", {"name": LONG}),
]


@pytest.mark.parametrize(("function", "changed"), NOTHING, ids=named)
def test_what_names_nothing_does_nothing(
    db: Connection, function: str, changed: dict[str, str]
) -> None:
    with unchanged(db):
        db.execute(call(function, **changed))


@pytest.mark.parametrize(
    ("payload", "refused"),
    [
        ("'[' || repeat('1e131071,', 20000) || '1]'", True),
        ("'[' || repeat('1e-16000,', 20000) || '1]'", True),
        ("'[' || repeat('1E+308,', 4000) || '1]'", True),
        ("'{\"a\": [' || repeat('{\"b\": 1e+0131071},', 20000) || '1]}'", True),
        ("'[' || repeat('12345e-10,', 5000) || '1]'", False),
        ("'[\"' || repeat('1e131071,', 20000) || '\"]'", False),
        ("'[' || repeat('1,', 2000) || '\"1e131071\", 1e131071]'", False),
    ],
    ids=["huge", "tiny", "many", "nested", "scientific", "in a text", "one"],
)
def test_numbers_that_a_claim_could_not_write_out_are_refused(
    db: Connection, payload: str, refused: bool
) -> None:
    # One such row would fail each claim of its kind, with whatever else is claimed, for ever.
    for function, changed in (
        ("enqueue", {"payloads": f"array[{payload}]"}),
        ("enqueue_unique", {"payload": payload, "key": "'n'"}),
        ("declare_schedules", {"payloads": f"array[{payload}]"}),
    ):
        if not refused:
            db.execute(call(function, **changed))
            continue
        with unchanged(db), pytest.raises(psycopg.DatabaseError) as error, db.transaction():
            db.execute(call(function, **changed))
        assert error.value.sqlstate == "LP005"
        assert "more than 1048576 digits" in str(error.value)
    works(db)


def test_a_source_that_is_stated_has_a_name_that_it_could_be_capped_by(
    migrated: Postgres,
) -> None:
    with copied(migrated) as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute(
            "do $$ begin create role scheduler_http; exception when duplicate_object then end $$"
        )
        db.execute("grant usage on schema scheduler to scheduler_http")
        db.execute("grant execute on function scheduler.enqueue to scheduler_http")
        with logged_in(db, dsn, "scheduler_http") as session, unchanged(db):
            for name in ("''", LONG):
                with pytest.raises(psycopg.DatabaseError, match="name of 1 to 200 characters"):
                    session.execute(call("enqueue", source=name))


HOSTILE = st.one_of(
    st.just("null"),
    st.sampled_from(
        ["'{}'", "''", "'x'", "'NaN'", "'infinity'", "'-infinity'", "0", "-1", "1e308"]
    ),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).map(
        lambda text: sql.Literal(text).as_string()
    ),
    st.lists(
        st.sampled_from(
            ["null", "1", "-1", "nightly", "work", "NaN", "infinity", '""', "[1e131071]"]
        ),
        max_size=4,
    ).map(lambda values: f"'{{{','.join(values)}}}'"),
    st.sampled_from(["array[array['1', '2'], array['3', '4']]", LONG, f"array[{LONG}]"]),
)


TIMES = st.sampled_from(["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'294276-01-01'", "null"])


def called(function: str) -> st.SearchStrategy[bytes]:
    """Calls of a function with an argument or two that may be anything."""
    changes = {name: TIMES if name == "run_at" else HOSTILE for name in ARGUMENTS[function]}
    names = st.lists(st.sampled_from(sorted(changes)), min_size=1, max_size=2, unique=True)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: changes[name] for name in chosen})
    ).map(lambda changed: call(function, **changed))


def sqlstate(db: Connection, statement: bytes) -> str | None:
    """With which SQLSTATE a statement is refused, or None."""
    try:
        with db.transaction():
            db.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate or ""
    return None


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example is rolled back
)
@given(st.tuples(*map(called, sorted(set(ARGUMENTS) - {"add_run_log_partitions"}))))
def test_whatever_is_called_writes_nothing_or_what_workers_can_work_with(
    everything: Connection, statements: tuple[bytes, ...]
) -> None:
    with everything.transaction(force_rollback=True):
        for statement in statements:
            before = contents(everything)
            refusal = sqlstate(everything, statement)
            if refusal is not None:
                assert refusal[:2] in ("22", "23", "42", "54", "LP")  # none of an internal error
                assert contents(everything) == before
        works(everything)
