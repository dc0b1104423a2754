"""One client's calls, one after the other: what each answers and which rows it changes, as text.

For calls that do more than one invariant could say. What they must tell stands in `texts/*.txt`, to
be read: any other answer, row, column or wake-up is a failure. Races are for other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection

from chaos.explore import clock
from chaos.explore.clauses.actors import plainly
from chaos.explore.crash_lives import RESET, install
from chaos.explore.program import Endings, Program
from chaos.explore.run import Bounds
from chaos.explore.scheduler_programs import Known
from chaos.explore.scheduler_watch import Watch
from scheduler import SchedulerError
from scheduler.lease import Attempt

Call = Callable[[Connection], object]

_TEXTS = Path(__file__).with_name("texts")
BEGAN = clock.START + timedelta(milliseconds=1)
# The audit is never cleared, so its rows are numbered from where this program began.
_ROWS = """
select 'task ' || id, to_jsonb(task) - 'id' from scheduler.tasks as task
union all
select 'run ' || task_id || '/' || lease_token, to_jsonb(run) - array['task_id', 'lease_token']
from scheduler.run_log as run
union all
select 'source ' || name, to_jsonb(source) - 'name' from scheduler.sources as source
union all
select 'schedule ' || name, to_jsonb(schedule) - 'name' from scheduler.schedules as schedule
union all
select 'limit ' || kind, to_jsonb(limited) - 'kind' from scheduler.kind_limits as limited
union all
select 'restriction ' || kind || '/' || source, '{}' from scheduler.kind_sources
union all
select 'audit ' || row_number() over (order by id), to_jsonb(audit) - 'id'
from scheduler.audit where id > %s
order by 1
"""

Rows = dict[str, dict[str, object]]


def told(
    name: str, about: str, calls: Sequence[Call], *, tasks: int = 0, rows: str = ""
) -> tuple[str, Known]:
    """A program of one actor, whose calls tell what is in `texts/<name>.txt`.

    rows: what is done by hand before, to so many tasks that are due.
    """
    begin = Watch(tasks=tasks, attempts=2, claims=10).setup

    def setup(connection: Connection) -> None:
        begin(connection)
        connection.execute(f"{RESET}; {rows}".encode())

    program = Program(
        setup=setup,
        actors={"a": partial(_tell, name=name, calls=calls)},
        invariant=lambda connection: None,
        at_end=_ended,
        install=install,
        advance=clock.advance,
        autocommit=True,
        imported=f"chaos.explore.clauses.programs:CLAUSES['told_{name}'].program",
    )
    return f"told_{name}", Known(program, Bounds(preemptions=None), about)


def answers(connection: Connection, calls: Sequence[Call]) -> list[str]:
    """What each of the calls tells."""
    plainly(connection)
    heard: list[str] = []
    connection.add_notify_handler(lambda notice: heard.append(notice.payload))
    connection.execute("listen scheduler_wake")
    [(audited,)] = connection.execute("select coalesce(max(id), 0) from scheduler.audit").fetchall()
    before = _rows(connection, audited)
    texts = []
    for call in calls:
        heard.clear()
        try:
            returned = call(connection)
            answer = "done" if isinstance(returned, psycopg.Cursor) else repr(_settled(returned))
        except (psycopg.Error, SchedulerError) as error:
            answer = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        after = _rows(connection, audited)
        woken = [f"wakes {queue}" for queue in heard]
        texts.append("\n    ".join([answer, *_changes(before, after), *woken]))
        before = after
    return texts


def _settled(returned: object) -> object:
    """What is promised in no order is told in that of the ids: its own is the planner's choice."""
    if isinstance(returned, dict):
        return dict(sorted(returned.items()))
    if isinstance(returned, set):
        return sorted(returned)
    if isinstance(returned, list) and all(isinstance(one, Attempt) for one in returned):
        return sorted(returned, key=lambda attempt: attempt.task)
    return returned


def _tell(connection: Connection, name: str, calls: Sequence[Call]) -> None:
    # Each call's text begins with its number; how the lines are broken does not matter.
    expected = re.split(r"^\d+: ", (_TEXTS / f"{name}.txt").read_text(), flags=re.M)[1:]
    assert len(expected) == len(calls), f"texts/{name}.txt tells of {len(expected)} calls"
    found = answers(connection, calls)
    for number, (text, wanted) in enumerate(zip(found, expected, strict=True), 1):
        assert text.split() == wanted.split(), f"call {number} tells\n{text}\nnot\n{wanted}"


def _ended(connection: Connection, endings: Endings) -> None:
    for name, ending in endings.items():
        assert ending.error is None, f"{name} gave up: {ending.error!r}"


def _rows(connection: Connection, audited: int) -> Rows:
    return dict(connection.execute(_ROWS, [audited]).fetchall())


def _changes(before: Rows, after: Rows) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if now is None:
            lines.append(f"{name} is gone")
        elif was is None:
            lines.append(f"{name} is new: {_columns(_worth_telling(now))}")
        elif now != was:
            changed = {column: value for column, value in now.items() if value != was[column]}
            lines.append(f"{name}: {_columns(changed)}")
    return lines


def _worth_telling(row: dict[str, object]) -> dict[str, object]:
    return {column: value for column, value in row.items() if value is not None}


def _columns(row: dict[str, object]) -> str:
    return ", ".join(f"{column} {_value(value)}" for column, value in row.items())


def _value(value: Any) -> str:
    """Times as seconds since the program began."""
    if isinstance(value, str):
        try:
            return f"{(datetime.fromisoformat(value) - BEGAN).total_seconds():+.9g}s"
        except (ValueError, TypeError):
            return value
    return json.dumps(value)
