"""The PostgreSQL wire protocol (version 3), as far as the gate between client and server needs it.

Bytes in, plain values out, no I/O. Source: PostgreSQL's documentation, chapter "Message Formats".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

# `pass` is what needs no step: a BEGIN, which takes no lock and no snapshot, and the house-keeping
# of drivers, which comes and goes with what a session has done before.
Does = Literal["pass", "commit", "rollback", "statement"]


class Message(NamedTuple):
    """One message with its type byte and length, as it travels."""

    type: str
    raw: bytes

    @property
    def body(self) -> bytes:
        """What follows type and length."""
        return self.raw[5:]


def take(buffer: bytearray) -> list[Message]:
    """Cut all complete messages off the front of the buffer."""
    messages = []
    start, end = 0, len(buffer)
    while end - start >= 5:
        length = 1 + int.from_bytes(buffer[start + 1 : start + 5])
        if end - start < length:
            break
        messages.append(Message(chr(buffer[start]), bytes(buffer[start : start + length])))
        start += length
    del buffer[:start]
    return messages


def query(sql: str) -> bytes:
    """A simple-protocol query."""
    text = sql.encode() + b"\0"
    return b"Q" + (4 + len(text)).to_bytes(4) + text


FLUSH = b"H\0\0\0\4"


def strings(body: bytes, count: int) -> list[str]:
    """The first `count` zero-terminated strings of a message's body."""
    return [part.decode(errors="replace") for part in body.split(b"\0", count)[:count]]


def fields(message: Message) -> dict[str, str]:
    """The fields of an error or a notice, by their one-letter codes (`C`: SQLSTATE)."""
    return {
        part[:1].decode(): part[1:].decode(errors="replace")
        for part in message.body.split(b"\0")
        if part
    }


_COMMENTS = re.compile(r"\s*--([^\n]*)\n?|\s*/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"\s*([a-zA-Z]+)(?:\s+([a-zA-Z]+))?")


def _begin_of(sql: str) -> int:
    """Where the first statement's text begins, after comments."""
    start = 0
    while comment := _COMMENTS.match(sql, start):
        start = comment.end()
    return start


@lru_cache(1024)
def does(sql: str) -> Does:
    """What a statement does to its transaction."""
    words = _WORD.match(sql, _begin_of(sql))
    if words is None:
        return "statement"
    first, second = words[1].lower(), (words[2] or "").lower()
    if first in ("begin", "deallocate") or (first, second) == ("start", "transaction"):
        return "pass"
    if second in ("to", "prepared"):
        return "statement"
    if first in ("commit", "end"):
        return "commit"
    if first in ("rollback", "abort"):
        return "rollback"
    return "statement"


_LAST_COMMITS = re.compile(r";\s*(commit|end)\s*;?\s*$", re.IGNORECASE)


@lru_cache(1024)
def commits_last(sql: str) -> bool:
    """Whether the last of several statements in one message is a COMMIT."""
    return _LAST_COMMITS.search(sql) is not None


_BEGINS_FIRST = re.compile(r"\s*(begin|start\s+transaction)\b[^;]*;\s*[^;\s]", re.IGNORECASE)


@lru_cache(1024)
def begins_first(sql: str) -> bool:
    """Whether the first of several statements in one message is a BEGIN."""
    return _BEGINS_FIRST.match(sql, _begin_of(sql)) is not None


@lru_cache(1024)
def title(sql: str) -> str:
    """A short name for a statement: its leading comment's first line, else its first words."""
    comment = _COMMENTS.match(sql)
    text = comment[1] if comment and comment[1] else sql
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
