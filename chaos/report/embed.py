"""Figures as data that a page hands to BokehJS: the same bytes for the same figures, every time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.resources import Resources

_ID = re.compile(r"p\d+")


def library() -> str:
    """BokehJS, as one script without its parts for widgets, tables, WebGL and TeX."""
    scripts = Resources(mode="inline", components=["bokeh"]).js_raw
    return "\n".join(scripts).replace("</script", r"<\/script")


def data(figures: Mapping[str, Any]) -> str:
    """JSON for the page: Bokeh's document, and which figure belongs into the element of which id.

    It may stand in a script element: no `<` is left that could end it or begin a comment.
    """
    document = Document()
    with document.models.freeze():  # or it looks for all models anew after each figure
        for drawn in figures.values():
            document.add_root(drawn)
    whole = {
        "document": json.loads(serialize_json(document.to_json(deferred=False))),
        "places": {drawn.id: name for name, drawn in figures.items()},
    }
    text = json.dumps(_Renumbered().of(whole), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Renumbered:
    """Bokeh numbers models through the life of a process; here each document begins at one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """A copy in which ids are numbered in the order in which they are met."""
        if isinstance(value, dict):
            return {
                self._id(key) if key in self._known else key: (
                    self._id(item)
                    if key == "id" and isinstance(item, str) and _ID.fullmatch(item)
                    else self.of(item)
                )
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return value

    def _id(self, old: str) -> str:
        return self._known.setdefault(old, f"m{len(self._known)}")
