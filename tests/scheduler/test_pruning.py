"""What docs/operations.md says about pruning does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection

from scheduler import requeue
from scheduler.dead_letter_follow import Follower
from scheduler.dead_letter_hooks import register
from tests.scheduler.test_follow import die, read

BLOCKS = re.findall(
    r"^```sql\n(.*?)^```",
    (Path(__file__).parents[2] / "docs/operations.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


def documented(first: str) -> bytes:
    """The one block of SQL that has this in it."""
    [block] = [block for block in BLOCKS if first in block]
    return str(block).encode()


def test_letters_that_stand_or_are_yet_to_be_delivered_keep_their_deaths(db: Connection) -> None:
    over, standing = die(db), die(db)
    register(db, "pager")
    undelivered = die(db)
    requeue(db, [over, undelivered])
    db.execute("update scheduler.deaths set died_at = died_at - interval '31 days'")
    db.execute("update scheduler.tasks set finished_at = finished_at - interval '31 days'")
    db.execute(documented("delete from scheduler.deaths"))
    kept = db.execute("select task_id from scheduler.deaths order by task_id").fetchall()
    assert [task for (task,) in kept] == sorted([standing, undelivered])
    assert read(Follower(), db) == [standing]


def test_the_audit_s_owner_can_prune_it_and_it_refuses_changes_again(db: Connection) -> None:
    die(db)
    [(standing,)] = db.execute("select max(id) from scheduler.audit").fetchall()
    db.execute(
        "insert into scheduler.audit (at, action, source, role, tasks)"
        " values (now() - interval '3 years', 'cancel', 'shop', 'shop', 1)"
    )
    for statement in documented("delete from scheduler.audit").split(b";"):
        db.execute(statement)
    left = db.execute("select id from scheduler.audit order by id").fetchall()
    assert [one for (one,) in left][-1] == standing
    with pytest.raises(psycopg.DatabaseError, match="append-only"):
        db.execute("delete from scheduler.audit")
