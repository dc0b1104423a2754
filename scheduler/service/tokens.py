"""Bearer tokens: made, listed, revoked, and found again by the digest of their secret.

Why a digest that is fast to compute is right for them is said in `0004_tokens.sql`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import psycopg
from psycopg import Connection
from psycopg.rows import class_row

from scheduler.errors import SchedulerError
from scheduler.roles import OWNER, needing
from scheduler.statements import fetch, statement

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
# The prefix is for people and for scanners that look for secrets in what is about to be published.
_SECRET = re.compile(r"lpt_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may do. None includes another."""

    ENQUEUE = "enqueue"
    READ = "read"
    CANCEL = "cancel"
    OPERATE = "operate"
    METRICS = "metrics"


LOOKING = frozenset({Scope.READ, Scope.METRICS})  # what changes nothing


class TokenError(SchedulerError):
    """A token that cannot be made, since its name is taken."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is kept; `source` None is a viewer of all, `kinds` None means any."""

    name: str
    source: str | None
    scopes: list[str]
    kinds: list[str] | None
    created_at: datetime
    created_by: str
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a valid token speaks for; `source` None is a viewer of all, `kinds` None means any."""

    name: str
    source: str | None
    scopes: frozenset[str]
    kinds: frozenset[str] | None

    @property
    def sees_all_sources(self) -> bool:
        """Whether tasks of other sources exist for it."""
        return self.source is None or Scope.OPERATE in self.scopes

    def may(self, scope: str) -> bool:
        """Whether it has this scope. The table has no viewer that could change something; were
        there one, what it did would be said to be the server's own."""
        return scope in self.scopes and (self.source is not None or scope in LOOKING)

    def has_kind(self, kind: str) -> bool:
        """Whether it may have to do with tasks of this kind at all."""
        return self.kinds is None or kind in self.kinds

    def sees(self, kind: str, source: str) -> bool:
        """Whether a task of this kind and source exists for it."""
        return self.has_kind(kind) and (self.sees_all_sources or source == self.source)

    def kind_list(self) -> list[str] | None:
        """Its kinds as a statement takes them."""
        return None if self.kinds is None else sorted(self.kinds)


def create(
    connection: Connection,
    name: str,
    source: str | None,
    scopes: Iterable[Scope],
    kinds: Sequence[str] | None = None,
) -> str:
    """Make a token and return its secret, which is nowhere else and cannot be had again.

    Without a source it is a viewer's: it sees the tasks of all, and may have no scope that changes
    anything.

    Raises ValueError for what cannot be meant, TokenError for a name that is taken, and AccessError
    if the login role may not.
    """
    _check_name("token", name)
    for kind in kinds or ():
        _check_name("kind", kind)
    if source is not None and not (1 <= len(source) <= 200 and source.isprintable()):
        raise ValueError(f"a source has 1 to 200 printable characters, which {source!r} has not")
    wanted = sorted({str(scope) for scope in scopes})
    if not wanted:
        raise ValueError("a token needs a scope: " + ", ".join(Scope))
    if source is None and not LOOKING.issuperset(wanted):
        raise ValueError(
            f"a token for all sources may have the scopes {' and '.join(sorted(LOOKING))}, which"
            f" change nothing, and not {', '.join(wanted)}: give it a source"
        )
    secret = f"lpt_{secrets.token_urlsafe(32)}"
    values = {
        "name": name,
        "digest": digest(secret),
        "source": source,
        "scopes": wanted,
        "kinds": sorted(set(kinds)) if kinds else None,
    }
    try:
        with needing(connection, OWNER):
            fetch(connection, "create_token", values)
    except psycopg.errors.UniqueViolation:
        raise TokenError(
            f"there is or was a token {name!r}, and a name is used once: choose another"
        ) from None
    return secret


def revoke(connection: Connection, name: str) -> bool:
    """Revoke a token for good, at once; whether there was one to revoke. Raises as `create`."""
    _check_name("token", name)
    with needing(connection, "scheduler_operator"):
        [(done,)] = fetch(connection, "revoke_token", {"name": name})
    return bool(done)


def tokens(connection: Connection) -> list[Token]:
    """All tokens by name, revoked ones too."""
    with connection.cursor(binary=True, row_factory=class_row(Token)) as cursor:
        return cursor.execute(statement("tokens")).fetchall()


def _check_name(what: str, text: str) -> None:
    if not NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot name a {what}: use 1 to 100 letters, digits, '_', '.', ':' or '-'"
        )


def digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def well_formed(secret: str) -> bool:
    """Whether this could be a secret at all; no other is looked up."""
    return _SECRET.fullmatch(secret) is not None


def find(connection: Connection, wanted: bytes) -> Caller | None:
    """Whom the token with this digest speaks for; None if it is unknown or revoked."""
    for name, source, scopes, kinds in fetch(connection, "find_token", {"digest": wanted}):
        return Caller(name, source, frozenset(scopes), None if kinds is None else frozenset(kinds))
    return None
