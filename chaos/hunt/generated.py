"""Mutants that nobody thought of: each clause of the core's statements dropped, turned or weakened.

A real parser reads the statements, so that no clause is missed or cut in the wrong place. Those of
the functions in the migrations are cut out for it, with the conditions of IF.

The explorer hunts those of the statements that give out and keep leases and of the functions, and
tests those of the other statements (`tested`).

Left out: tokens, hooks and the audit's guards among the functions, which are no part of a task's
life; and the functions that only refuse (`source_of`, `check_payload`, `check_arrays`): which
arguments each of them refuses is for tests that call it with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple

from sqlglot import exp, parse_one

from chaos.hunt.bodies import Part, parts
from chaos.hunt.functions import functions
from chaos.hunt.tested import TESTED
from chaos.mutants import MUTANTS, Edit, Mutant, Shown
from scheduler.statements import SQL

# What gives out, keeps and ends leases, and what says when to ask for the next.
CORE = (
    "claim",
    "lock_limits",
    "renew",
    "complete",
    "complete_in_transaction",
    "fail",
    "snooze",
    "release",
    "release_claim",
    "reclaim",
    "second_look",
    "next_due",
    "due_schedules",
)
# Statements that put others together: a mutant of a part is a mutant of these, too.
MADE_OF: dict[str, tuple[str, ...]] = {"complete_and_claim": ("complete", "claim")}
# What makes tasks, puts them back, ends them without a lease, and decides which may be made.
FUNCTIONS = (
    "retry_delay",
    "check_kind",
    "take_share",
    "wake",
    "enqueue",
    "enqueue_unique",
    "declare_limits",
    "cancel",
    "requeue",
    "discard",
    "limit_source",
    "declare_schedules",
    "plan_occurrences",
    "pause_schedules",
    "resume_schedules",
    "run_schedule",
    "restrict_kind",
)
_NONE = Shown("none", 0)  # it is the explorer that must show it


class _Change(NamedTuple):
    """What becomes of one node of a statement; `make` changes that node of a copy."""

    about: str
    make: Callable[[exp.Expr], object]


def mutants(file: str) -> list[Mutant]:
    """The mutants of one statement, in the order of its clauses."""
    text = (SQL / f"{file}.sql").read_text()
    # The first line names the statement wherever it is run.
    title = text.partition("\n")[0]
    return _numbered(
        file,
        ((about, Edit(file, text, f"{title}\n{changed}\n")) for about, changed in _variants(text)),
    )


def mutants_of_function(name: str) -> list[Mutant]:
    """The mutants of one function, in the order of its statements and their clauses."""
    file, definition = functions()[name]
    return _numbered(
        f"{name}()",
        (
            (about, Edit(file, definition, definition[: part.start] + new + definition[part.end :]))
            for part in parts(definition)
            for about, new in _variants_of_part(part)
        ),
    )


def _numbered(of: str, edits: Iterable[tuple[str, Edit]]) -> list[Mutant]:
    found = []
    times: Counter[str] = Counter()
    for about, edit in edits:
        times[about] += 1
        number = f" ({times[about]})" if times[about] > 1 else ""
        found.append(Mutant(f"{of}: {about}{number}", None, "", "", _NONE, edits=(edit,)))
    return found


def _variants(text: str) -> Iterator[tuple[str, str]]:
    """The statement with one clause changed, for each clause, and what was changed."""
    tree = parsed(text)
    for at, node in enumerate(tree.dfs()):
        for change in _changes(node):
            copy = tree.copy()
            change.make(next(one for n, one in enumerate(copy.dfs()) if n == at))
            yield change.about, rendered(copy)


def _variants_of_part(part: Part) -> Iterator[tuple[str, str]]:
    short = _short(parsed(part.sql))
    if part.before or part.kind == "condition":
        short = short.removeprefix("SELECT ")
    if part.kind == "condition":
        yield f"if {short}: always", part.written("true")
        yield f"if {short}: never", part.written("false")
    elif part.kind == "statement":
        yield f"without {part.before}{short}", part.nothing()
    for about, sql in _variants(part.sql):
        yield about, part.written(sql)


@cache
def generated() -> dict[str, Mutant]:
    """All of them, by name."""
    return {
        mutant.name: mutant
        for found in (*map(mutants, (*CORE, *TESTED)), *map(mutants_of_function, FUNCTIONS))
        for mutant in found
    }


def find(name: str) -> Mutant:
    """A mutant by its name, from the list or generated."""
    return MUTANTS.get(name) or generated()[name]


# How large a sample is. The parser knows numbers alone there, so it is given one meanwhile.
_SHARE = re.compile(r"system \(.*\)(?=\s+repeatable)", re.S)
_NUMBER = "SYSTEM (0)"


def parsed(text: str) -> exp.Expr:
    """A statement as a tree."""
    tree = parse_one(_SHARE.sub(_NUMBER, text), dialect="postgres")
    if share := _SHARE.search(text):
        tree.meta["share"] = share[0]
    return tree


def rendered(tree: exp.Expr) -> str:
    """A statement as PostgreSQL reads it; whether that is still the same is tested."""
    text = tree.sql(dialect="postgres", comments=False, pretty=True)
    return text.replace(_NUMBER, tree.meta.get("share", _NUMBER))


def _changes(node: exp.Expr) -> Iterator[_Change]:
    if isinstance(node, exp.Filter):
        about = f"without filter {_short(node.expression.this)}"
        yield _Change(about, lambda one: one.replace(one.this.copy()))
    elif isinstance(node, exp.Where) and not isinstance(node.parent, exp.Filter):
        if node.arg_key != "index_predicate":  # which index is meant
            yield from _condition(node.this, "where")
    elif isinstance(node, exp.Having):
        yield from _condition(node.this, "having")
    elif isinstance(node, exp.Join) and node.args.get("on") is not None:
        yield from _condition(node.args["on"], "on")
    elif isinstance(node, exp.Connector):
        yield from _condition(node.this, "")
        yield from _condition(node.expression, "")
    elif isinstance(node, exp.Lock):
        yield _Change("without for update", lambda lock: lock.pop())
        if node.args.get("wait") is False:
            yield _Change("without skip locked", lambda lock: lock.set("wait", None))
    elif isinstance(node, exp.EQ) and node.arg_key == "expressions":
        whole = node.parent
        if isinstance(whole, exp.Update | exp.OnConflict) and len(whole.expressions) > 1:
            yield _Change(f"without set {node.this.sql('postgres')}", lambda one: one.pop())
    elif isinstance(node, exp.OnConflict):
        yield _Change("without on conflict", lambda one: one.pop())
    elif isinstance(node, exp.Distinct):
        yield _Change("without distinct", lambda one: one.pop())
    elif isinstance(node, exp.CTE) and _is_for_its_own_sake(node):
        yield _Change(f"without with {node.alias}", lambda one: one.pop())
    elif isinstance(node, exp.NullSafeNEQ) and isinstance(node.this, exp.Tuple):
        yield from _pairs(node)
    elif type(node) in _TURNS:
        turned = _TURNS[type(node)]
        yield _Change(
            _short(turned(this=node.this.copy(), expression=node.expression.copy())),
            lambda one: one.replace(turned(this=one.this.copy(), expression=one.expression.copy())),
        )
    elif isinstance(node, exp.Add | exp.Sub):
        yield _Change(f"{_short(node)} is its left side", lambda one: one.replace(one.this.copy()))
    elif isinstance(node, exp.Case):
        yield from _cases(node)
    elif isinstance(node, exp.Limit):
        yield _Change(f"without {_short(node)}", lambda limit: limit.pop())
    elif isinstance(node, exp.Order) and node.this is not None:  # inside of an aggregate
        yield _Change(f"without {_short(node)}", lambda order: order.replace(order.this.copy()))
    elif isinstance(node, exp.Order) and not isinstance(node.parent, exp.WithinGroup):
        yield _Change(f"without {_short(node)}", lambda order: order.pop())
    elif isinstance(node, exp.Ordered) and isinstance(node.parent, exp.Order):
        if node.args.get("desc"):
            yield _Change(f"{_short(node.this)} ascending", lambda one: one.set("desc", False))
        else:
            yield _Change(f"{_short(node)} descending", lambda one: one.set("desc", True))
    elif isinstance(node, exp.Greatest | exp.Least | exp.Coalesce) and node.expressions:
        # The first of them alone, and the last alone.
        yield _Change(f"{_short(node)} is its first", lambda one: one.replace(one.this.copy()))
        yield _Change(
            f"{_short(node)} is its last", lambda one: one.replace(one.expressions[-1].copy())
        )


_TURNS: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.LT: exp.LTE,
    exp.LTE: exp.LT,
    exp.GT: exp.GTE,
    exp.GTE: exp.GT,
}


def _condition(node: exp.Expr, clause: str) -> Iterator[_Change]:
    """One condition dropped: what remains is as if it had never been written."""
    if isinstance(node, exp.Connector | exp.Boolean):
        return  # its own parts are dropped one by one; `on true` is none
    about = f"without {clause + ' ' if clause else ''}{_short(node)}"
    if clause in ("where", "having"):
        yield _Change(about, lambda whole: whole.pop())
    elif clause == "on":
        yield _Change(about, lambda join: join.set("on", exp.true()))
    else:
        key = node.arg_key
        other = "expression" if key == "this" else "this"
        yield _Change(about, lambda both: both.replace(both.args[other].copy()))


def _is_for_its_own_sake(node: exp.CTE) -> bool:
    """Whether nothing reads what this part of a WITH returns: it is there for what it writes."""
    return not any(table.name == node.alias for table in node.root().find_all(exp.Table))


def _pairs(node: exp.NullSafeNEQ) -> Iterator[_Change]:
    """Rows that are compared, without one of their columns."""

    def drop(both: exp.Expr, at: int) -> None:
        for row in (both.this, both.expression):
            row.set("expressions", [one for n, one in enumerate(row.expressions) if n != at])

    for at, column in enumerate(node.this.expressions):
        yield _Change(f"compared without {_short(column)}", partial(drop, at=at))


def _cases(node: exp.Case) -> Iterator[_Change]:
    default = node.args.get("default")
    first = node.args["ifs"][0]
    yield _Change(
        f"always {_short(first.args['true'])}",
        lambda one: one.replace(one.args["ifs"][0].args["true"].copy()),
    )
    if default is None:
        yield _Change(f"never {_short(first.args['true'])}", lambda one: one.replace(exp.null()))
    else:
        yield _Change(
            f"always {_short(default)}", lambda one: one.replace(one.args["default"].copy())
        )


def _short(node: exp.Expr) -> str:
    text = " ".join(node.sql(dialect="postgres", comments=False).split())
    return text if len(text) <= 70 else text[:67] + "..."
