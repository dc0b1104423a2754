"""Planted bugs by name, in files by what they are bugs of."""

from chaos.mutants import claims, endings, enqueueing, leases, wholes
from chaos.mutants.mutant import Change, Edit, Mutant, Patch, Shown, planted

MUTANTS = {
    mutant.name: mutant
    for family in (claims, leases, endings, enqueueing, wholes)
    for mutant in family.ALL
}

__all__ = ["MUTANTS", "Change", "Edit", "Mutant", "Patch", "Shown", "planted"]
