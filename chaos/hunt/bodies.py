"""What stands in the body of a function: its statements and conditions, each cut out for a parser.

PL/pgSQL around them is known only as far as the scheduler's functions use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of a definition that is SQL: `definition[start:end]`.

    sql: as a statement that a parser reads. before, after: what the piece has besides, before in
    place of the word `select`. kind: an expression or a condition is what such a `select` selects;
    the last statement is what an SQL function or a query returns.
    """

    start: int
    end: int
    sql: str
    before: str
    after: str
    plpgsql: bool
    kind: str  # "statement", "last", "condition" or "expression"

    def written(self, sql: str) -> str:
        """The piece with another statement in it."""
        if self.before or self.kind in ("condition", "expression"):
            sql = re.sub(r"^SELECT\s+", "", sql)
        return f"{self.before}{sql}{self.after}"

    def nothing(self) -> str:
        """What stands for the piece if it is left out, in either language."""
        return "null" if self.plpgsql else "select"


def parts(definition: str) -> list[Part]:
    """All of them, in their order."""
    if "$$" not in definition:
        start = definition.index("\n    return ") + len("\n    return ")
        return [_expression(definition, start, len(definition) - 1, "expression")]
    start, end = definition.index("$$") + 2, definition.rindex("$$")
    pieces = list(_split(definition, start, end))
    if "language sql" in definition:
        kinds = ["statement"] * (len(pieces) - 1) + ["last"]
        return [
            Part(start, end, definition[start:end], "", "", False, kind)
            for (start, end), kind in zip(pieces, kinds, strict=True)
        ]
    return [part for piece in _after_declarations(definition, pieces) for part in piece]


# What a piece of PL/pgSQL begins with, besides what is SQL.
_SPACE = re.compile(r"(?:\s+|--[^\n]*\n|#\w+ \w+\n)+")
_WORDS = re.compile(
    r"(?:begin|loop|else|end if|end loop|end|exception when \w+ then|for \w+ in \d+\.\.\d+ loop)\b"
)
_IF = re.compile(r"(?:els)?if\b")
_SKIPPED = re.compile(r"(?:raise|return|continue)\b(?! query)")
_QUERY = re.compile(r"return query\s+")
_ASSIGNED = re.compile(r"\w+ := ")
_INTO = re.compile(r"(?<!insert)\s+into ([a-z_]+(?:, [a-z_]+)*)(?=\s|$)")


def _after_declarations(text: str, pieces: list[tuple[int, int]]) -> Iterator[Iterator[Part]]:
    begun = False
    for start, end in pieces:
        begun = begun or text.startswith("begin", start)
        if begun:
            yield _of_piece(text, start, end)


def _of_piece(text: str, start: int, end: int) -> Iterator[Part]:
    while start < end:
        if found := _SPACE.match(text, start, end) or _WORDS.match(text, start, end):
            start = found.end()
        elif found := _IF.match(text, start, end):
            condition = found.end() + 1
            start = text.index("then", condition) + len("then")
            yield _expression(text, condition, start - len("then"), "condition")
        elif _SKIPPED.match(text, start, end):
            return
        else:
            yield _statement(text, start, end)
            return


def _statement(text: str, start: int, end: int) -> Part:
    piece = text[start:end]
    if found := _ASSIGNED.match(piece):
        return Part(start, end, f"select {piece[found.end() :]}", found[0], "", True, "statement")
    if piece.startswith("perform "):
        return Part(start, end, f"select {piece[8:]}", "perform ", "", True, "statement")
    if found := _QUERY.match(piece):  # stays what it is, in front of any statement
        return Part(start + found.end(), end, piece[found.end() :], "", "", True, "last")
    if found := _INTO.search(piece):
        rest = piece[: found.start()] + piece[found.end() :]
        return Part(start, end, rest, "", f"\ninto {found[1]}", True, "statement")
    return Part(start, end, piece, "", "", True, "statement")


def _expression(text: str, start: int, end: int, kind: str) -> Part:
    return Part(start, end, f"select {text[start:end].strip()}", "", " ", True, kind)


_TOKEN = re.compile(r"--[^\n]*\n|'(?:[^']|'')*'|[();]|[^-'();]+|-", re.S)


def _split(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The pieces between semicolons, each from its first word on."""
    depth, begins = 0, start
    for token in _TOKEN.finditer(text, start, end):
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == ";" and not depth:
            yield _trimmed(text, begins, token.start())
            begins = token.end()
    if text[begins:end].strip() not in ("", "end"):
        yield _trimmed(text, begins, end)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    if space := _SPACE.match(text, start, end):
        start = space.end()
    return start, start + len(text[start:end].rstrip())
