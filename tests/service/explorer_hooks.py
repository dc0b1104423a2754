"""What schemathesis cannot know: kinds, ids of tasks and names of schedules that there are.

Loaded by its command line. Only what was valid is replaced: what is wrong on purpose stays wrong.
"""

from __future__ import annotations

import os
import re
from typing import Any

import schemathesis

TASKS = os.environ["EXPLORER_TASKS"].split(",")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Two of three kinds exist."""
    if isinstance(body, dict) and isinstance(body.get("kind"), str):
        name = body["kind"]
        if re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", name) and len(name) % 3:
            return {**body, "kind": "any"}
    return body


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Two of three ids, and of names of schedules, exist."""
    name = str((path_parameters or {}).get("name", ""))
    if re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", name) and len(name) % 3:
        return {**path_parameters, "name": "hourly"}
    number = str((path_parameters or {}).get("task", ""))
    if re.fullmatch(r"[0-9]{1,18}", number) and int(number) % 3:
        return {**path_parameters, "task": int(TASKS[int(number) % len(TASKS)])}
    return path_parameters
