"""What the bench knows of a system: how it is run and set, and what its tables say of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

DEFAULT, BEST = "default", "best"

Options = Mapping[str, object]  # handed to the system's program as JSON


class Setting(NamedTuple):
    """One way to set a system up.

    said: what it is and where its documentation says so, for the notes. most: at most so many jobs
    a drain, for a setting that is slow or waits between jobs.
    """

    name: str
    options: Options
    said: str
    most: int | None = None


class Check(NamedTuple):
    """SQL that counts what is wrong with a finished drain of %(tasks)s jobs, and a sentence."""

    sql: str
    sentence: str


class Peer(NamedTuple):
    """A system.

    runtime: what runs its program, which is a module or a file in `npm/`. packages: whose versions
    the result names. settings: for throughput. idle: for how soon a job starts on an idle fleet,
    without those that cannot keep up with a few jobs a second. table: has one row a job. open: SQL,
    whether there is a job that is not done; the cheapest look that is still true, for it is asked
    fifty times a second.
    """

    name: str
    runtime: Literal["python", "npm"]
    program: str
    packages: tuple[str, ...]
    settings: tuple[Setting, ...]
    idle: tuple[Setting, ...]
    table: str
    open: str
    checks: tuple[Check, ...]

    def setting(self, name: str) -> Setting:
        """By its name."""
        return next(one for one in self.settings if one.name == name)
