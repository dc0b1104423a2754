"""Mutants that nobody thought of: each clause of the core's statements dropped, turned or weakened.

A real parser reads the statements, so that no clause is missed or cut in the wrong place. The
functions in the migrations are PL/pgSQL, which it does not read; they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from sqlglot import exp, parse_one

from chaos.mutants import MUTANTS, Edit, Mutant, Shown
from scheduler.statements import SQL

# What gives out, keeps and ends leases.
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
)
_NONE = Shown("none", 0)  # it is the explorer that must show it


class _Change(NamedTuple):
    """What becomes of one node of a statement; `make` changes that node of a copy."""

    about: str
    make: Callable[[exp.Expr], object]


def mutants(file: str) -> list[Mutant]:
    """The mutants of one statement, in the order of its clauses."""
    text = (SQL / f"{file}.sql").read_text()
    tree = parse_one(text, dialect="postgres")
    # The first line names the statement wherever it is run.
    title = text.partition("\n")[0]
    found = []
    times: Counter[str] = Counter()
    for at, node in enumerate(tree.dfs()):
        for change in _changes(node):
            copy = tree.copy()
            change.make(next(one for n, one in enumerate(copy.dfs()) if n == at))
            times[change.about] += 1
            number = f" ({times[change.about]})" if times[change.about] > 1 else ""
            edit = Edit(file, text, f"{title}\n{rendered(copy)}\n")
            found.append(
                Mutant(f"{file}: {change.about}{number}", None, "", "", _NONE, edits=(edit,))
            )
    return found


@cache
def generated() -> dict[str, Mutant]:
    """All of them, by name."""
    return {mutant.name: mutant for file in CORE for mutant in mutants(file)}


def find(name: str) -> Mutant:
    """A mutant by its name, from the list or generated."""
    return MUTANTS.get(name) or generated()[name]


def rendered(tree: exp.Expr) -> str:
    """A statement as PostgreSQL reads it; whether that is still the same is tested."""
    return tree.sql(dialect="postgres", comments=False, pretty=True)


def _changes(node: exp.Expr) -> Iterator[_Change]:
    if isinstance(node, exp.Where):
        yield from _condition(node.this, "where")
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
        if isinstance(node.parent, exp.Update) and len(node.parent.expressions) > 1:
            yield _Change(f"without set {node.this.sql('postgres')}", lambda one: one.pop())
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
    elif isinstance(node, exp.Order):
        yield _Change(f"without {_short(node)}", lambda order: order.pop())
    elif isinstance(node, exp.Ordered):
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
    if isinstance(node, exp.Connector):
        return  # its own parts are dropped one by one
    about = f"without {clause + ' ' if clause else ''}{_short(node)}"
    if clause == "where":
        yield _Change(about, lambda where: where.pop())
    elif clause == "on":
        yield _Change(about, lambda join: join.set("on", exp.true()))
    else:
        key = node.arg_key
        other = "expression" if key == "this" else "this"
        yield _Change(about, lambda both: both.replace(both.args[other].copy()))


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
