"""Planted bugs: each changes exactly what it says, for as long as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import psycopg
import pytest

import scheduler
from chaos.invariants.judge import INVARIANTS
from chaos.mutants import MUTANTS, Edit, Mutant, Patch, planted
from chaos.scenario import load_scenario
from chaos.systems import UnknownSystemError, system
from chaos.systems.leaseproof import Leaseproof
from scheduler.statements import statement
from tests.chaos.documented import failure_modes

BOTH = "complete_and_claim"  # made of the two others


def texts() -> dict[str, bytes]:
    """All SQL that this process would run now, by file."""
    files = sorted((Path(scheduler.__file__).parent / "sql").glob("*.sql"))
    migrations = sys.modules["scheduler.migrate"].migrations()
    return {
        **{file.stem: statement(file.stem) for file in files},
        **{f"migrations/{one.version:04}_{one.name}": one.text for one in migrations},
    }


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_files_while_it_is_planted_and_no_other(mutant: Mutant) -> None:
    before = texts()
    both = before.pop(BOTH)
    expected = dict(before)
    for file, old, new in mutant.edits:
        expected[file] = expected[file].replace(old.encode(), new.encode())
    with planted(mutant):
        during = texts()
    parts = {edit.file for edit in mutant.edits} & {"complete", "claim"}
    assert (during.pop(BOTH) != both) == bool(parts)
    assert during == expected
    assert {file for file in during if during[file] != before[file]} == {
        edit.file for edit in mutant.edits
    }
    assert texts() == {**before, BOTH: both}
    assert mutant.edits or mutant.patches
    assert mutant.invariant in INVARIANTS


def test_a_mutant_whose_clause_is_not_there_is_refused_rather_than_counted() -> None:
    for file in ("claim", "migrations/0001_core"):
        stale = replace(MUTANTS["claim-without-lock"], edits=(Edit(file, "nowhere\n", ""),))
        with pytest.raises(ValueError, match=rf"does not stand in {file}\.sql"), planted(stale):
            pass


@pytest.mark.parametrize(
    "patch",
    [patch for mutant in MUTANTS.values() for patch in mutant.patches],
    ids=lambda patch: patch.target,
)
def test_a_patch_replaces_its_target_while_it_is_planted(patch: Patch) -> None:
    before = resolve_name(patch.target)
    with planted(replace(MUTANTS["claim-without-lock"], patches=(patch,))):
        assert resolve_name(patch.target) is not before
    assert resolve_name(patch.target) is before


@pytest.mark.parametrize("target", ["scheduler.nowhere:claim", "scheduler.slots:Slots.nowhere"])
def test_a_patch_whose_target_is_not_there_is_refused_and_leaves_nothing(target: str) -> None:
    before = texts()
    stale = replace(
        MUTANTS["claim-without-lock"], patches=(Patch(target, lambda genuine: genuine),)
    )
    with pytest.raises((ImportError, AttributeError)), planted(stale):
        pass
    assert texts() == before


ROOT = Path(__file__).parents[2]
# The harm that their rows name cannot come about here; docs/how-queues-break.md says why.
ANOTHER_INVARIANT_SHOWS_IT = {
    "never-renews",
    "snooze-lowers-the-token",
    "stops-renewing-at-shutdown",
    "forgets-the-rest-at-shutdown",
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_the_scenario_that_shows_a_planted_bug_is_about_its_invariant(mutant: Mutant) -> None:
    scenario = load_scenario(ROOT / "scenarios" / f"{mutant.shown_by.scenario}.yaml")
    assert mutant.invariant in scenario.invariants
    assert 0 < mutant.shown_by.scale <= 1


def test_the_documented_failure_modes_name_the_bugs_that_are_planted_for_them() -> None:
    rows = failure_modes()
    assert sorted(rows) == list(range(1, 48))
    for mutant in MUTANTS.values():
        if mutant.row is not None:
            _, _, invariants, scenarios, mutants = rows[mutant.row]
            assert f"`{mutant.name}`" in mutants
            assert f"`{mutant.shown_by.scenario}`" in scenarios
            shown = f"`{mutant.invariant}`" in invariants
            assert shown is (mutant.name not in ANOTHER_INVARIANT_SHOWS_IT)
    named = {name for cells in rows.values() for name in re.findall(r"`([^`]+)`", cells[4])}
    assert named == {mutant.name for mutant in MUTANTS.values() if mutant.row is not None}


def test_fifteen_failure_modes_and_more_are_planted_and_caught_by_their_own_invariant() -> None:
    caught = MUTANTS.keys() - ANOTHER_INVARIANT_SHOWS_IT
    rows = {MUTANTS[name].row for name in caught} - {None}
    assert len(rows) >= 15


def test_two_edits_of_one_file_both_count() -> None:
    edits = Edit("status", "select", "SELECT"), Edit("status", "SELECT", "Select")
    with planted(replace(MUTANTS["claim-without-lock"], edits=edits)):
        assert b"Select" in statement("status")


def test_a_database_is_migrated_to_the_mutants_schema(empty_dsn: str) -> None:
    with planted(MUTANTS["keys-without-an-index"]):
        scheduler.migrate(empty_dsn)
    with psycopg.connect(empty_dsn) as connection:
        found = connection.execute(
            "select indisunique from pg_index where indexrelid = 'scheduler.tasks_key'::regclass"
        ).fetchall()
    assert found == [(False,)]


def test_a_mutant_whose_process_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from chaos.mutants import MUTANTS, planted\n"
        "with planted(MUTANTS['claim-without-lock']):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_no_mutant_is_the_genuine_scheduler() -> None:
    before = statement("claim")
    with planted(None):
        assert statement("claim") is before


def test_systems_are_found_by_name_and_unknown_ones_are_refused() -> None:
    known = {"leaseproof": None, **{f"leaseproof:{name}": MUTANTS[name] for name in MUTANTS}}
    for name, mutant in known.items():
        found = system(name)
        assert isinstance(found, Leaseproof)
        assert found.change is mutant
    for unknown in ("", "other", "leaseproof:", "leaseproof:other"):
        with pytest.raises(UnknownSystemError, match="known systems"):
            system(unknown)
