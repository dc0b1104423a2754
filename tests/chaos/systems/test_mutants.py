"""Planted bugs: each changes exactly what it says, for as long as it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.invariants.judge import INVARIANTS
from chaos.systems import UnknownSystemError, system
from chaos.systems.mutants import MUTANTS, Mutant, planted
from scheduler.statements import statement


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_statement_while_it_is_planted_and_no_other(mutant: Mutant) -> None:
    before, other = statement(mutant.statement), statement("status")
    with planted(mutant):
        changed = statement(mutant.statement)
        assert changed == before.replace(mutant.old.encode(), mutant.new.encode())
        assert changed != before
        assert statement("status") == other
    assert statement(mutant.statement) == before
    assert mutant.invariant in INVARIANTS


def test_a_mutant_whose_clause_is_not_there_is_refused_rather_than_counted() -> None:
    stale = replace(MUTANTS["claim-without-lock"], old="for update nowait\n")
    with pytest.raises(ValueError, match=r"does not stand in claim\.sql"), planted(stale):
        pass


def test_no_mutant_is_the_genuine_scheduler() -> None:
    before = statement("claim")
    with planted(None):
        assert statement("claim") is before


def test_systems_are_found_by_name_and_unknown_ones_are_refused() -> None:
    assert system("leaseproof").name == "leaseproof"
    for name in MUTANTS:
        assert system(f"leaseproof:{name}").name == f"leaseproof:{name}"
    for unknown in ("", "other", "leaseproof:", "leaseproof:other", "other:claim-without-lock"):
        with pytest.raises(UnknownSystemError, match="known systems"):
            assert system(unknown)
