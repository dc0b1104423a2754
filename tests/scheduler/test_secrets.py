"""Secrets of kinds: references that only their kind resolves, and values that nothing repeats."""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from psycopg import Connection

from scheduler import Attempt, Registry, RetryPolicy, SecretError, enqueue, enqueue_many
from scheduler.finish import LONGEST_ERROR
from scheduler.outcome import describe
from scheduler.secret_references import LARGEST_SECRET, Secrets
from tests.scheduler.working import over, running, take_one, task, worker

ONCE = RetryPolicy(max_attempts=1)
VALUE = "s3cr\\t \"é'/+key"


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment variable with a secret in it; its name."""
    monkeypatch.setenv("TEST_SECRET", VALUE)
    return "TEST_SECRET"


@pytest.mark.parametrize("style", ["kind", "async", "transactional"])
def test_a_handler_of_any_style_gets_its_kind_s_secrets_and_no_others(
    db: Connection, dsn: str, variable: str, tmp_path: Path, style: str
) -> None:
    (tmp_path / "cert").write_text("line one\nline two\n")
    registry, got = Registry(), list[str]()
    secrets = {"stripe": f"env:{variable}", "cert": f"file:{tmp_path}/cert"}

    def ask(attempt: Attempt) -> None:
        got.extend([attempt.secret("stripe"), attempt.secret("cert")])

    if style == "kind":
        registry.kind("work", int, secrets=secrets)(lambda attempt, payload: ask(attempt))
    elif style == "async":

        @registry.kind("work", int, secrets=secrets)
        async def work(attempt: Attempt, payload: int) -> None:
            ask(attempt)
    else:
        registry.transactional("work", int, secrets=secrets)(
            lambda attempt, payload, connection: ask(attempt)
        )
    other = registry.kind("other", int, retry=ONCE)(lambda attempt, payload: ask(attempt))
    first, second = enqueue(db, registry["work"], 1), enqueue(db, other, 1)
    with running(worker(registry, dsn)):
        over(db, first)
        over(db, second, "dead")
    assert got == [VALUE, "line one\nline two"]
    error = task(db, second).last_error or ""
    assert "kind 'other' declares no secret 'stripe'; it declares: none" in error


def test_a_secret_is_read_anew_for_each_attempt(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, got = Registry(), list[str]()

    @registry.kind("work", int, secrets={"key": "env:TEST_SECRET"})
    def work(attempt: Attempt, payload: int) -> None:
        got.append(attempt.secret("key"))
        monkeypatch.setenv("TEST_SECRET", "the second")

    monkeypatch.setenv("TEST_SECRET", "the first")
    tasks = enqueue_many(db, work, [1, 2])
    with running(worker(registry, dsn, slots=1)):
        for number in tasks:
            over(db, number)
    assert got == ["the first", "the second"]


def test_outside_a_worker_there_are_no_secrets(db: Connection) -> None:
    enqueue(db, Registry().kind("work", int)(lambda attempt, payload: None), 1)
    with pytest.raises(SecretError, match="'key' can be had only while a worker runs"):
        take_one(db).secret("key")


def test_no_value_reaches_last_error_run_log_or_logs(
    db: Connection, dsn: str, variable: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    kept: list[str] = []

    @registry.kind("work", int, retry=ONCE, secrets={"stripe": f"env:{variable}"})
    def work(attempt: Attempt, payload: int) -> None:
        kept.append(attempt.secret("stripe"))
        try:
            raise KeyError(kept[0])
        except KeyError as cause:
            raise RuntimeError(
                f"401 for {kept[0]}, {[kept[0]]!r}, {json.dumps(kept[0])}, {quote_plus(kept[0])}"
            ) from cause

    @registry.kind("later", int, retry=ONCE)
    def later(attempt: Attempt, payload: int) -> None:
        raise ValueError(kept[0])  # a client that was kept, say

    caplog.set_level(logging.DEBUG)
    with running(worker(registry, dsn)):
        first = enqueue(db, work, 1)
        over(db, first, "dead")
        second = enqueue(db, later, 1)
        over(db, second, "dead")
    logged = db.execute("select error from scheduler.run_log").fetchall()
    texts = [task(db, first).last_error, task(db, second).last_error, caplog.text, *logged[0]]
    for text in texts:
        assert text is not None
        assert "s3cr" not in text
        assert "[secret stripe]" in text
    assert "caused by KeyError" in (task(db, first).last_error or "")


def test_a_secret_is_not_cut_into_a_half_that_nothing_finds() -> None:
    secrets = Secrets()
    os.environ["TEST_SECRET"] = "abcdefghij" * 5
    try:
        value = secrets.resolve("work", {"key": "env:TEST_SECRET"}, "key")
    finally:
        del os.environ["TEST_SECRET"]
    for filler in range(LONGEST_ERROR // 2 - 60, LONGEST_ERROR // 2, 7):
        assert "abcd" not in describe(ValueError("x" * filler + value), secrets.redact)


@pytest.mark.parametrize(
    ("value", "text", "redacted"),
    [
        ("abcd", "xabcdx", "x[secret key]x"),
        ("abc", "abc", "abc"),
        ("-----BEGIN\nMIIabcd\n", "at MIIabcd", "at [secret key]"),
        ("secret", "a secret secret", "a [secret key] [secret key]"),
        ("a.b*c", "aXbbc a.b*c", "aXbbc [secret key]"),
    ],
    ids=["word", "too short", "a line", "its own mark", "a pattern"],
)
def test_what_is_redacted(
    monkeypatch: pytest.MonkeyPatch, value: str, text: str, redacted: str
) -> None:
    monkeypatch.setenv("TEST_SECRET", value)
    secrets = Secrets()
    assert secrets.redact(text) == text
    assert secrets.resolve("work", {"key": "env:TEST_SECRET"}, "key") == value
    assert secrets.redact(text) == redacted


def test_the_shorter_of_two_secrets_does_not_leave_the_rest_of_the_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = Secrets()
    for name, value in (("SHORT", "abcd"), ("LONG", "abcdefgh"), ("SHORT", "abcdef")):
        monkeypatch.setenv(name, value)
        secrets.resolve("work", {name: f"env:{name}"}, name)
    assert secrets.redact("abcdefgh abcdefg") == "[secret LONG] [secret SHORT]g"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory with files that are no secrets."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_bytes(b"x" * (LARGEST_SECRET + 1))
    (tmp_path / "bytes").write_bytes(b"sesame\xff")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("env:NOT_SET_ANYWHERE", "the variable is not set"),
        ("env:BYTES", "it is not UTF-8"),
        ("file:{}/missing", "No such file or directory"),
        ("file:{}/empty", "it is empty"),
        ("file:{}/large", f"it has more than {LARGEST_SECRET} bytes"),
        ("file:{}/bytes", "it is not UTF-8"),
        ("file:{}/folder", "Is a directory|no regular file"),
        ("file:{}/pipe", "it is no regular file"),
    ],
)
def test_a_secret_that_cannot_be_had_fails_the_attempt_with_its_reference_and_no_value(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, reference: str, why: str
) -> None:
    monkeypatch.setitem(os.environ, "BYTES", "sesame\udcff")
    reference = reference.format(hostile)
    with pytest.raises(
        SecretError, match=f"'key' of kind 'work', {reference}, .*: ({why})"
    ) as failed:
        Secrets().resolve("work", {"key": reference}, "key")
    assert "sesame" not in describe(failed.value)


def test_an_attempt_without_its_secret_says_so_in_its_error(db: Connection, dsn: str) -> None:
    registry = Registry()

    @registry.kind("work", int, retry=ONCE, secrets={"key": "env:NOT_SET_ANYWHERE"})
    def work(attempt: Attempt, payload: int) -> None:
        attempt.secret("key")

    number = enqueue(db, work, 1)
    with running(worker(registry, dsn, grace=timedelta(seconds=5))):
        over(db, number, "dead")
    assert (task(db, number).last_error or "").startswith(
        "scheduler.errors.SecretError: the secret 'key' of kind 'work', env:NOT_SET_ANYWHERE,"
        " cannot be had: the variable is not set"
    )


@pytest.mark.parametrize("style", ["kind", "transactional"])
@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ({"key": "sk_live_sesame"}, "the secret 'key' must be a reference, env:NAME or file:"),
        ({"key": "vault:sesame"}, "must be a reference"),
        ({"key": "env:"}, "must be a reference"),
        ({"key": "env:1A=sesame"}, "must be a reference"),
        ({"key": "file:sesame"}, "must be a reference"),
        ({"key": "file:/a\0sesame"}, "must be a reference"),
        ({"key": "file:/\ud800"}, "must be a reference"),
        ({"key": 7}, "must be a reference"),
        ({"": "env:A"}, "'' cannot name a secret"),
        ({"x" * 101: "env:A"}, "cannot name a secret"),
        ({7: "env:A"}, "7 cannot name a secret"),
        (["key"], "takes a dict of names to references"),
    ],
    ids=repr,
)
def test_what_is_no_reference_is_refused_at_registration_and_not_repeated(
    style: str, secrets: Any, message: str
) -> None:
    register = getattr(Registry(), style)("work", int, secrets=secrets)
    with pytest.raises(ValueError, match=message) as refused:
        register(lambda attempt, payload, connection=None: None)
    assert "sesame" not in str(refused.value)
