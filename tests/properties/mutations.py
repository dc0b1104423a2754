"""Planted bugs for the state machine alone: the statements' WHERE clauses, each time without one of
their conjuncts.

Not among them is the token in a fence: the owner has a nonce of its claim, so with the id it names
one token, and only a failover that loses commits issues that again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from psycopg import Connection

from chaos.mutants import Edit, Mutant, Shown
from tests.scheduler import test_access as access
from tests.scheduler import test_dead_letter as dead_letter
from tests.scheduler import test_finish as finish
from tests.scheduler import test_unique as unique

_ACCESS = "migrations/0002_access"
_ENDS = ("complete", "fail", "snooze", "release", "renew")
_HELD = "on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner"
_ROW = {
    "cancel": "lease_owner = null, lease_expires_at = null, claimed_at = null\n    from mine\n",
    "requeue": "next_run_at = scheduler.now(), finished_at = null\n                from mine\n",
    "discard": "set status = 'discarded', finished_at = scheduler.now()\n    from mine\n",
}


def _edits() -> dict[str, Edit]:
    """By what is missing."""
    edits = {}
    for file in _ENDS:
        edits[f"{file}: id"] = Edit(file, _HELD, _HELD.replace("task.id = held.id and ", ""))
        edits[f"{file}: token and owner"] = Edit(file, _HELD, "on task.id = held.id")
        edits[f"{file}: owner"] = Edit(file, _HELD, _HELD.partition(" and task.lease_owner")[0])
        edits[f"{file}: mine"] = Edit(file, "where task.id = mine.id", "where true")
    edits["reclaim: running, expired"] = Edit(
        "reclaim", "status = 'running' and lease_expires_at < scheduler.now()", "status = 'running'"
    )
    edits["release_claim: owners"] = Edit(
        "release_claim", " and task.lease_owner = any(%(owners)s::text[])", ""
    )
    edits["complete_in_transaction: owner"] = Edit(
        "complete_in_transaction", " and task.lease_owner = %(owner)s\n", "\n"
    )
    edits["complete_in_transaction: id"] = Edit(
        "complete_in_transaction", "where task.id = %(task)s and ", "where "
    )
    edits["complete_in_transaction: counted"] = Edit(
        "complete_in_transaction", "where done.counted and ", "where "
    )
    edits["complete_in_transaction: source"] = Edit(
        "complete_in_transaction", " and capped.name = done.source", ""
    )
    for function, before in _ROW.items():
        indent = before.rpartition("from mine")[0].rpartition("\n")[2]
        clause = f"{indent}where task.id = mine.id\n"
        edits[f"{function}: mine"] = Edit(_ACCESS, before + clause, before)
    return edits | {name: Edit(_ACCESS, old, new) for name, (old, new) in _FUNCTIONS.items()}


_SUM = "from (select source, count(*) as tasks from done where counted group by source) as over"
_FUNCTIONS = {
    "cancel: ids": (
        "where id = any(ids) and status in ('pending', 'running')",
        "where status in ('pending', 'running')",
    ),
    "cancel: status": (
        "where id = any(ids) and status in ('pending', 'running')",
        "where id = any(ids)",
    ),
    "cancel: running": ("    where mine.status = 'running'\n", ""),
    "discard, cancel: counted": (_SUM, _SUM.replace(" where counted", "")),
    "discard, cancel: source": ("where capped.name = over.source and ", "where "),
    "discard: ids": (
        "where id = any(ids) and status = 'dead'\n    order",
        "where status = 'dead'\n    order",
    ),
    "discard: status": (
        "where id = any(ids) and status = 'dead'\n    order",
        "where id = any(ids)\n    order",
    ),
    "audit: none": ("    having count(*) > 0\n", ""),
    "requeue: ids": (
        "where id = any(ids) and status = 'dead' and (unique",
        "where status = 'dead' and (unique",
    ),
    "requeue: status": (
        "where id = any(ids) and status = 'dead' and (unique",
        "where id = any(ids) and (unique",
    ),
    "requeue: not finished": ("unique_until is distinct from 'finished' or not (", "not ("),
    "requeue: live, kind": ("where live.kind = dead.kind and ", "where "),
    "requeue: live, key": ("and live.unique_key = dead.unique_key and (", "and ("),
    "requeue: live, started": (
        "live.unique_until = 'started' and live.status = 'pending' and live.lease_token = 0",
        "false",
    ),
    "requeue: live, started, pending": (
        "'started' and live.status = 'pending' and live",
        "'started' and live",
    ),
    "requeue: live, started, token": (" and live.lease_token = 0", ""),
    "requeue: live, finished": (
        "or live.unique_until = 'finished' and live.status in ('pending', 'running')\n",
        "\n",
    ),
    "requeue: live, finished, status": (
        "'finished' and live.status in ('pending', 'running')",
        "'finished'",
    ),
    "requeue: newer, ids": ("where newer.id = any(ids) and newer", "where newer"),
    "requeue: newer, id": (" and newer.id > dead.id", ""),
    "requeue: newer, status": (" and newer.status = 'dead'", ""),
    "requeue: newer, finished": ("and newer.unique_until = 'finished' and newer", "and newer"),
    "requeue: newer, kind": (" and newer.kind = dead.kind", ""),
    "requeue: newer, key": (
        "\n                          and newer.unique_key = dead.unique_key",
        "",
    ),
    "enqueue_unique: kind": ("standing.kind = kind and standing", "standing"),
    "enqueue_unique: key": ("and standing.unique_key = key and (", "and ("),
    "enqueue_unique: started": (
        "            standing.unique_until = 'started' and standing.status = 'pending'\n"
        "                and standing.lease_token = 0\n"
        "            or standing",
        "            standing",
    ),
    "enqueue_unique: started, pending": (
        "'started' and standing.status = 'pending'\n",
        "'started'\n",
    ),
    "enqueue_unique: started, token": ("\n                and standing.lease_token = 0", ""),
    "enqueue_unique: finished": (
        "            or standing.unique_until = 'finished'"
        " and standing.status in ('pending', 'running')\n",
        "",
    ),
    "enqueue_unique: finished, status": (
        "'finished' and standing.status in ('pending', 'running')",
        "'finished'",
    ),
    "enqueue_unique: period": ("\n            or standing.unique_until = 'period');", ");"),
    "take_share: source": ("where name = task_source and outstanding", "where outstanding"),
    "take_share: cap": ("task_source and outstanding + wanted <= max_outstanding;", "task_source;"),
}

_NONE = Shown("none", 0)  # a machine or a test shows them, not a scenario

MUTATIONS = {name: Mutant(name, None, "", "", _NONE, (edit,)) for name, edit in _edits().items()}

# They make a difference, but one so rare that 300 examples need not show it: of two tasks of one
# claim one ends, of two dead ones of a key one is put back, two sources with caps end tasks in one
# call. What shows each is a test of its own.
RARE: dict[str, Callable[[Connection], None]] = {
    **{
        f"{name}: id": partial(
            finish.test_of_one_claims_tasks_only_the_named_one_is_changed, end=end
        )
        for name, end in finish.ENDS.items()
    },
    "discard, cancel: source": access.test_a_cancelled_task_frees_a_place_of_its_own_source_only,
    "discard: ids": dead_letter.test_only_the_named_dead_letters_are_discarded,
    **dict.fromkeys(
        (
            "requeue: live, started",
            "requeue: live, started, pending",
            "requeue: live, started, token",
            "requeue: live, kind",
        ),
        unique.test_a_key_that_waits_to_start_keeps_a_dead_task_dead_and_no_other,
    ),
    **dict.fromkeys(
        (
            *("requeue: newer, ids", "requeue: newer, status", "requeue: newer, finished"),
            *("requeue: newer, kind", "requeue: newer, key"),
        ),
        unique.test_a_dead_task_waits_for_no_newer_one_but_a_dead_one_of_its_key_that_is_put_back,
    ),
}
