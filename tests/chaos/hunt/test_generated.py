"""The generated mutants: each is a statement that the server accepts, and not the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from psycopg import Connection

from chaos.hunt.bodies import parts
from chaos.hunt.by_tests import ROOT
from chaos.hunt.functions import functions, replaced, standing
from chaos.hunt.generated import (
    CORE,
    FUNCTIONS,
    MADE_OF,
    generated,
    mutants,
    mutants_of_function,
    parsed,
    rendered,
)
from chaos.hunt.tested import NOT_YET, TESTED
from chaos.mutants import MUTANTS, Edit, planted
from scheduler.statements import SQL, statement

VALUES: dict[str, object] = {
    "limit": 3,
    "kinds": ["job"],
    "owner": "a/1",
    "leases": ["30 s"],
    "floor_kinds": ["job"],
    "floor_priorities": [1],
    "floor_times": ["2026-01-01 00:00:00+00"],
    "floor_ids": [1],
    "age": "500 ms",
    "margin": "1 s",
    "tasks": [1],
    "tokens": [1],
    "owners": ["a/1"],
    "errors": ["no"],
    "delays": ["5 s"],
    "task": 1,
    "token": 1,
    "idle": "30s",
    "limited": ["job"],
    "after_time": "2026-01-01 00:00:00+00",
    "after_name": "",
    "action": "cancel",
    "after": "1",
    "after_id": 1,
    "after_in": "1",
    "attempts": 1,
    "before": 9,
    "delay": "5 s",
    "delivery": 1,
    "error": "no",
    "hold": "5 s",
    "hook": "pager",
    "kind": "job",
    "most": 3,
    "most_attempts": 20,
    "name": "hourly",
    "pages": 9,
    "queue": "default",
    "seen": "1:1:",
    "source": "shop",
    "status": "dead",
    "until": "9:9:",
}


def values_of(file: str) -> dict[str, object]:
    """`after` is an id or a name in most, and a time in one."""
    return VALUES | ({"after": VALUES["after_time"]} if file == "throughput" else {})


def plan(db: Connection, text: str, values: Mapping[str, object] = VALUES) -> list[str]:
    """How the server would execute it: every condition, lock, order and limit it understood."""
    rows = db.execute(b"explain (verbose, costs off) " + text.encode(), values)
    return [line for (line,) in rows]


def test_each_statement_that_has_a_clause_to_change_is_in_one_list_of_who_hunts_it() -> None:
    listed = Counter([*CORE, *TESTED, *MADE_OF, *NOT_YET])
    assert max(listed.values()) == 1
    assert all(NOT_YET.values())
    files = [file.relative_to(SQL).with_suffix("") for file in SQL.rglob("*.sql")]
    statements = {str(file) for file in files if file.parts[0] != "migrations"}
    assert listed.keys() <= statements
    left = statements - listed.keys()
    assert [name for name in sorted(left) if mutants(name)] == []


@pytest.mark.parametrize("file", MADE_OF["complete_and_claim"])
def test_what_is_made_of_a_statement_is_made_of_its_mutants_too(db: Connection, file: str) -> None:
    made: dict[bytes, str] = {statement("complete_and_claim"): "nothing"}
    for mutant in mutants(file):
        with planted(mutant):
            both = statement("complete_and_claim")
        assert both not in made, (mutant.name, made[both])
        assert plan(db, both.decode()), mutant.name
        made[both] = mutant.name


def test_a_statement_of_another_form_is_no_part_of_one() -> None:
    reads = replace(MUTANTS["claim-without-lock"], edits=(Edit("claim", "update", "select"),))
    with (
        planted(reads),
        pytest.raises(ValueError, match=r"claim\.sql is no statement that changes"),
    ):
        statement("complete_and_claim")


def test_the_tests_that_hunt_a_statements_mutants_are_there() -> None:
    for files in TESTED.values():
        assert all((ROOT / "tests" / file).is_file() for file in files)


@pytest.mark.parametrize("file", [*CORE, *TESTED])
def test_what_the_parser_writes_is_for_the_server_what_it_has_read(
    file: str, db: Connection
) -> None:
    text = (SQL / f"{file}.sql").read_text()
    values = values_of(file)
    assert plan(db, rendered(parsed(text)), values) == plan(db, text, values)


def test_every_generated_mutant_is_a_statement_that_the_server_accepts(db: Connection) -> None:
    for mutant in generated().values():
        [edit] = mutant.edits
        if "/" in edit.file:
            with standing(db, replaced(mutant) or {}):
                continue
        assert plan(db, edit.new, values_of(edit.file)), mutant.name


def test_no_two_generated_mutants_are_alike_and_none_is_the_original() -> None:
    texts = Counter(mutant.edits[0].new for mutant in generated().values())
    assert max(texts.values()) == 1
    for file in (*CORE, *TESTED):
        text = (SQL / f"{file}.sql").read_text()
        title = text.partition("\n")[0]
        assert f"{title}\n{rendered(parsed(text))}\n" not in texts


def test_every_conjunct_of_a_fence_is_dropped_once() -> None:
    names = [mutant.name for mutant in mutants("renew")]
    for conjunct in (
        "on task.id = held.id",
        "task.lease_token = held.token",
        "task.lease_owner = held.owner",
    ):
        assert f"renew: without {conjunct.removeprefix('on ')}" in names
    assert "renew: without where task.id = mine.id" in names
    assert {"renew: without for update", "renew: without skip locked"} <= set(names)


def test_the_statements_of_a_function_and_what_its_ifs_ask_are_mutated() -> None:
    names = {mutant.name for mutant in mutants_of_function("take_share")}
    assert {
        "take_share(): without name = task_source",
        "take_share(): without outstanding + wanted <= max_outstanding",
        "take_share(): outstanding + wanted < max_outstanding",
        "take_share(): if found: always",
        "take_share(): if cap IS NOT NULL: never",
    } <= names
    names = {mutant.name for mutant in mutants_of_function("cancel")}
    assert {"cancel(): without for update", "cancel(): without with logged"} <= names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_cut_into_pieces_that_lie_one_after_the_other(name: str) -> None:
    _, definition = functions()[name]
    found = parts(definition)
    assert found
    ends = [0, *(part.end for part in found)]
    assert all(end < part.start < part.end for end, part in zip(ends, found, strict=False))


def test_a_mutant_of_a_function_stands_in_the_database_for_as_long_as_it_is_hunted(
    db: Connection,
) -> None:
    mutant = generated()["check_kind(): without source = task_source"]
    [(name, definition)] = (replaced(mutant) or {}).items()
    source = b"select prosrc from pg_proc where proname = 'check_kind'"
    genuine = db.execute(source).fetchone()
    with standing(db, {name: definition}):
        assert db.execute(source).fetchone() != genuine
    assert db.execute(source).fetchone() == genuine


def test_a_generated_mutant_keeps_its_statements_name() -> None:
    genuine = statement("complete").partition(b"\n")[0]
    with planted(mutants("complete")[0]):
        assert statement("complete").partition(b"\n")[0] == genuine
