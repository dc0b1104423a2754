"""The explorer over a correct variant: every program that runs what it changes is searched.

As far as by `chaos hunt`, and on its stages. What the hunt adds for mutants is left out: it fails
who waits for a lock where the scheduler as it is passes over it, and a variant may do that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from chaos.explore.errors import ExplorerError
from chaos.hunt.explorer import Baseline, Stages, baseline
from chaos.mutants import planted
from chaos.variants import UNMODIFIED, Variant
from chaos.variants.tried import Alarm, Tried
from chaos.variants.variant import forget_marks, marks_here

_VIOLATIONS = tuple(f"  {what}: " for what in ("invariant", "at-end", "actor", "stuck"))


class Asked(NamedTuple):
    """A variant and the programs that it is to be searched with."""

    variant: Variant
    programs: tuple[str, ...]


def asked(variant: Variant, baselines: Sequence[Baseline], most: int | None) -> Asked:
    """The programs that run what a variant changes: first those that together run all of it, then
    the cheapest; so many at most."""
    if not variant.explored:
        return Asked(variant, ())
    files = frozenset(edit.file for edit in variant.edits)
    everywhere = bool(variant.patches) or any("/" in file for file in files)
    # Some compare all that is answered and changed with a text, the end of each lease too: a
    # variant may have another, and be right.
    judging = [one for one in baselines if not one.name.startswith("told_")]
    ranked = sorted(judging, key=lambda one: one.seconds)
    first: list[str] = []
    others: list[str] = []
    left = set(files)
    for one in ranked:
        if everywhere or one.statements & files:
            (first if one.statements & left else others).append(one.name)
            left -= one.statements
    return Asked(variant, tuple([*first, *others][:most]))


def as_it_is(baselines: Sequence[Baseline]) -> Tried:
    """The unmodified scheduler, which all programs were searched with."""
    return Tried(
        UNMODIFIED.name,
        len(baselines),
        sum(one.schedules for one in baselines),
        alarms=tuple(_alarm(one) for one in baselines if one.alarm),
        seconds=sum(one.seconds for one in baselines),
    )


def search(what: Asked, stages: Stages) -> Tried:
    """Search the programs with the variant planted in this process."""
    variant, programs = what
    began = time.monotonic()
    found: list[Baseline] = []
    alarms: list[Alarm] = []
    broke: list[str] = []
    forget_marks()
    own = bool(variant.settings) or any("/" in edit.file for edit in variant.edits)
    on = Stages(partial(_create, variant, stages.create)) if own else stages
    with planted(variant):
        for name in programs:
            try:
                stage = on.of(name)
                stage.known, stage.strict = False, False
                stage.statements.clear()
                one = baseline(name, on)
            except AssertionError as error:  # how a program begins is the scheduler's work, too
                alarms.append(Alarm(f"explorer: {name}", str(error), "before the first step"))
            except (ExplorerError, psycopg.Error, OSError) as error:
                broke.append(f"{name}: {' '.join(str(error).split())}")
                on.drop(name)
            else:
                found.append(one)
                if one.alarm:
                    alarms.append(_alarm(one))
            if own:  # nobody else may meet it, and a server has room for so many sessions only
                on.drop(name)
    return Tried(
        variant.name,
        len(found),
        sum(one.schedules for one in found),
        alarms=tuple(alarms),
        unmet=tuple(_unmet(variant, found)) if programs else (),
        broke=tuple(broke),
        seconds=time.monotonic() - began,
    )


def _create(variant: Variant, create: Callable[[], str]) -> str:
    """An empty database with the variant's settings."""
    dsn = create()
    database = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
    with psycopg.connect(dsn, autocommit=True) as admin:
        for name, value in variant.settings.items():
            admin.execute(
                sql.SQL("alter database {} set {} = {}").format(
                    database, sql.Identifier(name), sql.Literal(value)
                )
            )
    return dsn


def _unmet(variant: Variant, found: Sequence[Baseline]) -> Iterator[str]:
    """Which changes no program ran. That settings are in force is shown by how they are set: in the
    database, which refuses what it does not know."""
    ran = frozenset[str]().union(*(one.statements for one in found))
    for file in sorted({edit.file for edit in variant.edits if "/" not in edit.file} - ran):
        yield f"no program of the explorer ran {file}.sql"
    for target in sorted({patch.target for patch in variant.code} - marks_here()):
        yield f"no program of the explorer called {target}"


def _alarm(one: Baseline) -> Alarm:
    schedule, *events = one.alarm.splitlines()
    # The violation follows the steps, and may be of several lines.
    said = next((line for line in events if line.startswith(_VIOLATIONS)), one.alarm)
    return Alarm(f"explorer: {one.name}", said.strip(), schedule)
