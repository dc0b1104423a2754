"""A connection that nobody closed is told with the lines that opened it.

psycopg warns when such a connection is collected, which may be in another test, and its warning
names nobody.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

from psycopg import BaseConnection

FRAMES = 14  # the innermost, psycopg's own among them


def tell_who_opened() -> None:
    """From now on, for all connections of this process."""
    begin, end = BaseConnection.__init__, BaseConnection.__del__
    opened = "_opened_by"

    def remember(self: BaseConnection[Any], *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        frames = traceback.walk_stack(sys._getframe(1))
        stack = traceback.StackSummary.extract(frames, limit=FRAMES, lookup_lines=False)
        setattr(self, opened, stack)

    def tell(self: BaseConnection[Any]) -> None:
        def warn(text: str, kind: type[Warning]) -> None:
            lines = "".join(reversed(getattr(self, opened).format()))
            warnings.warn(f"{text}\nIt was opened here:\n{lines}", kind, stacklevel=1)

        end(self, warn)

    BaseConnection.__init__ = remember  # type: ignore[method-assign] # to be told who opened it
    BaseConnection.__del__ = tell  # type: ignore[assignment, method-assign] # to tell it
