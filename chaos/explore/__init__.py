"""Every interleaving of a few actors' SQL on a real PostgreSQL, one step at a time.

`explore` searches, `crash_points` breaks one actor at each of its steps, `replay` runs one schedule
again. docs/explorer.md tells how.
"""

from chaos.explore.crashpoints import CrashPoints, crash_points
from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.explore import Exploration, explore, explore_program, replay
from chaos.explore.program import Ending, Endings, Program, Violation
from chaos.explore.pytest_code import pytest_function
from chaos.explore.run import Bounds, Trace

__all__ = [
    "Bounds",
    "CrashPoints",
    "Ending",
    "Endings",
    "Exploration",
    "ExplorerError",
    "Program",
    "ScheduleError",
    "Trace",
    "Violation",
    "crash_points",
    "explore",
    "explore_program",
    "pytest_function",
    "replay",
]
