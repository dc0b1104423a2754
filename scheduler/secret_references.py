"""A kind's secrets: references resolved at run time, and what keeps the values out of errors.

A reference says where a secret stands, `env:NAME` or `file:/absolute/path`, and may be read by all.
Its value is read anew for each `attempt.secret(name)`, so that a secret can be changed under a
running worker, and never stored.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import deque
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from urllib.parse import quote, quote_plus

from scheduler.errors import SecretError

LARGEST_SECRET = 65_536  # bytes
SHORTEST_REDACTED = 4  # characters: less would blot out ordinary words
KEPT = (
    8  # of a secret's values, should it change: what an earlier attempt built may have an old one
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\0]+")


def checked(kind: str, secrets: Mapping[str, str] | None) -> Mapping[str, str]:
    """The secrets of a kind, name to reference. Raises ValueError for what is no reference, without
    repeating it: it may be the secret itself."""
    if secrets is None:
        return MappingProxyType({})
    if not isinstance(secrets, Mapping):
        raise ValueError(f"kind {kind!r}: secrets= takes a dict of names to references")  # noqa: TRY004 - one error for all that cannot be meant
    for name, reference in secrets.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"kind {kind!r}: {name!r} cannot name a secret: use 1 to 100 letters, digits, '_',"
                " '.' or '-'"
            )
        if not is_reference(reference):
            raise ValueError(
                f"kind {kind!r}: the secret {name!r} must be a reference, env:NAME or"
                " file:/absolute/path"
            )
    return MappingProxyType(dict(secrets))


def is_reference(text: object) -> bool:
    """Whether this says where a secret stands."""
    return (
        isinstance(text, str)
        and _REFERENCE.fullmatch(text) is not None
        and text.encode("utf-8", "replace").decode() == text
    )


class Secrets:
    """Resolves secrets for the attempts of one worker, and finds their values in texts.

    It remembers the values it gave out, of all kinds: what one attempt built with a secret, a
    client that is kept for example, may fail in another one that never asked for it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._given: dict[tuple[str, str], deque[str]] = {}
        self._pattern: re.Pattern[str] | None = None
        self._names: dict[str, str] = {}

    def resolve(self, kind: str, references: Mapping[str, str], name: str) -> str:
        """The value of a kind's secret. Raises SecretError, which names the reference."""
        if name not in references:
            declared = ", ".join(sorted(references)) or "none"
            raise SecretError(f"kind {kind!r} declares no secret {name!r}; it declares: {declared}")
        try:
            value = read(references[name])
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            # Without its cause, whose text may have part of the value.
            raise SecretError(
                f"the secret {name!r} of kind {kind!r}, {references[name]}, cannot be had: {why}"
            ) from None
        self._remember(references[name], name, value)
        return value

    def redact(self, text: str) -> str:
        """The text without the values given out, in any of the forms that errors show them in."""
        with self._lock:
            pattern, names = self._pattern, self._names
        if pattern is None:
            return text
        return pattern.sub(lambda found: f"[secret {names[found[0]]}]", text)

    def _remember(self, reference: str, name: str, value: str) -> None:
        with self._lock:
            given = self._given.setdefault((reference, name), deque(maxlen=KEPT))
            if value in given:
                return
            given.append(value)
            names = {
                form: of
                for (_, of), values in self._given.items()
                for one in values
                for form in _forms(one)
            }
            # The longest first, or a part would be found and leave the rest.
            longest = sorted(names, key=len, reverse=True)
            if longest:
                self._names = names
                self._pattern = re.compile("|".join(map(re.escape, longest)))


def read(reference: str) -> str:
    """What a reference stands for at this moment. Raises OSError or ValueError; what they say has
    nothing of the value in it, their context may."""
    scheme, _, where = reference.partition(":")
    if scheme == "env":
        if where not in os.environ:
            raise ValueError("the variable is not set")
        content = os.fsencode(os.environ[where])
    else:
        # Non-blocking: to open a pipe would wait for a writer, for ever.
        descriptor = os.open(where, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a Path cannot be opened non-blocking
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is no regular file")
            content = file.read(LARGEST_SECRET + 1)
    if len(content) > LARGEST_SECRET:
        raise ValueError(f"it has more than {LARGEST_SECRET} bytes")
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if scheme == "file":
        value = value.removesuffix("\n").removesuffix("\r")  # an editor's, not the secret's
    if not value:
        raise ValueError("it is empty")
    return value


def _forms(value: str) -> set[str]:
    """A value as it stands, its lines, and each as `repr`, JSON and URLs write it."""
    parts = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    forms: set[str] = set()
    for part in parts:
        if len(part) >= SHORTEST_REDACTED:
            forms |= {part, repr(part)[1:-1], repr(repr(part)[1:-1])[1:-1], ascii(part)[1:-1]}
            forms |= {json.dumps(part)[1:-1], quote(part), quote(part, ""), quote_plus(part)}
    return forms
