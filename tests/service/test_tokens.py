"""Tokens: made, kept as digests, listed, revoked; by the package and by the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
from psycopg import Connection

from scheduler.cli import main
from scheduler.service import tokens
from scheduler.service.server import check_role
from scheduler.service.tokens import Caller, Scope, TokenError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command on the test's database: its exit code, data and messages."""
    monkeypatch.setenv("SCHEDULER_DATABASE", dsn)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def test_a_secret_is_kept_as_its_digest_and_found_by_it(db: Connection) -> None:
    secret = tokens.create(db, "one", "shop", [Scope.READ, Scope.ENQUEUE], ["work"])
    assert re.fullmatch(r"lpt_[A-Za-z0-9_-]{43}", secret)
    found = tokens.find(db, tokens.digest(secret))
    assert found == Caller("one", "shop", frozenset({"read", "enqueue"}), frozenset({"work"}))
    [row] = db.execute("select * from scheduler.tokens").fetchall()
    assert secret.encode() not in repr(row).encode()
    assert tokens.find(db, tokens.digest(secret + "x")) is None


def test_tokens_are_listed_by_name_in_whatever_order_they_were_made(db: Connection) -> None:
    for name in ("shop", "billing"):
        tokens.create(db, name, "shop", [Scope.READ])
    assert [token.name for token in tokens.tokens(db)] == ["billing", "shop"]


def test_two_secrets_are_never_the_same(db: Connection) -> None:
    made = {tokens.create(db, f"t{number}", "shop", [Scope.READ]) for number in range(20)}
    assert len(made) == 20


def test_making_and_revoking_are_audited_without_the_secret(db: Connection) -> None:
    secret = tokens.create(db, "one", "shop", [Scope.READ], ["work"])
    assert tokens.revoke(db, "one")
    assert not tokens.revoke(db, "one")
    rows = db.execute("select action, source, role, detail from scheduler.audit order by id")
    assert rows.fetchall() == [
        ("create-token", "shop", "postgres", "one: read; only work"),
        ("revoke-token", "shop", "postgres", "one"),
    ]
    assert secret not in repr(rows)


@pytest.mark.parametrize(
    ("name", "source", "scopes", "kinds", "said"),
    [
        ("", "shop", [Scope.READ], None, "cannot name a token"),
        ("a b", "shop", [Scope.READ], None, "cannot name a token"),
        ("one", "", [Scope.READ], None, "printable characters"),
        ("one", "a\nb", [Scope.READ], None, "printable characters"),
        ("one", "x" * 201, [Scope.READ], None, "printable characters"),
        ("one", "shop", [], None, "needs a scope"),
        ("one", "shop", [Scope.READ], ["a b"], "cannot name a kind"),
    ],
)
def test_a_token_that_cannot_be_meant_is_refused(
    db: Connection,
    name: str,
    source: str,
    scopes: list[Scope],
    kinds: list[str] | None,
    said: str,
) -> None:
    with pytest.raises(ValueError, match=said):
        tokens.create(db, name, source, scopes, kinds)
    assert tokens.tokens(db) == []


@pytest.mark.parametrize(
    ("scopes", "kinds", "length"),
    [
        *[("{}", None, 32), ("{root}", None, 32), ("{read,NULL}", None, 32)],
        *[("{read}", "{}", 32), ("{read}", "{NULL}", 32), ("{read}", None, 31)],
    ],
)
def test_the_table_itself_refuses_what_is_no_token(
    db: Connection, scopes: str, kinds: str | None, length: int
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(
            "select scheduler.create_token('one', %s, 'shop', %s::text[], %s::text[])",
            [b"x" * length, scopes, kinds],
        )


def test_a_name_is_used_once_even_after_it_was_revoked(db: Connection) -> None:
    tokens.create(db, "one", "shop", [Scope.READ])
    tokens.revoke(db, "one")
    with pytest.raises(TokenError, match="a name is used once"):
        tokens.create(db, "one", "shop", [Scope.READ])


def test_the_command_line_shows_a_secret_once(run: Run, db: Connection) -> None:
    code, out, err = run(
        *("token", "create", "one", "--source", "shop", "--scope", "read"),
        *("--scope", "enqueue", "--kind", "work"),
    )
    secret = out.strip()
    assert code == 0
    assert "cannot be shown again" in err
    found = tokens.find(db, tokens.digest(secret))
    assert found is not None
    assert (found.source, sorted(found.scopes)) == ("shop", ["enqueue", "read"])
    code, out, _ = run("token", "list", "--json")
    [listed] = json.loads(out)["tokens"]
    assert (listed["name"], listed["scopes"], listed["kinds"]) == (
        "one",
        ["enqueue", "read"],
        ["work"],
    )
    assert secret not in out
    assert listed["revoked_at"] is None
    assert secret not in run("token", "list")[1]
    assert run("token", "revoke", "one")[:2] == (0, "revoked one\n")
    assert tokens.find(db, tokens.digest(secret)) is None
    code, _, err = run("token", "revoke", "one")
    assert (code, err) == (1, "error: there is no token 'one' to revoke\n")


def test_a_mistake_on_the_command_line_is_one_sentence(run: Run) -> None:
    run("token", "create", "one", "--source", "shop", "--scope", "read")
    code, _, err = run("token", "create", "one", "--source", "shop", "--scope", "read")
    assert code == 1
    assert err.startswith("error: there is or was a token 'one'")
    assert run("token", "create", "two", "--source", "shop", "--scope", "root")[0] == 2
    # A source that was forgotten is no viewer of all.
    for given in ((), ("--source", "shop", "--all-sources")):
        code, _, err = run("token", "create", "two", "--scope", "read", *given)
        assert (code, "either --source NAME or --all-sources" in err) == (2, True)
    assert run("token", "create", "two", "--all-sources", "--scope", "read")[0] == 0
    code, _, err = run("serve")
    assert (code, "no application" in err) == (2, True)


def test_a_role_that_serves_nobody_is_refused_before_anything_listens(
    run: Run, db: Connection, dsn: str
) -> None:
    db.execute("create role loner login")
    db.execute("grant usage on schema scheduler to loner")
    db.execute("grant select on scheduler.migrations to loner")
    try:
        code, _, err = run(
            *("serve", "--app", "tests.service.conftest:REGISTRY"),
            *("--database", psycopg.conninfo.make_conninfo(dsn, user="loner")),
        )
    finally:
        db.execute("drop owned by loner")
        db.execute("drop role loner")
    assert code == 1
    assert "the role loner may not enqueue for the sources of others" in err


def test_a_role_that_serves_others_is_not_refused(http_dsn: str) -> None:
    with psycopg.connect(http_dsn) as connection:
        check_role(connection)


def test_the_core_imports_nothing_of_the_extra() -> None:
    code = (
        "import sys, scheduler, scheduler.cli;"
        "print({'fastapi', 'starlette', 'uvicorn', 'prometheus_client', 'psycopg_pool'}"
        " & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "set()\n"


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("fastapi", ["serve", "--app", "tests.service.conftest:REGISTRY"]),
        ("prometheus_client", ["worker", "tests.scheduler.test_access:REGISTRY"]),
    ],
)
def test_without_the_extra_the_commands_say_what_to_install(
    missing: str, command: list[str]
) -> None:
    if command[0] == "worker":
        command = [*command, "--metrics-port", "9", "--database", "host=127.0.0.1"]
    code = (
        f"import sys; sys.modules[{missing!r}] = None;"
        f" from scheduler.cli import main; main({command!r})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == (
        f"error: the package {missing} is missing: install it with `pip install leaseproof[http]`\n"
    )
