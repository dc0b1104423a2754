"""Records as JSON documents, with payloads as they are stored: to read one would round numbers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class RawJson:
    """JSON text that stands in a document as it is: reading it would round its numbers.

    No dataclass, since pydantic would write one as its fields.
    """

    def __init__(self, text: str) -> None:
        self.text = text


def json_text(document: object, indent: int | None = None) -> str:
    """The document as JSON, its `RawJson` parts unread."""
    parts: list[str] = []

    def mark(value: object) -> str:
        if not isinstance(value, RawJson):
            raise TypeError(f"{type(value).__name__} has no JSON")
        parts.append(value.text)
        return f"\0{len(parts) - 1}\0"  # no text of PostgreSQL's has a NUL in it

    marked = json.dumps(to_jsonable_python(document, fallback=mark), indent=indent)
    whole = re.sub(r'"\\u0000(\d+)\\u0000"', lambda found: parts[int(found[1])], marked)
    # A payload's as well: any terminal's encoding has ASCII. (Outside texts JSON has nothing else.)
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], whole)


def raw_payload(record: DataclassInstance) -> dict[str, object]:
    """A record's fields, its payload as raw JSON."""
    fields = asdict(record)
    return {**fields, "payload": RawJson(fields["payload"])}
